"""The loops of a stage that combines many elements to one: sums, products, extrema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from . import vector_math
from .nests import (
    bind,
    count_points,
    decode,
    emit_by_points,
    extent_of,
    in_parallel,
    loop_over,
    over_last_axis,
)
from .prim_func import ON_STACK, Expr, div, lets_by
from .rewriting import COMBINERS, Rewriter, Scratch, int64, is_float, maximum, minimum, sequence
from .stages import Stage, is_constant, loads

_PARTIALS = 32
_REDUCTION_BLOCK = 4096  # elements that are summed to partial results before those are added up
_COLUMNS = 256  # elements of the last axis that a reduction over other axes keeps in cache


def emit(stage: Stage, rewriter: Rewriter) -> tirx.Stmt:
    reduction = _read_reduction(stage)
    if stage.is_injective or reduction is None:
        return emit_by_points(stage, rewriter)
    # Whichever way it is emitted, it begins with the identity that torch begins with.
    stage = replace(stage, init=reduction.begin)
    contiguous = _contiguous(stage, reduction)
    if contiguous is not None:
        return _emit_partials(stage, reduction, contiguous, rewriter)
    if stage.spatial and not is_constant(stage.spatial[-1].dom.extent, 1):
        return _emit_columns(stage, reduction, rewriter)
    return emit_by_points(stage, rewriter)


@dataclass(frozen=True)
class _Reduction:
    """``store = combine(store, value)``, beginning with ``identity``."""

    store: tirx.BufferStore
    combine: Callable[[Expr, Expr], Expr]
    value: Expr
    identity: Expr
    begin: tirx.BufferStore


def _read_reduction(stage: Stage) -> _Reduction | None:
    """The reduction that a stage is, if it combines with an associative operator that we know."""
    store, init = stage.body, stage.init
    if not isinstance(store, tirx.BufferStore) or not isinstance(init, tirx.BufferStore):
        return None
    combine = COMBINERS.get(type(store.value))
    if combine is None or not isinstance(init.value, (tirx.IntImm, tirx.FloatImm)):
        return None
    own, value = store.value.a, store.value.b
    if not isinstance(own, ir.TensorLoad) or not own.source.same_as(store.buffer):
        return None
    if any(load.source.same_as(store.buffer) for load in loads(value)):
        return None
    identity = init.value
    extremes: dict[Callable[[Expr, Expr], Expr], float] = {maximum: -inf, minimum: inf}
    extreme = extremes.get(combine)
    if extreme is not None and is_float(identity):
        # TOPI begins with the least finite number, and so would make it of a row of infinities.
        identity = tirx.FloatImm(identity.ty.dtype, extreme)
    neutrals: dict[Callable[[Expr, Expr], Expr], float] = {tirx.Add: 0, tirx.Mul: 1}
    neutral = neutrals.get(combine)
    if neutral is not None and float(identity.value) != neutral:
        return None
    begin = tirx.BufferStore(init.buffer, identity, init.indices)
    return _Reduction(store, combine, value, identity, begin)


def _contiguous(stage: Stage, reduction: _Reduction) -> tirx.IterVar | None:
    """The reduction axis along which most loads walk through memory, if it is long."""
    analyzer = Analyzer()
    best, most = None, 0
    for axis in stage.reduce:
        extent = axis.dom.extent
        if isinstance(extent, tirx.IntImm) and int(extent) < _PARTIALS:
            continue
        step = {axis.var: axis.var + tirx.IntImm(axis.var.ty.dtype, 1)}
        count = 0
        for load in loads(reduction.value):
            if load.indices:
                last = load.indices[-1]
                moved = Rewriter({}, []).expression(last, step)
                count += is_constant(analyzer.simplify(moved - last), 1)
        if count > most:
            best, most = axis, count
    return best


def _emit_columns(stage: Stage, reduction: _Reduction, rewriter: Rewriter) -> tirx.Stmt:
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
            scratch = Scratch(1, int64(0))
            with lets_by(scratch.keep):
                value = rewriter.value(reduction.value, point | variables)
                value = reduction.combine(own, value)
            update = tirx.BufferStore(store.buffer, value, at)
            return sequence([*scratch.allocations, *scratch.statements, update])

        rows = along(step)
        for axis in reversed(stage.reduce):
            inner = variables[axis.var]
            zero = tirx.IntImm(inner.ty.dtype, 0)
            rows = tirx.For(inner, zero, axis.dom.extent, tirx.ForKind.SERIAL, rows)
        return sequence([along(initial), rows])

    work = count_points((*stage.spatial, *stage.reduce))
    return over_last_axis(stage.spatial, _COLUMNS, work, body)


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
    stage: Stage, reduction: _Reduction, axis: tirx.IterVar, rewriter: Rewriter
) -> tirx.Stmt:
    """A reduction along memory: partial results side by side, in blocks, combined as a tree."""
    store = reduction.store
    dtype = str(reduction.identity.ty.dtype)
    extent = extent_of(axis)
    others = [other for other in stage.reduce if other is not axis]

    def at(task: Expr) -> tirx.Stmt:
        total = tirx.decl_buffer((1,), dtype, "total", scope="local")
        partials = tirx.decl_buffer((_PARTIALS,), dtype, "partials", scope="local")
        fixed, bindings = bind(decode(task, stage.spatial))
        fixed |= {other.var: tirx.Var(other.var.name, other.var.ty) for other in others}

        def add(buffer: tirx.Buffer, where: Expr, position: Expr, length: int) -> _Update:
            point = fixed | {axis.var: tirx.Cast(axis.var.ty.dtype, position)}
            scratch = Scratch(length, where)
            with lets_by(scratch.keep):
                value = rewriter.value(reduction.value, point)
                value = reduction.combine(tirx.BufferLoad(buffer, [where]), value)
            store = tirx.BufferStore(buffer, value, [where])
            return scratch.allocations, sequence([*scratch.statements, store])

        def lanes(count: int, make: Callable[[tirx.Var], _Update]) -> tirx.Stmt:
            lane = tirx.Var("lane", "int64")
            allocations, body = make(lane)
            kind = "vectorized" if _vectorizes(body) else "serial"
            return sequence([*allocations, loop_over(lane, count, body, kind)])

        def single(update: _Update) -> tirx.Stmt:
            allocations, body = update
            return sequence([*allocations, body])

        def clear(lane: tirx.Var) -> _Update:
            return [], tirx.BufferStore(partials, reduction.identity, [lane])

        whole = div(extent, int64(_PARTIALS)) * int64(_PARTIALS)
        block, step, left = (tirx.Var(name, "int64") for name in ("block", "step", "left"))
        first = block * int64(_REDUCTION_BLOCK)
        steps = div(tirx.min(whole - first, int64(_REDUCTION_BLOCK)), int64(_PARTIALS))
        every = tirx.Ramp(int64(0), int64(1), _PARTIALS)
        scratch = Scratch(1, int64(0))
        with lets_by(scratch.keep):
            row = tirx.BufferLoad(partials, [every])
            merged = vector_math.reduce_lanes(row, reduction.combine, _PARTIALS)
            merged = reduction.combine(tirx.BufferLoad(total, [int64(0)]), merged)
        merge = [
            *scratch.allocations,
            *scratch.statements,
            tirx.BufferStore(total, merged, [int64(0)]),
        ]
        in_block = [
            lanes(_PARTIALS, clear),
            loop_over(
                step,
                steps,
                lanes(
                    _PARTIALS,
                    lambda lane: add(
                        partials, lane, first + step * int64(_PARTIALS) + lane, _PARTIALS
                    ),
                ),
            ),
            *merge,
        ]
        body = sequence(
            [
                loop_over(block, _pieces_exact(whole), sequence(in_block)),
                loop_over(left, extent - whole, single(add(total, int64(0), whole + left, 1))),
            ]
        )
        for other in reversed(others):
            inner = fixed[other.var]
            zero = tirx.IntImm(inner.ty.dtype, 0)
            body = tirx.For(inner, zero, other.dom.extent, tirx.ForKind.SERIAL, body)
        result = [fixed[i] if isinstance(i, tirx.Var) else i for i in store.indices]
        return sequence(
            [
                *bindings,
                tirx.AllocBuffer(total, ON_STACK),
                tirx.AllocBuffer(partials, ON_STACK),
                tirx.BufferStore(total, reduction.identity, [int64(0)]),
                body,
                tirx.BufferStore(store.buffer, tirx.BufferLoad(total, [int64(0)]), result),
            ]
        )

    work = count_points((*stage.spatial, *stage.reduce))
    return in_parallel(count_points(stage.spatial), work, at)


def _pieces_exact(length: Expr) -> Expr:
    return div(length + int64(_REDUCTION_BLOCK - 1), int64(_REDUCTION_BLOCK))
