"""Images at another size, and images read at places that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..symbols import Size, as_shape
from ..tensor import Tensor
from .elementwise import is_float
from .registry import converter

_INDEX = "int64"


def integer(value: int) -> Any:
    return tirx.IntImm(_INDEX, value)


def _ratio(scope: Any, own: Size, out: Size, factor: Any, wide: str) -> Any:
    """Input pixels for each output pixel: from the factor that was asked for, else the sizes."""
    if factor is not None:
        return (
            scope.number(1.0 / factor, wide)
            if isinstance(factor, float)
            else (scope.number(1.0, wide) / scope.number(factor, wide))
        )
    return hidden(scope.size(own).astype(wide)) / scope.size(out).astype(wide)


def hidden(value: Any) -> Any:
    """The same float. TVM looks for the bounds of a quotient of sizes, as if it were an integer, and
    fails; it does not look behind bits."""
    bits = str(value.ty.dtype).replace("float", "int")
    return tirx.reinterpret(str(value.ty.dtype), tirx.reinterpret(bits, value))


def _clipped(value: Any, size: Any) -> Any:
    return tirx.max(tirx.min(value, size - integer(1)), integer(0))


def require_floats(x: Tensor) -> None:
    """Eager mixes bytes by weights of 16 bits, rounded in the one or the other way, by the CPU."""
    if not is_float(x.dtype):
        raise Unsupported(f"of {x.dtype}", "x.float(), and round() of the result")


@converter(
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
    "aten.upsample_nearest3d.vec",
    "aten._upsample_nearest_exact1d.vec",
    "aten._upsample_nearest_exact2d.vec",
    "aten._upsample_nearest_exact3d.vec",
    takes_halves=True,
)
def convert_nearest(
    ctx: Context, input: Tensor, output_size: Any, scale_factors: Sequence[Any] | None
) -> Tensor:
    assert ctx.node is not None
    exact = "exact" in str(ctx.node.target)
    of_images = not exact and input.rank == 4
    shape = as_shape(ctx.expected().shape)
    factors = scale_factors or (None,) * (input.rank - 2)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        where = []
        for p, own, out, factor in zip(
            position[2:], input.shape[2:], shape[2:], factors, strict=True
        ):
            # ATen computes in float32.
            ratio = _ratio(scope, own, out, factor, "float32")
            at = p.astype("float32")
            if exact:
                at = at + tirx.const(0.5, "float32")
            place = _clipped(tirx.floor(at * ratio).astype(_INDEX), scope.size(own))
            if of_images:  # ATen does so whatever the factor is
                double = tirx.EQ(scope.size(out), scope.size(own) * integer(2))
                place = tirx.Select(double, p.astype(_INDEX) // integer(2), place)
                same = tirx.EQ(scope.size(out), scope.size(own))
                place = tirx.Select(same, p.astype(_INDEX), place)
            where.append(place)
        return tensors[0](*position[:2], *where)

    return ctx.compute_image("nearest", [input], shape, input.dtype, element)


def _source(scope: Any, p: Any, own: Size, out: Size, factor: Any, corners: bool, wide: str) -> Any:
    """Where an output pixel lies in the input."""
    if corners:
        one = scope.size(out) - integer(1)
        steps = tirx.max(one, integer(1)).astype(wide)
        ratio = hidden((scope.size(own) - integer(1)).astype(wide)) / steps
        ratio = tirx.Select(one > integer(0), ratio, tirx.const(0, wide))
        return p.astype(wide) * ratio
    half = tirx.const(0.5, wide)
    return (p.astype(wide) + half) * _ratio(scope, own, out, factor, wide) - half


@converter(
    "aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec"
)
def convert_linear(
    ctx: Context,
    input: Tensor,
    output_size: Any,
    align_corners: bool,
    scale_factors: Sequence[Any] | None,
) -> Tensor:
    require_floats(input)
    dtype = input.dtype
    shape = as_shape(ctx.expected().shape)
    factors = scale_factors or (None,) * (input.rank - 2)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        sides = []
        for p, own, out, factor in zip(
            position[2:], input.shape[2:], shape[2:], factors, strict=True
        ):
            at = _source(scope, p, own, out, factor, align_corners, dtype)
            at = tirx.max(at, tirx.const(0, dtype))
            low = _clipped(tirx.floor(at).astype(_INDEX), scope.size(own))
            high = _clipped(low + integer(1), scope.size(own))
            share = at - low.astype(dtype)
            share = tirx.max(tirx.min(share, tirx.const(1, dtype)), tirx.const(0, dtype))
            # An axis that keeps its size is copied, whatever the factor is: no neighbour's NaN.
            copied = tirx.EQ(scope.size(out), scope.size(own))
            own_place = p.astype(_INDEX)
            low, high = (tirx.Select(copied, own_place, each) for each in (low, high))
            share = tirx.Select(copied, tirx.const(0, dtype), share)
            sides.append(((low, tirx.const(1, dtype) - share), (high, share)))

        def read(axis: int, where: list[Any]) -> Any:
            if axis == len(sides):
                return tensors[0](*position[:2], *where)
            (low, near), (high, far) = sides[axis]
            return near * read(axis + 1, [*where, low]) + far * read(axis + 1, [*where, high])

        return read(0, [])

    return ctx.compute_image("linear", [input], shape, dtype, element)


def _cubic(share: Any, dtype: str) -> list[Any]:
    """The weights of the four pixels around (Keys' kernel, a = -0.75)."""
    a = -0.75

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def near(x: Any) -> Any:
        return ((number(a + 2) * x - number(a + 3)) * x) * x + number(1)

    def far(x: Any) -> Any:
        return ((number(a) * x - number(5 * a)) * x + number(8 * a)) * x - number(4 * a)

    one = number(1)
    return [far(share + one), near(share), near(one - share), far(number(2) - share)]


@converter("aten.upsample_bicubic2d.vec")
def convert_bicubic(
    ctx: Context,
    input: Tensor,
    output_size: Any,
    align_corners: bool,
    scale_factors: Sequence[Any] | None,
) -> Tensor:
    require_floats(input)
    dtype = input.dtype
    shape = as_shape(ctx.expected().shape)
    factors = scale_factors or (None, None)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        taps = []
        for p, own, out, factor in zip(
            position[2:], input.shape[2:], shape[2:], factors, strict=True
        ):
            at = _source(scope, p, own, out, factor, align_corners, dtype)
            first = tirx.floor(at)
            weights = _cubic(at - first, dtype)
            places = [
                _clipped(first.astype(_INDEX) + integer(offset), scope.size(own))
                for offset in (-1, 0, 1, 2)
            ]
            taps.append(list(zip(places, weights, strict=True)))
        total = tirx.const(0, dtype)
        for row, weight in taps[0]:
            line = tirx.const(0, dtype)
            for column, share in taps[1]:
                line = line + share * tensors[0](*position[:2], row, column)
            total = total + weight * line
        return total

    return ctx.compute_image("bicubic", [input], shape, dtype, element)


_NEAREST, _BICUBIC = 1, 2
_ZEROS, _BORDER = 0, 1


@converter("aten.grid_sampler_2d.default")
def convert_grid_sampler(
    ctx: Context,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Tensor:
    """The grid is ``[n, h, w, 2]``, x before y, -1 to 1 over the image."""
    if interpolation_mode == _BICUBIC:
        raise Unsupported("with mode='bicubic'", "mode='bilinear'")
    if padding_mode not in (_ZEROS, _BORDER):
        raise Unsupported("with padding_mode='reflection'", "padding_mode='border'")
    dtype = input.dtype
    own = input.shape[2:]
    shape = as_shape(ctx.expected().shape)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        image, places = tensors
        number, channel, row, column = position

        def along(axis: int) -> Any:
            value = places(number, row, column, integer(1 - axis))
            size = scope.size(own[axis]).astype(dtype)
            half, one = tirx.const(0.5, dtype), tirx.const(1, dtype)
            if align_corners:
                at = (value + one) * half * (size - one)
            else:
                at = ((value + one) * size - one) * half
            if padding_mode == _BORDER:
                at = tirx.min(tirx.max(at, tirx.const(0, dtype)), size - one)
            return at

        def read(at: Sequence[Any]) -> Any:
            # Outside by more than an integer holds, or NaN: no pixel.
            sizes = [scope.size(size) for size in own]
            inside = [
                condition
                for place, size in zip(at, sizes, strict=True)
                for condition in (
                    place >= tirx.const(0, dtype),
                    place < size.astype(dtype),
                )
            ]
            where = [
                _clipped(
                    tirx.if_then_else(tirx.all(*inside), place, tirx.const(0, dtype)).astype(
                        _INDEX
                    ),
                    size,
                )
                for place, size in zip(at, sizes, strict=True)
            ]
            return tirx.if_then_else(
                tirx.all(*inside), image(number, channel, *where), tirx.const(0, dtype)
            )

        y, x = along(0), along(1)
        if interpolation_mode == _NEAREST:
            return read([tirx.nearbyint(y), tirx.nearbyint(x)])
        top, left = tirx.floor(y), tirx.floor(x)
        one = tirx.const(1, dtype)
        down, right = y - top, x - left
        return (
            read([top, left]) * (one - down) * (one - right)
            + read([top, left + one]) * (one - down) * right
            + read([top + one, left]) * down * (one - right)
            + read([top + one, left + one]) * down * right
        )

    return ctx.compute("grid_sample", [input, grid], shape, dtype, element)
