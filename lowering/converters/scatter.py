"""Writes at positions that are themselves data.

Positions are made safe as for reads (see `index`). Writes go in the order of the source's elements,
so that of several to one place the last one stays, and sums are the same at every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..broadcasting import axis_of, broadcast_index
from ..context import Context, Unsupported
from ..cuda.launch import a_thread_for_each
from ..kernels.prim_func import parallel, serial, store
from ..regions import Level
from ..symbols import Scalar, Shape, product
from ..tensor import HALVES, Tensor
from .choice import choose
from .elementwise import is_float, pointwise
from .index import picked_by, position_in
from .nonzero import put_masked
from .registry import converter
from .shape import from_front

Combine = Callable[[Any, Any], Any]


def _propagating(extreme: Callable[[Any, Any], Any]) -> Combine:
    def combine(a: Any, b: Any) -> Any:
        if not is_float(str(a.ty.dtype)):
            return extreme(a, b)
        picked = tirx.Select(tirx.isnan(b), b, extreme(a, b))
        return tirx.Select(tirx.isnan(a), a, picked)

    return combine


_REDUCTIONS: dict[str | None, Combine] = {
    None: lambda _, new: new,
    "sum": lambda old, new: old + new,
    "add": lambda old, new: old + new,
    "mean": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
    "multiply": lambda old, new: old * new,
    "amax": _propagating(tirx.max),
    "amin": _propagating(tirx.min),
}


def _copy(source: tirx.Buffer, target: tirx.Buffer, extents: Sequence[Any]) -> None:
    with ExitStack() as loops:
        at = [loops.enter_context(serial(extent)) for extent in extents]
        store(target, source[tuple(at)], *at, lanes=1)


def write(
    ctx: Context,
    name: str,
    x: Tensor,
    operands: Sequence[Tensor],
    over: Shape,
    place: Callable[[Any, list[Any], list[Any]], list[Any]],
    value: Callable[[Any, list[Any], list[Any]], Any],
    combine: Combine,
    free: Sequence[int],
    sizes: Sequence[Any] = (),
) -> Tensor:
    """``x`` with ``combine(old, value)`` written for each point of ``over``: a copy, or, of a state,
    in place where nothing needs the old value (see `in_place`).

    Args:
        place, value: of ``(scope, buffers of the operands, point)``.
        free: axes of ``over`` whose points write to different places, for threads. Along the others
            writes go in their order, on a GPU as well, which needs an axis for its threads.
    """
    flat = x if x.rank else ctx.reshape(x, (1,))
    wide = [axis for axis in free if over[axis] != 1]
    if ctx.on_gpu:
        if not wide and any(size != 1 for size in over):
            raise Unsupported(
                "on a GPU along the only axis: writes go in order, by one thread", "--target cpu"
            )
        wide = list(free)
    free_axis = wide[0] if wide else None

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        source, *others = inputs
        (target,) = results

        def put(point: list[Any]) -> None:
            where = place(scope, others, point)
            old, new = target[tuple(where)], value(scope, others, point)
            store(target, combine(old, new), *where, lanes=1)

        if ctx.on_gpu:
            if x.state is None:
                with a_thread_for_each(scope.shape(flat.shape)) as each:
                    store(target, source[tuple(each)], *each, lanes=1)
            with (
                a_thread_for_each([scope.size(over[axis]) for axis in wide]) as own,
                ExitStack() as loops,
            ):
                known = dict(zip(wide, own, strict=True))
                for axis in range(len(over)):
                    if axis not in known:
                        known[axis] = loops.enter_context(serial(scope.size(over[axis])))
                put([known[axis] for axis in range(len(over))])
            return
        if x.state is None:
            _copy(source, target, scope.shape(flat.shape))
        with ExitStack() as loops:
            order = list(range(len(over)))
            if free_axis is not None:
                order.insert(0, order.pop(free_axis))
            at: dict[int, Any] = {}
            for axis in order:
                loop = parallel if axis == free_axis else serial
                at[axis] = loops.enter_context(loop(scope.size(over[axis])))
            put([at[axis] for axis in range(len(over))])

    needed = (*over, *sizes)
    if x.state is not None:
        return ctx.reshape(ctx.update(name, flat, operands, emit, needed), x.shape)
    made = [(flat.shape, x.dtype)]
    (result,) = ctx.procedure(name, [flat, *operands], made, emit, needed, anywhere=True)
    return ctx.reshape(result, x.shape)


def scatter(
    ctx: Context, x: Tensor, dim: int, index: Tensor, source: Tensor | Scalar, reduction: str | None
) -> Tensor:
    if not x.rank or not index.rank:
        raise Unsupported("of a tensor without axes", "one axis of size 1")
    axis = axis_of(dim, x.rank)
    safe = position_in(ctx, index, x.shape[axis], wraps=False)
    operands = [index, source] if isinstance(source, Tensor) else [index]

    def place(scope: Any, buffers: list[Any], point: list[Any]) -> list[Any]:
        at = safe(scope, buffers[0][tuple(point)])
        return [*point[:axis], at, *point[axis + 1 :]]

    def value(scope: Any, buffers: list[Any], point: list[Any]) -> Any:
        if not isinstance(source, Tensor):
            return scope.number(source, x.dtype)
        return buffers[1][tuple(point)]

    free = [a for a in range(index.rank) if a != axis]
    combine = _REDUCTIONS[reduction]
    if x.dtype == "bool" and reduction in ("sum", "add"):
        combine = tirx.any
    return write(
        ctx, "scatter", x, operands, index.shape, place, value, combine, free, (x.shape[axis],)
    )


@converter("aten.scatter.src", "aten.scatter.value", takes_halves=True)
def convert_scatter(ctx: Context, x: Tensor, dim: int, index: Tensor, src: Any = None,
                    value: Any = None) -> Tensor:  # fmt: skip
    return scatter(ctx, x, dim, index, value if src is None else src, None)


@converter("aten.scatter.reduce", "aten.scatter.value_reduce")
def convert_scatter_with(ctx: Context, x: Tensor, dim: int, index: Tensor, reduce: str,
                         src: Any = None, value: Any = None) -> Tensor:  # fmt: skip
    return scatter(ctx, x, dim, index, value if src is None else src, reduce)


@converter("aten.scatter_add.default")
def convert_scatter_add(ctx: Context, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter(ctx, x, dim, index, src, "sum")


def _with_scalar(ctx: Context, x: Tensor, other: Scalar, dtype: str) -> Tensor:
    return ctx.compute("full", [], x.shape, dtype, lambda scope, *_: scope.number(other, dtype))


@converter("aten.scatter_reduce.two")
def convert_scatter_reduce(
    ctx: Context, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    if reduce not in _REDUCTIONS or x.dtype == "bool":
        raise Unsupported(f"with reduce={reduce!r} of {x.dtype}")
    counts = None
    if reduce == "mean" or not include_self:
        ones, zeros = _with_scalar(ctx, src, 1, "int64"), _with_scalar(ctx, x, 0, "int64")
        counts = scatter(ctx, zeros, dim, index, ones, "sum")
    start = x
    if not include_self:
        assert counts is not None
        untouched = pointwise(
            ctx,
            "untouched",
            lambda n: tirx.EQ(n, tirx.const(0, "int64")),
            counts,
            dtype="int64",
            result="bool",
        )
        start = choose(ctx, untouched, x, _neutral(reduce, x.dtype), x.dtype)
    result = scatter(ctx, start, dim, index, src, reduce)
    if reduce != "mean":
        return result
    assert counts is not None
    own = 1 if include_self else 0

    def divided(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        total, count = tensors[0](*position), tensors[1](*position)
        number = tirx.max(count + tirx.const(own, "int64"), tirx.const(1, "int64")).astype(x.dtype)
        return total / number if is_float(x.dtype) else tirx.floordiv(total, number)

    return ctx.compute("mean", [result, counts], x.shape, x.dtype, divided)


def _neutral(reduction: str, dtype: str) -> Scalar:
    if reduction in ("amax", "amin"):
        if is_float(dtype):
            return float("-inf") if reduction == "amax" else float("inf")
        limit = tirx.min_value(dtype) if reduction == "amax" else tirx.max_value(dtype)
        return int(limit)
    return 1 if reduction == "prod" else 0


@converter("aten.index_put.default", "aten._unsafe_index_put.default", takes_halves=True)
def convert_index_put(
    ctx: Context,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    dtype = x.dtype
    if dtype in HALVES and accumulate:
        wide = convert_index_put(
            ctx, ctx.cast(x, "float32"), indices, ctx.cast(values, "float32"), True
        )
        return ctx.cast(wide, dtype)
    values = ctx.cast(values, dtype)
    if any(index is not None and index.dtype == "bool" for index in indices):
        return _put_masked(ctx, x, indices, values, accumulate)
    picked = picked_by(x, indices)
    safe = {
        axis: position_in(ctx, index, x.shape[axis], wraps=True)
        for axis, index in picked.indices.items()
    }
    # A rank of at least 1, and the values stretched where they are read.
    over = picked.shape or (1,)

    def place(scope: Any, buffers: list[Any], point: list[Any]) -> list[Any]:
        of_axis = dict(zip(picked.indices, buffers, strict=False))

        def at(axis: int, middle: Sequence[Any]) -> Any:
            shape = picked.indices[axis].shape
            where = tuple(broadcast_index(shape, middle)) if shape else (0,)
            return safe[axis](scope, of_axis[axis][where])

        return picked.place(point, at)

    def value(_: Any, buffers: list[Any], point: list[Any]) -> Any:
        at = tuple(broadcast_index(values.shape, point)) if values.rank else (0,)
        return buffers[-1][at]

    def at_least_one_axis(tensor: Tensor) -> Tensor:
        return tensor if tensor.rank else ctx.reshape(tensor, (1,))

    operands = [at_least_one_axis(t) for t in (*picked.indices.values(), values)]
    free = list(range(len(picked.before)))
    if ctx.on_gpu:  # the CPU takes one of them for its threads, and none that is inside of others
        free += range(len(picked.before) + len(picked.common), len(picked.shape))
    combine = _REDUCTIONS["sum" if accumulate else None]
    if dtype == "bool" and accumulate:
        combine = tirx.any
    sizes = [x.shape[axis] for axis in picked.indices]
    return write(ctx, "index_put", x, operands, over, place, value, combine, free, sizes)


def _put_masked(
    ctx: Context,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool,
) -> Tensor:
    """``x[mask] = values`` with one value for all that is masked, or one for each trailing element."""
    masks = [index for index in indices if index is not None]
    leading = next(axis for axis, index in enumerate(indices) if index is not None)
    if len(masks) != 1 or leading:
        raise Unsupported("with a boolean mask among other indices", "torch.where")
    mask = masks[0]
    after = x.rank - mask.rank
    one_for_all = values.rank <= after or all(size == 1 for size in values.shape[: -after or None])
    if not one_for_all:
        if accumulate or values.rank != after + 1:
            raise Unsupported("with a boolean mask and values to add", "torch.where")
        lines = ctx.reshape(x, (product(mask.shape), *x.shape[mask.rank :]))
        where = ctx.reshape(mask, (product(mask.shape),))
        values = ctx.stretch(values, (values.shape[0], *lines.shape[1:]))
        return ctx.reshape(put_masked(ctx, lines, where, values, exactly=True), x.shape)
    values = ctx.reshape(values, values.shape[max(values.rank - after, 0) :])
    wide = ctx.reshape(mask, (*mask.shape, *(1,) * after))
    if accumulate:
        add = tirx.any if x.dtype == "bool" else lambda a, b: a + b
        values = pointwise(ctx, "add", add, x, values, dtype=x.dtype)
    return choose(ctx, wide, values, x, x.dtype)


def write_part(ctx: Context, x: Tensor, source: Tensor, levels: Sequence[Level]) -> Tensor:
    """``x``, a state, with ``source`` written to the part that ``levels`` describe. Touches the
    elements of ``source`` alone."""
    source = ctx.cast(source, x.dtype)
    over = source.shape or (1,)
    outer = next((axis for axis, size in enumerate(over) if size != 1), None)
    starts = [level.start for level in levels]

    def emit(scope: Any, buffers: Any, results: Any) -> None:
        with ExitStack() as loops:
            if ctx.on_gpu:
                point = loops.enter_context(a_thread_for_each(scope.shape(over)))
            else:
                point = [
                    loops.enter_context((parallel if axis == outer else serial)(scope.size(size)))
                    for axis, size in enumerate(over)
                ]
            where = point if source.rank else []
            for level in reversed(levels):
                at = from_front(scope, level.start, level.size)
                if not level.drops:
                    at = at + where[level.axis] * tirx.IntImm("int64", level.step)
                after = where[level.axis + (not level.drops) :]
                where = [*where[: level.axis], at, *after]
            # What a contract lets through lies within; no mistake of its may write elsewhere.
            for at, size in zip(where, x.shape, strict=True):
                if not all(isinstance(start, int) for start in starts):
                    loops.enter_context(T.If(at < scope.size(size)))
                    loops.enter_context(T.Then())
            store(results[0], buffers[1][tuple(point)], *where, lanes=1)

    operand = source if source.rank else ctx.reshape(source, (1,))
    return ctx.update("write_part", x, [operand], emit, (*over, *x.shape, *starts))


@converter("aten.slice_scatter.default", takes_halves=True)
def convert_slice_scatter(
    ctx: Context, x: Tensor, src: Tensor, dim: int, start: Any, end: Any, step: Any
) -> Tensor:
    axis = axis_of(dim, x.rank)
    if not isinstance(step, int):
        raise Unsupported("with a step that is not a constant")
    length = src.shape[axis]
    first = 0 if start is None else start

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        begin = from_front(scope, first, x.shape[axis])
        offset = position[axis] - begin
        stride = tirx.IntImm("int64", step)
        at = tirx.truncdiv(offset, stride)
        zero = tirx.IntImm("int64", 0)
        inside = tirx.all(
            offset >= zero, tirx.EQ(tirx.truncmod(offset, stride), zero), at < scope.size(length)
        )
        new = tensors[1](*position[:axis], at, *position[axis + 1 :])
        return tirx.if_then_else(inside, new, tensors[0](*position))

    return ctx.compute("slice_scatter", [x, ctx.cast(src, x.dtype)], x.shape, x.dtype, element)
