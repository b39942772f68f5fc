"""Views and moves: the same elements in another order or shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from ..broadcasting import axis_of
from ..context import Context, Unsupported
from ..layout import to_first, to_last
from ..symbols import Shape, Size, as_shape, as_size, product, same
from ..tensor import Tensor
from .registry import converter


def to_expected(ctx: Context, x: Tensor) -> Tensor:
    return ctx.reshape(x, as_shape(ctx.expected().shape))


@converter(
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", takes_halves=True
)
def convert_view(ctx: Context, x: Tensor, size: Any = None, shape: Any = None) -> Tensor:
    return to_expected(ctx, x)


@converter(
    "aten.unsqueeze.default", "aten.squeeze.dim", "aten.flatten.using_ints", takes_halves=True
)
def convert_unsqueeze(
    ctx: Context, x: Tensor, dim: Any = None, start_dim: Any = None, end_dim: Any = None
) -> Tensor:
    return to_expected(ctx, x)


@converter("aten.squeeze.default", "aten.squeeze.dims", takes_halves=True)
def convert_squeeze(ctx: Context, x: Tensor, dim: Any = None) -> Tensor:
    return to_expected(ctx, x)


def permute(ctx: Context, x: Tensor, order: Sequence[int]) -> Tensor:
    """Axis ``i`` of the result is axis ``order[i]`` of the operand."""
    order = [axis_of(axis, x.rank) for axis in order]
    shape = tuple(x.shape[axis] for axis in order)
    if x.last is not None and tuple(order) == to_last(x.rank):
        return ctx.with_channels_last(x)
    if ctx.node in ctx.channels_last and tuple(order) == to_first(x.rank):
        return ctx.as_image(x)
    moving = [axis for axis in order if x.shape[axis] != 1]
    if moving == sorted(moving):  # only axes of one element move
        return ctx.reshape(x, shape)
    inverse = [order.index(axis) for axis in range(x.rank)]

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](*(position[axis] for axis in inverse))

    return ctx.compute("permute", [x], shape, x.dtype, element)


@converter("aten.permute.default", takes_halves=True)
def convert_permute(ctx: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    return permute(ctx, x, dims)


@converter("aten.transpose.int", takes_halves=True)
def convert_transpose(ctx: Context, x: Tensor, dim0: int, dim1: int) -> Tensor:
    if not x.rank:
        return x
    order = list(range(x.rank))
    a, b = axis_of(dim0, x.rank), axis_of(dim1, x.rank)
    order[a], order[b] = b, a
    return permute(ctx, x, order)


@converter("aten.t.default", takes_halves=True)
def convert_t(ctx: Context, x: Tensor) -> Tensor:
    return permute(ctx, x, list(range(x.rank))[::-1])


@converter("aten.expand.default", takes_halves=True)
def convert_expand(ctx: Context, x: Tensor, size: Any) -> Tensor:
    shape = as_shape(ctx.expected().shape)
    if shape == x.shape:
        return x
    tail = shape[len(shape) - x.rank :]
    stretched = []
    for old, new in zip(x.shape, tail, strict=True):
        stretched.append(old == 1)
        if old != 1 and same(old, new) is False:
            raise Unsupported(f"of an axis of size {old} to {new}")

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        inner = position[len(shape) - x.rank :]
        zero = tirx.IntImm("int64", 0)
        return tensors[0](
            *(zero if one else index for one, index in zip(stretched, inner, strict=True))
        )

    return ctx.compute("expand", [x], shape, x.dtype, element)


def from_front(scope: Any, index: Size, size: Size) -> Any:
    """An index or a bound that may be negative, counted from the front, not below 0."""
    if isinstance(index, int) and index >= 0:
        return scope.size(index)
    if isinstance(index, int):
        if isinstance(size, int):
            return scope.size(max(0, size + index))
        return tirx.max(scope.size(size + index), tirx.IntImm("int64", 0))
    start = scope.size(index)
    if index.is_nonnegative:
        return start
    wrapped = tirx.max(start + scope.size(size), tirx.IntImm("int64", 0))
    return tirx.Select(start < tirx.IntImm("int64", 0), wrapped, start)


def part(ctx: Context, x: Tensor, axis: int, start: Size, step: int, length: Size) -> Tensor:
    """``length`` elements along an axis, each ``step`` after the last, from ``start`` on."""
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    if start == 0 and step == 1 and same(length, x.shape[axis]):
        return ctx.reshape(x, shape)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        first = from_front(scope, start, x.shape[axis])
        at = first + position[axis] * tirx.IntImm("int64", step)
        return tensors[0](*position[:axis], at, *position[axis + 1 :])

    return ctx.compute("slice", [x], shape, x.dtype, element)


@converter("aten.slice.Tensor", takes_halves=True)
def convert_slice(ctx: Context, x: Tensor, dim: int, start: Any, end: Any, step: Any) -> Tensor:
    if not isinstance(step, int):
        raise Unsupported("with a step that is not a constant")
    axis = axis_of(dim, x.rank)
    # The trace knows the length; `end` adds nothing to it.
    length = as_size(ctx.expected().shape[axis])
    return part(ctx, x, axis, 0 if start is None else start, step, length)


@converter("aten.narrow.default", takes_halves=True)
def convert_narrow(ctx: Context, x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    axis = axis_of(dim, x.rank)
    return part(ctx, x, axis, start, 1, as_size(ctx.expected().shape[axis]))


def pick(ctx: Context, x: Tensor, axis: int, index: Size) -> Tensor:
    """One position along an axis, which vanishes."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        at = from_front(scope, index, x.shape[axis])
        return tensors[0](*position[:axis], at, *position[axis:])

    return ctx.compute("select", [x], shape, x.dtype, element)


@converter("aten.select.int", takes_halves=True)
def convert_select(ctx: Context, x: Tensor, dim: int, index: Any) -> Tensor:
    return pick(ctx, x, axis_of(dim, x.rank), index)


@converter("aten.unbind.int", takes_halves=True)
def convert_unbind(ctx: Context, x: Tensor, dim: int) -> list[Tensor]:
    axis = axis_of(dim, x.rank)
    return [pick(ctx, x, axis, position) for position in range(len(ctx.expected()))]


@converter(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    takes_halves=True,
)
def convert_split(
    ctx: Context,
    x: Tensor,
    dim: int,
    split_size: Any = None,
    split_sizes: Any = None,
    chunks: Any = None,
) -> list[Tensor]:
    axis = axis_of(dim, x.rank)
    start: Size = 0
    pieces = []
    for position in range(len(ctx.expected())):
        length = as_size(ctx.expected(position).shape[axis])
        pieces.append(part(ctx, x, axis, start, 1, length))
        start = as_size(start + length)
    return pieces


def concatenate(ctx: Context, tensors: Sequence[Tensor], axis: int, dtype: str) -> Tensor:
    lengths = [tensor.shape[axis] for tensor in tensors]
    starts: list[Size] = [0]
    for length in lengths:
        starts.append(as_size(starts[-1] + length))
    first = tensors[0].shape
    shape: Shape = (*first[:axis], starts[-1], *first[axis + 1 :])

    def element(scope: Any, sources: Any, position: tuple[Any, ...]) -> Any:
        at = position[axis]

        def read(number: int) -> Any:
            inner = at - scope.size(starts[number])
            return sources[number](*position[:axis], inner, *position[axis + 1 :])

        value = read(len(sources) - 1)
        for number in reversed(range(len(sources) - 1)):
            # A branch, not a select: the other side would read outside of its tensor.
            value = tirx.if_then_else(at < scope.size(starts[number + 1]), read(number), value)
        return value

    return ctx.compute("concatenate", [ctx.cast(t, dtype) for t in tensors], shape, dtype, element)


@converter("aten.cat.default", takes_halves=True)
def convert_cat(ctx: Context, tensors: Sequence[Tensor], dim: int) -> Tensor:
    dtype = str(ctx.expected().dtype).removeprefix("torch.")
    # torch passes over tensors of shape (0,), whatever the rank of the others.
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)] or list(tensors[:1])
    if len(tensors) == 1:
        return ctx.cast(tensors[0], dtype)
    axis = axis_of(dim, tensors[0].rank)
    if any(tensor.last is not None for tensor in tensors):
        moved = [ctx.with_channels_last(tensor) for tensor in tensors]
        return ctx.as_image(concatenate(ctx, moved, to_last(tensors[0].rank).index(axis), dtype))
    return concatenate(ctx, tensors, axis, dtype)


@converter("aten.stack.default", takes_halves=True)
def convert_stack(ctx: Context, tensors: Sequence[Tensor], dim: int) -> Tensor:
    dtype = str(ctx.expected().dtype).removeprefix("torch.")
    axis = axis_of(dim, tensors[0].rank + 1)
    widened = [
        ctx.reshape(tensor, (*tensor.shape[:axis], 1, *tensor.shape[axis:])) for tensor in tensors
    ]
    return concatenate(ctx, widened, axis, dtype)


@converter("aten.repeat.default", takes_halves=True)
def convert_repeat(ctx: Context, x: Tensor, repeats: Sequence[Any]) -> Tensor:
    shape = as_shape(ctx.expected().shape)
    inner = (1,) * (len(repeats) - x.rank) + x.shape
    wide = ctx.reshape(x, inner)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](
            *(
                tirx.floormod(index, scope.size(size or 1))
                if size != 1
                else tirx.IntImm("int64", 0)
                for index, size in zip(position, inner, strict=True)
            )
        )

    return ctx.compute("repeat", [wide], shape, x.dtype, element)


@converter("aten.flip.default", takes_halves=True)
def convert_flip(ctx: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {axis_of(axis, x.rank) for axis in dims}

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](
            *(
                scope.size(x.shape[axis]) - index - tirx.IntImm("int64", 1)
                if axis in flipped
                else index
                for axis, index in enumerate(position)
            )
        )

    return ctx.compute("flip", [x], x.shape, x.dtype, element)


@converter("aten.roll.default", takes_halves=True)
def convert_roll(ctx: Context, x: Tensor, shifts: Sequence[Any], dims: Sequence[int]) -> Tensor:
    if not dims:
        flat = ctx.reshape(x, (product(x.shape),))
        return ctx.reshape(_roll(ctx, flat, {0: shifts[0]}), x.shape)
    return _roll(ctx, x, {axis_of(a, x.rank): s for a, s in zip(dims, shifts, strict=True)})


def _roll(ctx: Context, x: Tensor, shifts: dict[int, Size]) -> Tensor:
    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](
            *(
                tirx.floormod(index - scope.size(shifts[axis]), scope.size(x.shape[axis] or 1))
                if axis in shifts
                else index
                for axis, index in enumerate(position)
            )
        )

    return ctx.compute("roll", [x], x.shape, x.dtype, element)


def _within(at: Any, size: Any) -> Any:
    one, zero = tirx.IntImm("int64", 1), tirx.IntImm("int64", 0)
    return tirx.max(tirx.min(at, size - one), zero)


def _reflected(at: Any, size: Any) -> Any:
    one, zero = tirx.IntImm("int64", 1), tirx.IntImm("int64", 0)
    at = tirx.Select(at < zero, zero - at, at)
    return _within(tirx.Select(at >= size, (size - one) * tirx.IntImm("int64", 2) - at, at), size)


def _around(at: Any, size: Any) -> Any:
    at = tirx.Select(at < tirx.IntImm("int64", 0), at + size, at)
    return _within(tirx.Select(at >= size, at - size, at), size)


# Which element stands at a position outside. torch's own guards keep borders shorter than the axis.
_BEYOND: dict[str, Callable[[Any, Any], Any]] = {
    "reflect": _reflected,
    "replicate": _within,
    "circular": _around,
}


@converter("aten.constant_pad_nd.default", "aten.pad.default", takes_halves=True)
def convert_pad(
    ctx: Context, x: Tensor, pad: Sequence[Any], value: Any, mode: str = "constant"
) -> Tensor:
    if mode not in ("constant", *_BEYOND):
        raise Unsupported(f"with mode={mode!r}", "mode='constant'")
    shape = as_shape(ctx.expected().shape)
    before: list[Size] = [0] * x.rank
    for number in range(len(pad) // 2):
        before[x.rank - 1 - number] = pad[2 * number]
    fill = 0 if value is None else value

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        indices = []
        inside = []
        for axis, index in enumerate(position):
            if before[axis] == 0 and same(shape[axis], x.shape[axis]):
                indices.append(index)
                continue
            at = index - scope.size(before[axis])
            if mode != "constant":
                indices.append(_BEYOND[mode](at, scope.size(x.shape[axis])))
                continue
            indices.append(at)
            inside += [at >= tirx.IntImm("int64", 0), at < scope.size(x.shape[axis])]
        if not inside:
            return tensors[0](*indices)
        read = tensors[0](*indices)
        return tirx.if_then_else(tirx.all(*inside), read, scope.number(fill, x.dtype))

    return ctx.compute_image("pad", [x], shape, x.dtype, element)


@converter("aten.unfold.default", takes_halves=True)
def convert_unfold(ctx: Context, x: Tensor, dimension: int, size: Any, step: int) -> Tensor:
    """Windows of ``size`` along an axis, ``step`` apart, as a new last axis."""
    if not x.rank:
        raise Unsupported("of a tensor without axes")
    axis = axis_of(dimension, x.rank)

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        *where, inner = position
        where[axis] = where[axis] * tirx.IntImm("int64", step) + inner
        return tensors[0](*where)

    return ctx.compute("unfold", [x], as_shape(ctx.expected().shape), x.dtype, element)


@converter("aten.diagonal.default", takes_halves=True)
def convert_diagonal(ctx: Context, x: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    first, second = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    others = [axis for axis in range(x.rank) if axis not in (first, second)]

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        *outer, along = position
        where: dict[int, Any] = dict(zip(others, outer, strict=True))
        where[first] = along + tirx.IntImm("int64", max(-offset, 0))
        where[second] = along + tirx.IntImm("int64", max(offset, 0))
        return tensors[0](*(where[axis] for axis in range(x.rank)))

    return ctx.compute("diagonal", [x], as_shape(ctx.expected().shape), x.dtype, element)
