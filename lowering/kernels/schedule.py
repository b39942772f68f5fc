"""Loops for what Relax itself lowered: elementwise chains, reductions, gathers, transposes.

LegalizeOps, FuseOps and FuseTIR leave PrimFuncs that are plain serial loop nests, one per
operation, with every intermediate in memory. Here each becomes a few parallel loops:

* an elementwise stage whose result is read once goes into its reader;
* an injective stage is parallel over its outer axes (and over pieces of a long last axis), and its
  inner loop is left to LLVM's vectorizer, which knows the cost of what the loop does;
* a sum, maximum and the like over a contiguous axis keeps 32 partial results, in blocks, which is
  fast and keeps the error of long float sums small; over another axis it runs row by row;
* float maxima and minima propagate NaN and begin at infinity, as torch's do and TOPI's do not;
* exp, log, tanh, erf and sigmoid become polynomials, since a call of libm is not vectorized.

What does not look like this (sorts, scans, scatters) is left as it is.

Where the pass stands in the pipeline::

    DispatchSortScan, LegalizeOps, AnnotateTIROpPattern, FoldConstant, FuseOps, FuseTIR,
    DeadCodeElimination
    schedule_rest
    RewriteDataflowReshape, ToNonDataflow, RemovePurityChecking, CallTIRRewrite,
    StaticPlanBlockMemory, LowerAllocTensor, KillAfterLastUse, LowerRuntimeBuiltin,
    ComputePrimValue, VMShapeLower, AttachGlobalSymbol
    mark_noalias
    with PassContext(**PASS_CONFIG):  # of prim_func.py
        tvm.compile(…, relax_pipeline=Sequential([]), tir_pipeline="s_tir")

FuseTIR must be over, because it needs the blocks that this pass replaces by loops. mark_noalias
must be last, because VMShapeLower adds a function (``shape_func``), and ComputePrimValue may.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, s_tir, tirx

from .prim_func import Expr
from .reductions import emit
from .rewriting import Rewriter, is_float, sequence
from .stages import choose_inlined, read_stage

SCHEDULED = "tcexport.scheduled"


def schedule_rest(mod: IRModule) -> IRModule:
    """Schedule every PrimFunc that does not say that it is scheduled.

    A function with a stage that is not understood keeps that stage's loops, and stays without the
    mark: ``unscheduled`` lists such functions.

    Raises:
        NotImplementedError: such a stage takes a maximum or minimum of floats, which TVM's own loops
            get wrong for NaN.
    """
    updates = {}
    for name, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or _is_scheduled(func):
            continue
        updates[name] = _schedule(func)
    result = mod.clone()
    for name, func in updates.items():
        result.update_func(name, func)
    return result


def unscheduled(mod: IRModule) -> list[str]:
    """The names of the PrimFuncs that still have serial loops from TVM's own lowering."""
    return [
        name.name_hint
        for name, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not _is_scheduled(func)
    ]


def mark_noalias(mod: IRModule) -> IRModule:
    """Set ``tirx.noalias`` on every PrimFunc.

    One function without it takes it from all functions of the module. No call passes the same
    memory twice: Relax plans outputs and inputs apart.
    """
    result = mod.clone()
    for name, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(name, func.with_attr("tirx.noalias", True))
    return result


def _is_scheduled(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and SCHEDULED in func.attrs


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if root is None or root.iter_vars or root.match_buffers or root.init is not None:
        _refuse_extrema(func.body)
        return func
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stages = [read_stage(nest) for nest in nests]
    inlined = choose_inlined(nests, stages, list(root.alloc_buffers))
    rewriter = Rewriter(inlined, [stage for stage in stages if stage is not None])
    body = []
    for nest, stage in zip(nests, stages, strict=True):
        if stage is None:
            _refuse_extrema(nest)
            body.append(nest)
        elif not (stage.is_injective and stage.stores[0].buffer in inlined):
            body.append(emit(stage, rewriter))
    block = s_tir.SBlock(
        [],
        [],
        [],
        root.name_hint,
        sequence(body),
        alloc_buffers=[b for b in root.alloc_buffers if b not in inlined],
    )
    result = func.with_body(s_tir.SBlockRealize([], True, block))
    return result if None in stages else result.with_attr(SCHEDULED, 1)


def _refuse_extrema(statement: tirx.Stmt) -> None:
    """What is left as TVM lowered it may not take a maximum of floats: NaN would be lost."""
    found: list[Expr] = []
    tvm_ffi.structural_walk(statement, ((tirx.Max, tirx.Min), found.append))
    if any(is_float(node) for node in found):
        raise NotImplementedError(f"loops that cannot be scheduled take an extremum: {statement}")
