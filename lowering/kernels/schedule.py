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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx
from tvm.sym import Analyzer

from ..targets import CpuTarget
from . import vector_math
from .prim_func import ON_STACK, WORTH_THREADS, Expr, as_expression, div, let, lets_by, mod

SCHEDULED = "tcexport.scheduled"

_PARTIALS = 32
_REDUCTION_BLOCK = 4096  # elements that are summed to partial results before those are added up
_PIECE = 4096  # elements of a long last axis that make one task
_COLUMNS = 256  # elements of the last axis that a reduction over other axes keeps in cache

_SPATIAL, _REDUCE = 0, 2  # IterVar.DataPar, IterVar.CommReduce
_CHEAP_CALLS = {"prim.if_then_else", "prim.likely", "tirx.fabs"}
_POLYNOMIALS = {
    "tirx.exp": vector_math.exp,
    "tirx.log": vector_math.log,
    "tirx.tanh": vector_math.tanh,
    "tirx.erf": vector_math.erf,
    "tirx.sigmoid": vector_math.sigmoid,
}
_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: tirx.sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}


def schedule_rest(mod: IRModule, target: CpuTarget) -> IRModule:
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


# Reading a function as stages.


@dataclass(frozen=True)
class _Stage:
    """One loop nest: ``init`` once for each point of ``spatial``, ``body`` for each of ``reduce``.

    ``stores`` has the buffers it writes; a point of ``spatial`` writes elements that no other does.
    """

    spatial: tuple[tirx.IterVar, ...]
    reduce: tuple[tirx.IterVar, ...]
    init: tirx.Stmt | None
    body: tirx.Stmt
    stores: tuple[tirx.BufferStore, ...]

    @property
    def is_injective(self) -> bool:
        return not self.reduce and self.init is None and isinstance(self.body, tirx.BufferStore)


def _schedule(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if root is None or root.iter_vars or root.match_buffers or root.init is not None:
        _refuse_extrema(func.body)
        return func
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stages = [_read_stage(nest) for nest in nests]
    inlined = _choose_inlined(nests, stages, list(root.alloc_buffers))
    rewriter = _Rewriter(inlined, [stage for stage in stages if stage is not None])
    body = []
    for nest, stage in zip(nests, stages, strict=True):
        if stage is None:
            _refuse_extrema(nest)
            body.append(nest)
        elif not (stage.is_injective and stage.stores[0].buffer in inlined):
            body.append(_emit(stage, rewriter))
    block = s_tir.SBlock(
        [],
        [],
        [],
        root.name_hint,
        _sequence(body),
        alloc_buffers=[b for b in root.alloc_buffers if b not in inlined],
    )
    result = func.with_body(s_tir.SBlockRealize([], True, block))
    return result if None in stages else result.with_attr(SCHEDULED, 1)


def _refuse_extrema(statement: tirx.Stmt) -> None:
    """What is left as TVM lowered it may not take a maximum of floats: NaN would be lost."""
    found: list[Expr] = []
    tvm_ffi.structural_walk(statement, ((tirx.Max, tirx.Min), found.append))
    if any(_is_float(node) for node in found):
        raise NotImplementedError(f"loops that cannot be scheduled take an extremum: {statement}")


def _read_stage(nest: tirx.Stmt) -> _Stage | None:
    """The stage that a loop nest around one block is, or None for anything else."""
    loops = []
    while isinstance(nest, tirx.For):
        plain = nest.kind == tirx.ForKind.SERIAL and _is_constant(nest.min, 0)
        if not plain or nest.annotations or nest.step is not None:
            return None
        loops.append(nest)
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize) or not _is_constant(nest.predicate, 1):
        return None
    block = nest.block
    if block.match_buffers or block.alloc_buffers or len(loops) != len(block.iter_vars):
        return None
    for loop, variable, value in zip(loops, block.iter_vars, nest.iter_values, strict=True):
        if not value.same_as(loop.loop_var) or not _is_constant(variable.dom.min, 0):
            return None
    spatial = tuple(v for v in block.iter_vars if v.iter_type == _SPATIAL)
    reduce = tuple(v for v in block.iter_vars if v.iter_type == _REDUCE)
    if len(spatial) + len(reduce) != len(block.iter_vars):
        return None
    stores = _stores(block.body)
    if stores is None or (block.init is not None and _stores(block.init) is None):
        return None
    stage = _Stage(spatial, reduce, block.init, block.body, stores)
    return stage if _points_are_independent(stage) else None


def _stores(body: tirx.Stmt) -> tuple[tirx.BufferStore, ...] | None:
    """The stores of a body that is nothing but bindings and stores."""
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(s, (tirx.Bind, tirx.BufferStore)) for s in statements):
        return None
    return tuple(s for s in statements if isinstance(s, tirx.BufferStore))


def _points_are_independent(stage: _Stage) -> bool:
    """Whether each spatial point writes its own elements, and reads none that another writes."""
    own = [v.var for v in stage.spatial if not _is_constant(v.dom.extent, 1)]
    for store in stage.stores:
        used = [i for i in store.indices if isinstance(i, tirx.Var)]
        if not all(isinstance(i, (tirx.Var, tirx.IntImm)) for i in store.indices):
            return False
        if any(sum(v.same_as(i) for i in used) != 1 for v in own):
            return False
    written = [store.buffer for store in stage.stores]
    for load in _loads(stage.body):
        for store in stage.stores:
            if load.source.same_as(store.buffer) and (
                stage.is_injective
                or len(load.indices) != len(store.indices)
                or not all(map(_same, load.indices, store.indices))
            ):
                return False
    return len({hash(buffer) for buffer in written}) == len(written)


def _loads(node: tirx.Stmt | Expr) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(node, (ir.TensorLoad, lambda load: found.append(load)))
    return found


def _mentioned(node: tirx.Stmt | Expr) -> set[tirx.Var]:
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(node, (tirx.Var, lambda variable: found.add(variable)))
    return found


def _is_constant(value: Expr, constant: int) -> bool:
    return isinstance(value, (int, tirx.IntImm)) and int(value) == constant


def _same(a: Expr, b: Expr) -> bool:
    return tvm_ffi.structural_equal(a, b)


# Which stages go into their readers.


def _choose_inlined(
    nests: Sequence[tirx.Stmt], stages: Sequence[_Stage | None], temporaries: list[tirx.Buffer]
) -> dict[tirx.Buffer, _Stage]:
    """The intermediates that are computed where they are read."""
    mentioned = [_mentioned(nest) for nest in nests]
    writers: dict[tirx.Buffer, int] = {}
    for stage, mentions in zip(stages, mentioned, strict=True):
        written = mentions if stage is None else {store.buffer for store in stage.stores}
        for buffer in written:
            writers[buffer] = writers.get(buffer, 0) + 1
    inlined: dict[tirx.Buffer, _Stage] = {}
    costs: dict[tirx.Buffer, float] = {}
    for stage in stages:
        if stage is None or not stage.is_injective:
            continue
        (store,) = stage.stores
        if store.buffer not in temporaries or writers[store.buffer] != 1:
            continue
        if any(isinstance(i, tirx.IntImm) and int(i) for i in store.indices):
            continue
        sources = [load.source for load in _loads(store.value)]
        if any(writers.get(source, 0) > 1 for source in sources):
            continue
        cost = _cost(store.value) + sum(costs.get(source, 0) for source in sources)
        readers = [
            other
            for other, mentions in zip(stages, mentioned, strict=True)
            if other is not stage and store.buffer in mentions
        ]
        if None in readers:
            continue
        read_once = len(readers) == 1 and all(
            reader is not None
            and _reads_each_once(reader, store.buffer)
            and not _read_in_branch(reader, store.buffer)
            for reader in readers
        )
        if read_once or cost <= _CHEAP:
            inlined[store.buffer] = stage
            costs[store.buffer] = cost
    return inlined


_CHEAP = 12


def _cost(value: Expr) -> float:
    """Roughly the instructions of an expression; infinite with a function in it."""
    total = 0.0

    def count(node: Expr) -> None:
        nonlocal total
        if isinstance(node, ir.Call):
            total += 1 if node.op.name in _CHEAP_CALLS else inf
        elif isinstance(node, tirx.Div):
            total += 8
        elif not isinstance(node, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            total += 1

    tvm_ffi.structural_walk(value, (ir.Expr, count))
    return total


def _reads_each_once(reader: _Stage, buffer: tirx.Buffer) -> bool:
    """Whether no element of the buffer is read at two points of the reader's loops."""
    variables = [
        v.var for v in (*reader.spatial, *reader.reduce) if not _is_constant(v.dom.extent, 1)
    ]
    return all(
        all(isinstance(i, (tirx.Var, tirx.IntImm)) for i in load.indices)
        and all(any(v.same_as(i) for i in load.indices) for v in variables)
        for load in _loads(reader.body)
        if load.source.same_as(buffer)
    )


def _read_in_branch(reader: _Stage, buffer: tirx.Buffer) -> bool:
    """Whether a load stands where only a part of the points computes it, as in padding."""
    branches: list[Expr] = []

    def visit(node: Expr) -> None:
        if isinstance(node, tirx.Select):
            branches.extend((node.true_value, node.false_value))
        elif isinstance(node.op, ir.Op) and node.op.name == "prim.if_then_else":
            branches.extend(node.args[1:])

    tvm_ffi.structural_walk(reader.body, ((tirx.Select, ir.Call), visit))
    return any(load.source.same_as(buffer) for branch in branches for load in _loads(branch))


# Rewriting expressions.

_Mutator = Any  # tvm_ffi.structural.StructuralMutator


class _Rewriter:
    """Puts producers in the place of their loads, and our functions in the place of libm's.

    A producer that is read twice with the same indices is computed once. Values of a branch stay
    in the branch, since its condition may be what keeps a load within its buffer.
    """

    def __init__(self, producers: dict[tirx.Buffer, _Stage], stages: Sequence[_Stage]) -> None:
        self._producers = producers
        self._extents = {
            axis.var: axis.dom.extent
            for stage in stages
            for axis in (*stage.spatial, *stage.reduce)
        }
        self._known: list[tuple[ir.TensorLoad, Expr]] = []

    def expression(self, value: Expr, point: dict[tirx.Var, Expr]) -> Expr:
        return self._branch(lambda: self._rewrite(value, point))

    def value(self, value: Expr, point: dict[tirx.Var, Expr]) -> Expr:
        """The value for a ``_Scratch`` that stands around the call."""
        self._known = []
        return self._rewrite(value, point)

    def statement(self, body: tirx.Stmt, point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        """Bindings and stores at a point. Bound variables are new ones each time."""
        point = dict(point)
        result: list[tirx.Stmt] = []
        for part in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
            scratch = _Scratch(1, _int64(0))
            with lets_by(scratch.keep):
                value = self.value(part.value, point)
            result += scratch.allocations + scratch.statements
            if isinstance(part, tirx.Bind):
                point[part.var] = tirx.Var(part.var.name, part.var.ty)
                result.append(tirx.Bind(point[part.var], value))
            else:
                indices = [self.expression(i, point) for i in part.indices]
                result.append(tirx.BufferStore(part.buffer, value, indices))
        return _sequence(result)

    def _branch(self, emit: Callable[[], Expr]) -> Expr:
        known = list(self._known)
        try:
            return as_expression(emit)
        finally:
            self._known = known

    def _rewrite(self, value: Expr, point: dict[tirx.Var, Expr]) -> Expr:
        def load(node: ir.TensorLoad, mutator: _Mutator) -> Expr:
            indices = [mutator.mutate(i) for i in node.indices]
            if node.source not in self._producers:
                return tirx.BufferLoad(node.source, indices)
            return self._produce(tirx.BufferLoad(node.source, indices))

        def choose(condition: Expr, yes: Expr, no: Expr, mutator: _Mutator) -> Expr:
            condition = mutator.mutate(condition)
            if self._always_within(yes) and self._always_within(no):
                # A load inside a Select becomes a branch, and the loop is not vectorized.
                return tirx.Select(condition, let(mutator.mutate(yes)), let(mutator.mutate(no)))
            yes, no = (self._branch(partial(self._rewrite, part, point)) for part in (yes, no))
            return tirx.if_then_else(condition, yes, no)

        def select(node: tirx.Select, mutator: _Mutator) -> Expr:
            return choose(node.condition, node.true_value, node.false_value, mutator)

        def call(node: ir.Call, mutator: _Mutator) -> Expr:
            name = node.op.name if isinstance(node.op, ir.Op) else ""
            if name == "prim.if_then_else":
                condition, yes, no = node.args
                return choose(condition, yes, no, mutator)
            if name in _POLYNOMIALS and _is_float32(node):
                return _POLYNOMIALS[name](mutator.mutate(node.args[0]), 1)
            if name == "tirx.pow" and isinstance(node.args[1], tirx.FloatImm):
                power = _POWERS.get(float(node.args[1].value))
                if power is not None:
                    return power(let(mutator.mutate(node.args[0])))
            return mutator.default_mutate(node)

        def extremum(node: tirx.Max | tirx.Min, mutator: _Mutator) -> Expr:
            a, b = mutator.mutate(node.a), mutator.mutate(node.b)
            return _EXTREMA[type(node)](a, b)

        return tvm_ffi.structural_mutate(
            value,
            (
                (tirx.Var, lambda variable, _: point.get(variable, variable)),
                (ir.TensorLoad, load),
                (tirx.Select, select),
                (ir.Call, call),
                ((tirx.Max, tirx.Min), extremum),
            ),
        )

    def _always_within(self, value: Expr) -> bool:
        """Whether every load of an expression stays in its buffer wherever the loops are: its
        indices are axes as long as the buffer."""
        for load in _loads(value):
            if load.source in self._producers:
                (store,) = self._producers[load.source].stores
                if not self._always_within(store.value):
                    return False
            for position, size in zip(load.indices, load.source.ty.shape, strict=True):
                extent = self._extents.get(position) if isinstance(position, tirx.Var) else None
                if not _is_constant(position, 0) and (extent is None or not _same(extent, size)):
                    return False
        return True

    def _produce(self, wanted: ir.TensorLoad) -> Expr:
        for load, value in self._known:
            if _same(load, wanted):
                return value
        stage = self._producers[wanted.source]
        (store,) = stage.stores
        point = {v.var: _zero(v.var) for v in stage.spatial}
        for position, actual in zip(store.indices, wanted.indices, strict=True):
            if isinstance(position, tirx.Var):
                point[position] = actual
        value = self._rewrite(store.value, point)
        if str(value.ty.dtype) != "bool":
            value = let(value)
        self._known.append((wanted, value))
        return value


class _Scratch:
    """Keeps values in small buffers, for ``lets_by``; LLVM makes registers of them.

    TVM's simplifier puts the value of a bound variable wherever the variable stands, and so takes
    exponential time over a chain of functions. It does not look into memory.
    """

    def __init__(self, length: int, position: Expr) -> None:
        self.allocations: list[tirx.Stmt] = []
        self.statements: list[tirx.Stmt] = []
        self._length = length
        self._position = position

    def keep(self, value: Expr) -> Expr:
        if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            return value
        length, position = self._length, self._position
        lanes = value.ty.dtype.lanes
        if lanes > 1:
            length, position = lanes, tirx.Ramp(_int64(0), _int64(1), lanes)
        element = str(value.ty.dtype).split("x")[0]
        buffer = tirx.decl_buffer((length,), element, "value", scope="local")
        variable = tirx.Var("value", value.ty)
        self.allocations.append(tirx.AllocBuffer(buffer, ON_STACK))
        self.statements.append(tirx.BufferStore(buffer, value, [position]))
        # A variable, and not the load: Select with a load in it becomes a branch.
        self.statements.append(tirx.Bind(variable, tirx.BufferLoad(buffer, [position])))
        return variable


def _is_float32(value: Expr) -> bool:
    return str(value.ty.dtype) == "float32"


def _is_float(value: Expr) -> bool:
    return "float" in str(value.ty.dtype)


def _is_nan(value: Expr) -> Expr:
    """By the bits: TVM's simplifier believes that x == x, and isnan is not vectorized."""
    if str(value.ty.dtype) != "float64":
        value = tirx.Cast(_with_lanes("float32", value), value)
        bits = tirx.reinterpret(_with_lanes("int32", value), value)
        magnitude, infinity = 0x7FFFFFFF, 0x7F800000
    else:
        bits = tirx.reinterpret(_with_lanes("int64", value), value)
        magnitude, infinity = 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000
    return bits & tirx.const(magnitude, bits.ty.dtype) > tirx.const(infinity, bits.ty.dtype)


def _with_lanes(dtype: str, value: Expr) -> str:
    lanes = value.ty.dtype.lanes
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _zero(variable: tirx.Var) -> Expr:
    return tirx.IntImm(variable.ty.dtype, 0)


def _maximum(a: Expr, b: Expr) -> Expr:
    """The larger, or NaN if either is."""
    if not _is_float(a):
        return tirx.Max(a, b)
    a, b = let(a), let(b)
    return tirx.Select(tirx.any(a > b, _is_nan(a)), a, b)


def _minimum(a: Expr, b: Expr) -> Expr:
    if not _is_float(a):
        return tirx.Min(a, b)
    a, b = let(a), let(b)
    return tirx.Select(tirx.any(a < b, _is_nan(a)), a, b)


_EXTREMA = {tirx.Max: _maximum, tirx.Min: _minimum}
_COMBINERS: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: tirx.Add,
    tirx.Mul: tirx.Mul,
    **_EXTREMA,
}


# Emitting loops.


def _emit(stage: _Stage, rewriter: _Rewriter) -> tirx.Stmt:
    reduction = _read_reduction(stage)
    if stage.is_injective or reduction is None:
        return _emit_by_points(stage, rewriter)
    # Whichever way it is emitted, it begins with the identity that torch begins with.
    stage = replace(stage, init=reduction.begin)
    contiguous = _contiguous(stage, reduction)
    if contiguous is not None:
        return _emit_partials(stage, reduction, contiguous, rewriter)
    if stage.spatial and not _is_constant(stage.spatial[-1].dom.extent, 1):
        return _emit_columns(stage, reduction, rewriter)
    return _emit_by_points(stage, rewriter)


@dataclass(frozen=True)
class _Reduction:
    """``store = combine(store, value)``, beginning with ``identity``."""

    store: tirx.BufferStore
    combine: Callable[[Expr, Expr], Expr]
    value: Expr
    identity: Expr
    begin: tirx.BufferStore


def _read_reduction(stage: _Stage) -> _Reduction | None:
    """The reduction that a stage is, if it combines with an associative operator that we know."""
    store, init = stage.body, stage.init
    if not isinstance(store, tirx.BufferStore) or not isinstance(init, tirx.BufferStore):
        return None
    combine = _COMBINERS.get(type(store.value))
    if combine is None or not isinstance(init.value, (tirx.IntImm, tirx.FloatImm)):
        return None
    own, value = store.value.a, store.value.b
    if not isinstance(own, ir.TensorLoad) or not own.source.same_as(store.buffer):
        return None
    if any(load.source.same_as(store.buffer) for load in _loads(value)):
        return None
    identity = init.value
    extremes: dict[Callable[[Expr, Expr], Expr], float] = {_maximum: -inf, _minimum: inf}
    extreme = extremes.get(combine)
    if extreme is not None and _is_float(identity):
        # TOPI begins with the least finite number, and so would make it of a row of infinities.
        identity = tirx.FloatImm(identity.ty.dtype, extreme)
    neutrals: dict[Callable[[Expr, Expr], Expr], float] = {tirx.Add: 0, tirx.Mul: 1}
    neutral = neutrals.get(combine)
    if neutral is not None and float(identity.value) != neutral:
        return None
    begin = tirx.BufferStore(init.buffer, identity, init.indices)
    return _Reduction(store, combine, value, identity, begin)


def _contiguous(stage: _Stage, reduction: _Reduction) -> tirx.IterVar | None:
    """The reduction axis along which most loads walk through memory, if it is long."""
    analyzer = Analyzer()
    best, most = None, 0
    for axis in stage.reduce:
        extent = axis.dom.extent
        if isinstance(extent, tirx.IntImm) and int(extent) < _PARTIALS:
            continue
        step = {axis.var: axis.var + tirx.IntImm(axis.var.ty.dtype, 1)}
        count = 0
        for load in _loads(reduction.value):
            if load.indices:
                last = load.indices[-1]
                moved = _Rewriter({}, []).expression(last, step)
                count += _is_constant(analyzer.simplify(moved - last), 1)
        if count > most:
            best, most = axis, count
    return best


def _for(variable: tirx.Var, extent: Expr, body: tirx.Stmt, kind: str = "serial") -> tirx.Stmt:
    kinds = {
        "serial": tirx.ForKind.SERIAL,
        "parallel": tirx.ForKind.PARALLEL,
        "vectorized": tirx.ForKind.VECTORIZED,
    }
    return tirx.For(variable, _int64(0), _int64(extent), kinds[kind], body)


def _int64(value: Expr) -> Expr:
    if isinstance(value, (int, tirx.IntImm)):
        return tirx.IntImm("int64", int(value))
    return value if str(value.ty.dtype) == "int64" else tirx.Cast("int64", value)


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def _extent(axis: tirx.IterVar) -> Expr:
    return _int64(axis.dom.extent)


def _product(axes: Sequence[tirx.IterVar]) -> Expr:
    total = _int64(1)
    for axis in axes:
        total = total * _extent(axis)
    return total


def _in_parallel(tasks: Expr, elements: Expr, body: Callable[[tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """Run ``body`` for each task, in parallel where there are elements enough."""

    def loop(kind: str) -> tirx.Stmt:
        task = tirx.Var("task", "int64")
        return _for(task, tasks, body(task), kind)

    if _is_constant(tasks, 1):
        return loop("serial")
    if isinstance(elements, tirx.IntImm):
        return loop("parallel" if int(elements) >= WORTH_THREADS else "serial")
    return tirx.IfThenElse(elements < _int64(WORTH_THREADS), loop("serial"), loop("parallel"))


def _decode(flat: Expr, axes: Sequence[tirx.IterVar]) -> dict[tirx.Var, Expr]:
    """The point that a position in the product of some axes is."""
    point = {}
    live = [axis for axis in axes if not _is_constant(axis.dom.extent, 1)]
    for axis in axes:
        point[axis.var] = _zero(axis.var)
    for axis in reversed(live):
        position = flat
        if axis is not live[0]:
            position, flat = mod(flat, _extent(axis)), div(flat, _extent(axis))
        point[axis.var] = tirx.Cast(axis.var.ty.dtype, position)
    return point


def _bind(point: dict[tirx.Var, Expr]) -> tuple[dict[tirx.Var, Expr], list[tirx.Stmt]]:
    """The point with a variable for each coordinate, and the statements that set them."""
    bound, bindings = dict(point), []
    for variable, value in point.items():
        if not isinstance(value, tirx.IntImm):
            bound[variable] = tirx.Var(variable.name, variable.ty)
            bindings.append(tirx.Bind(bound[variable], value))
    return bound, bindings


def _pieces(extent: Expr, length: int) -> Expr:
    """Into how many pieces a loop is cut, none much longer than ``length``."""
    if isinstance(extent, tirx.IntImm):
        return _int64(max(1, -(-int(extent) // length)))
    return div(extent + _int64(length - 1), _int64(length))


def _bounds(piece: Expr, pieces: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Where a piece begins, and its length."""
    if _is_constant(pieces, 1):
        return _int64(0), extent
    first = div(piece * extent, pieces)
    return first, div((piece + _int64(1)) * extent, pieces) - first


def _over_last_axis(
    axes: Sequence[tirx.IterVar],
    piece_length: int,
    work: Expr,
    body: Callable[[dict[tirx.Var, Expr], Callable], tirx.Stmt],
) -> tirx.Stmt:
    """Tasks over the outer axes and pieces of the last one.

    ``body`` gets the outer point and a function that wraps a statement, made from a point, in the
    loop over the piece.
    """
    live = [axis for axis in axes if not _is_constant(axis.dom.extent, 1)]
    outer, last = live[:-1], live[-1]
    extent = _extent(last)
    pieces = _pieces(extent, piece_length)

    def task_body(task: tirx.Var) -> tirx.Stmt:
        whole = _is_constant(pieces, 1)
        row = task if whole else div(task, pieces)
        first, length = _bounds(mod(task, pieces), pieces, extent)
        start = tirx.Var("start", "int64")
        count = tirx.Var("count", "int64")
        point, bindings = _bind({axis.var: _zero(axis.var) for axis in axes} | _decode(row, outer))

        def along(make: Callable[[dict[tirx.Var, Expr]], tirx.Stmt]) -> tirx.Stmt:
            position = tirx.Var("i", "int64")
            at = tirx.Cast(last.var.ty.dtype, start + position)
            return _for(position, count, make(point | {last.var: at}))

        inner = body(point, along)
        return _sequence([tirx.Bind(start, first), tirx.Bind(count, length), *bindings, inner])

    return _in_parallel(_product(outer) * pieces, work, task_body)


def _emit_by_points(stage: _Stage, rewriter: _Rewriter) -> tirx.Stmt:
    """The stage as it stands: parallel over its points, its reduction inside."""

    def at(point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        variables = {axis.var: tirx.Var(axis.var.name, axis.var.ty) for axis in stage.reduce}
        body = rewriter.statement(stage.body, point | variables)
        for axis in reversed(stage.reduce):
            inner = variables[axis.var]
            zero = tirx.IntImm(inner.ty.dtype, 0)
            body = tirx.For(inner, zero, axis.dom.extent, tirx.ForKind.SERIAL, body)
        if stage.init is None:
            return body
        return _sequence([rewriter.statement(stage.init, point), body])

    if all(_is_constant(axis.dom.extent, 1) for axis in stage.spatial):
        return at({axis.var: _zero(axis.var) for axis in stage.spatial})
    work = _product((*stage.spatial, *stage.reduce))
    length = 1 if stage.reduce else _PIECE
    return _over_last_axis(stage.spatial, length, work, lambda point, along: along(at))


def _emit_columns(stage: _Stage, reduction: _Reduction, rewriter: _Rewriter) -> tirx.Stmt:
    """A reduction that adds whole rows: some columns of the result stay in cache meanwhile."""
    store = reduction.store

    def result(point: dict[tirx.Var, Expr]) -> list[Expr]:
        return [point[i] if isinstance(i, tirx.Var) else i for i in store.indices]

    def initial(point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        return tirx.BufferStore(store.buffer, reduction.identity, result(point))

    def body(point: dict[tirx.Var, Expr], along: Callable) -> tirx.Stmt:
        variables = {axis.var: tirx.Var(axis.var.name, axis.var.ty) for axis in stage.reduce}

        def step(point: dict[tirx.Var, Expr]) -> tirx.Stmt:
            at = result(point)
            own = tirx.BufferLoad(store.buffer, at)
            scratch = _Scratch(1, _int64(0))
            with lets_by(scratch.keep):
                value = rewriter.value(reduction.value, point | variables)
                value = reduction.combine(own, value)
            update = tirx.BufferStore(store.buffer, value, at)
            return _sequence([*scratch.allocations, *scratch.statements, update])

        rows = along(step)
        for axis in reversed(stage.reduce):
            inner = variables[axis.var]
            zero = tirx.IntImm(inner.ty.dtype, 0)
            rows = tirx.For(inner, zero, axis.dom.extent, tirx.ForKind.SERIAL, rows)
        return _sequence([along(initial), rows])

    work = _product((*stage.spatial, *stage.reduce))
    return _over_last_axis(stage.spatial, _COLUMNS, work, body)


_VECTORIZED_CALLS = {
    "tirx.sqrt",
    "tirx.floor",
    "prim.ceil",
    "tirx.trunc",
    "tirx.round",
    "tirx.nearbyint",
    "tirx.fabs",
    "tirx.reinterpret",
    "tirx.shift_left",
    "tirx.shift_right",
    "tirx.bitwise_and",
}


def _vectorizes(body: tirx.Stmt) -> bool:
    """Whether TVM turns every call of a loop body into one of a vector. Where it cannot, it unrolls
    the loop, and loses its bindings."""
    calls: list[ir.Call] = []
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: calls.append(call)))
    return all(isinstance(c.op, ir.Op) and c.op.name in _VECTORIZED_CALLS for c in calls)


_Update = tuple[list[tirx.Stmt], tirx.Stmt]  # buffers it needs, and what it does


def _emit_partials(
    stage: _Stage, reduction: _Reduction, axis: tirx.IterVar, rewriter: _Rewriter
) -> tirx.Stmt:
    """A reduction along memory: partial results side by side, in blocks, combined as a tree."""
    store = reduction.store
    dtype = str(reduction.identity.ty.dtype)
    extent = _extent(axis)
    others = [other for other in stage.reduce if other is not axis]

    def at(task: Expr) -> tirx.Stmt:
        total = tirx.decl_buffer((1,), dtype, "total", scope="local")
        partials = tirx.decl_buffer((_PARTIALS,), dtype, "partials", scope="local")
        fixed, bindings = _bind(_decode(task, stage.spatial))
        fixed |= {other.var: tirx.Var(other.var.name, other.var.ty) for other in others}

        def add(buffer: tirx.Buffer, where: Expr, position: Expr, length: int) -> _Update:
            point = fixed | {axis.var: tirx.Cast(axis.var.ty.dtype, position)}
            scratch = _Scratch(length, where)
            with lets_by(scratch.keep):
                value = rewriter.value(reduction.value, point)
                value = reduction.combine(tirx.BufferLoad(buffer, [where]), value)
            store = tirx.BufferStore(buffer, value, [where])
            return scratch.allocations, _sequence([*scratch.statements, store])

        def lanes(count: int, make: Callable[[tirx.Var], _Update]) -> tirx.Stmt:
            lane = tirx.Var("lane", "int64")
            allocations, body = make(lane)
            kind = "vectorized" if _vectorizes(body) else "serial"
            return _sequence([*allocations, _for(lane, count, body, kind)])

        def single(update: _Update) -> tirx.Stmt:
            allocations, body = update
            return _sequence([*allocations, body])

        def clear(lane: tirx.Var) -> _Update:
            return [], tirx.BufferStore(partials, reduction.identity, [lane])

        whole = div(extent, _int64(_PARTIALS)) * _int64(_PARTIALS)
        block, step, left = (tirx.Var(name, "int64") for name in ("block", "step", "left"))
        first = block * _int64(_REDUCTION_BLOCK)
        steps = div(tirx.min(whole - first, _int64(_REDUCTION_BLOCK)), _int64(_PARTIALS))
        every = tirx.Ramp(_int64(0), _int64(1), _PARTIALS)
        scratch = _Scratch(1, _int64(0))
        with lets_by(scratch.keep):
            row = tirx.BufferLoad(partials, [every])
            merged = vector_math.reduce_lanes(row, reduction.combine, _PARTIALS)
            merged = reduction.combine(tirx.BufferLoad(total, [_int64(0)]), merged)
        merge = [
            *scratch.allocations,
            *scratch.statements,
            tirx.BufferStore(total, merged, [_int64(0)]),
        ]
        in_block = [
            lanes(_PARTIALS, clear),
            _for(
                step,
                steps,
                lanes(
                    _PARTIALS,
                    lambda lane: add(
                        partials, lane, first + step * _int64(_PARTIALS) + lane, _PARTIALS
                    ),
                ),
            ),
            *merge,
        ]
        body = _sequence(
            [
                _for(block, _pieces_exact(whole), _sequence(in_block)),
                _for(left, extent - whole, single(add(total, _int64(0), whole + left, 1))),
            ]
        )
        for other in reversed(others):
            inner = fixed[other.var]
            zero = tirx.IntImm(inner.ty.dtype, 0)
            body = tirx.For(inner, zero, other.dom.extent, tirx.ForKind.SERIAL, body)
        result = [fixed[i] if isinstance(i, tirx.Var) else i for i in store.indices]
        return _sequence(
            [
                *bindings,
                tirx.AllocBuffer(total, ON_STACK),
                tirx.AllocBuffer(partials, ON_STACK),
                tirx.BufferStore(total, reduction.identity, [_int64(0)]),
                body,
                tirx.BufferStore(store.buffer, tirx.BufferLoad(total, [_int64(0)]), result),
            ]
        )

    work = _product((*stage.spatial, *stage.reduce))
    return _in_parallel(_product(stage.spatial), work, at)


def _pieces_exact(length: Expr) -> Expr:
    return div(length + _int64(_REDUCTION_BLOCK - 1), _int64(_REDUCTION_BLOCK))
