"""Convolutions over one, two or three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ..context import Context, Unsupported
from ..symbols import Symbols, as_shape
from ..tensor import Tensor
from .elementwise import pointwise
from .registry import converter


@converter("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def convert_conv(
    ctx: Context,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    axes = weight.rank - 2
    batched = input if input.rank == weight.rank else ctx.reshape(input, (1, *input.shape))
    result = convolve(
        ctx,
        batched,
        weight,
        bias,
        stride=_each(stride, axes),
        padding=_each(padding, axes),
        dilation=_each(dilation, axes),
        groups=groups,
    )
    return ctx.reshape(result, as_shape(ctx.expected().shape))


@converter("aten.convolution.default")
def convert_convolution(
    ctx: Context,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    if transposed:
        raise Unsupported("with transposed=True")
    return convert_conv(ctx, input, weight, bias, stride, padding, dilation, groups)


def _each(value: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def convolve(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """``[n, c, …]`` by ``[o, c/groups, …]``: correlation, zeros outside."""
    expected = as_shape(ctx.expected().shape)
    shape = expected if len(expected) == x.rank else (1, *expected)
    outputs, inputs, *window = weight.shape
    if not all(isinstance(size, int) for size in weight.shape):
        raise Unsupported("with a weight whose shape varies")
    per_group = outputs // groups
    zero = tirx.IntImm("int64", 0)

    def build(scope: Symbols, source: te.Tensor, kernel: te.Tensor) -> te.Tensor:
        def padded(*position: Any) -> Any:
            where = [
                p - tirx.IntImm("int64", b) for p, b in zip(position[2:], padding, strict=True)
            ]
            inside = [
                condition
                for at, size in zip(where, x.shape[2:], strict=True)
                for condition in (at >= zero, at < scope.size(size))
            ]
            value = source(*position[:2], *where)
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, x.dtype))

        wide = [size + 2 * border for size, border in zip(x.shape[2:], padding, strict=True)]
        filled = te.compute(scope.shape((*x.shape[:2], *wide)), padded, name="padded")
        image = filled if any(padding) else source
        channel = te.reduce_axis((zero, scope.size(inputs)), name="rc")
        offsets = [te.reduce_axis((zero, scope.size(size)), name="rk") for size in window]

        def element(*position: Any) -> Any:
            number, output, *at = position
            group = tirx.floordiv(output, tirx.IntImm("int64", per_group))
            where = [
                p * tirx.IntImm("int64", s) + o.var * tirx.IntImm("int64", d)
                for p, s, o, d in zip(at, stride, offsets, dilation, strict=True)
            ]
            value = image(number, group * scope.size(inputs) + channel.var, *where)
            factor = kernel(output, channel.var, *(o.var for o in offsets))
            return te.sum(value * factor, axis=[channel, *offsets])

        return te.compute(scope.shape(shape), element, name="conv")

    result = ctx.kernel("conv", build, [x, weight], shape, x.dtype)
    if bias is None:
        return result
    column = ctx.reshape(bias, (outputs, *(1 for _ in window)))
    return pointwise(ctx, "add", lambda a, b: a + b, result, column, dtype=x.dtype)
