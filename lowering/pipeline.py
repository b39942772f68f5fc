"""From a Relax module to machine code for one target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import IRModule, relax

from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import Expr
from .in_place import update_in_place
from .kernels.half import bfloat16_as_bits
from .kernels.prim_func import PASS_CONFIG
from .kernels.schedule import mark_noalias, schedule_rest
from .memory import peaks
from .outputs import given_results, with_given_results
from .shape_functions import order_stores
from .targets import CpuTarget, GpuTarget
from .variants import ENTRY
from .weight_checks import without_weight_checks

# LLVM removes what does nothing, in a fraction of the time. (The encoder's machine code is the same.)
_CONFIG: dict[str, Any] = {
    **PASS_CONFIG,
    "disabled_pass": [*PASS_CONFIG["disabled_pass"], "tirx.RemoveNoOp"],
}

# What the kernels are scheduled for, whatever architecture they are compiled for: the limits that
# all of them keep.
CUDA = (
    ("kind", "cuda"),
    ("arch", "sm_75"),
    ("max_num_threads", 1024),
    ("max_shared_memory_per_block", 49152),
    ("thread_warp_size", 32),
)


@dataclass(frozen=True)
class Compiled:
    """The code of a module; ``given`` are, for each function, the results that its `outputs.into` takes
    memory for, by number, and ``memory`` what it allocates at once, as `memory.peaks` says."""

    executable: relax.VMExecutable
    given: dict[str, tuple[int, ...]]
    memory: dict[str, tuple[Expr, ...] | None]


def compile_module(
    module: IRModule, target: CpuTarget, weights: Mapping[str, int] | None = None
) -> Compiled:
    """Fuse, schedule, plan memory and generate code. See `kernels.schedule` for the order.

    Args:
        weights: of each function, by name, how many of its last parameters are weights; by default
            there is ``main``, without any.
    """
    llvm = tvm.target.Target(dict(target.llvm))
    fuse, order, allocate, plan, lower = _passes()
    with llvm, tvm.transform.PassContext(**_CONFIG):
        module = update_in_place(order(schedule_rest(fuse(module))))
        module = allocate(bfloat16_as_bits(module))
        weights = {ENTRY: 0} if weights is None else weights
        given = {name: given_results(module, name) for name in weights}
        module = plan(with_given_results(module, weights))
        memory = {name: peaks(module[name]) for name in weights}
        module = without_weight_checks(order_stores(lower(module)), weights)
        module = mark_noalias(module)
        _refuse_foreign_functions(module)
        executable = tvm.compile(
            module,
            target=llvm,
            relax_pipeline=tvm.transform.Sequential([]),
            tir_pipeline="s_tir",
        )
    return Compiled(executable, given, memory)


def compile_for_gpu(module: IRModule, target: GpuTarget) -> relax.VMExecutable:
    """The same for a GPU: its kernels are CUDA source in what this gives, see `cuda.pack`."""
    from .cuda.schedule import PIPELINE, schedule

    cuda = tvm.target.Target(dict(CUDA), host=dict(target.host.llvm))
    fuse, order, allocate, plan, lower = _passes()
    with cuda, tvm.transform.PassContext():
        module = update_in_place(order(schedule(fuse(module))), on_gpu=True)
        module = bfloat16_as_bits(module)
        module = order_stores(lower(plan(allocate(module))))
        _refuse_foreign_functions(module)
        return tvm.compile(
            module,
            target=cuda,
            relax_pipeline=tvm.transform.Sequential([]),
            tir_pipeline=PIPELINE,
        )


def _passes() -> tuple[tvm.transform.Pass, ...]:
    """Fusing ops to functions; their order; memory for each result; its plan; calls of the VM."""
    passes = relax.transform
    fuse = tvm.transform.Sequential(
        [
            passes.CanonicalizeBindings(),
            passes.DeadCodeElimination(),
            passes.AnnotateTIROpPattern(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
    )
    order = tvm.transform.Sequential([passes.ToNonDataflow(), passes.RemovePurityChecking()])
    allocate = tvm.transform.Sequential([passes.CanonicalizeBindings(), passes.CallTIRRewrite()])
    plan = tvm.transform.Sequential(
        [
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
        ]
    )
    lower = tvm.transform.Sequential(
        [
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    return fuse, order, allocate, plan, lower


def _refuse_foreign_functions(module: IRModule) -> None:
    """Nothing but libtvm_runtime goes with a bundle: it has the ``vm.builtin`` functions, and not
    ``tvm.contrib`` (sorts, top-k), whose absence would only show at a call."""
    foreign: set[str] = set()

    def look(expression: relax.Expr) -> None:
        if isinstance(expression, relax.ExternFunc):
            name = str(expression.global_symbol)
            if not name.startswith("vm.builtin."):
                foreign.add(name)

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, look)
    if foreign:
        names = ", ".join(sorted(foreign))
        raise ExportError(Diagnostic("TC501", f"{names}: not in the runtime that a bundle brings"))
