"""Maximum and average over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ..context import Context, Unsupported
from ..symbols import Symbols, as_shape
from ..tensor import Tensor
from .elementwise import is_float, pointwise
from .reduce import mean
from .registry import converter


def _each(value: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def pool(
    ctx: Context,
    x: Tensor,
    reducer: Any,
    outside: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Reduce windows over the last axes; positions outside count as ``outside``."""
    axes = len(kernel)
    shape = as_shape(ctx.expected(*_first(ctx)).shape)
    sizes = x.shape[x.rank - axes :]
    zero = tirx.IntImm("int64", 0)

    def build(scope: Symbols, source: te.Tensor) -> te.Tensor:
        window = [te.reduce_axis((zero, scope.size(size)), name="rk") for size in kernel]

        def element(*position: Any) -> Any:
            outer, at = position[: x.rank - axes], position[x.rank - axes :]
            where = [
                p * tirx.IntImm("int64", s)
                + k.var * tirx.IntImm("int64", d)
                - tirx.IntImm("int64", b)
                for p, s, k, d, b in zip(at, stride, window, dilation, padding, strict=True)
            ]
            inside = [
                condition
                for index, size in zip(where, sizes, strict=True)
                for condition in (index >= zero, index < scope.size(size))
            ]
            value = tirx.if_then_else(tirx.all(*inside), source(*outer, *where), outside)
            return reducer(value, axis=window)

        return te.compute(scope.shape(shape), element, name="pool")

    return ctx.kernel("pool", build, [x], shape, x.dtype)


def _first(ctx: Context) -> tuple[int, ...]:
    assert ctx.node is not None
    return (0,) if isinstance(ctx.node.meta["val"], (tuple, list)) else ()


def _max_pool(
    ctx: Context,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    axes: int,
) -> Tensor:
    kernel = _each(kernel_size, axes)
    lowest = tirx.const(-math.inf, x.dtype) if is_float(x.dtype) else tirx.min_value(x.dtype)
    return pool(
        ctx,
        x,
        te.max,
        lowest,
        kernel,
        _each(stride, axes) if stride else kernel,
        _each(padding, axes),
        _each(dilation, axes),
    )


@converter("aten.max_pool1d.default")
def convert_max_pool1d(
    ctx: Context,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> Tensor:
    return _max_pool(ctx, x, kernel_size, stride, padding, dilation, 1)


@converter("aten.max_pool2d.default")
def convert_max_pool2d(
    ctx: Context,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> Tensor:
    return _max_pool(ctx, x, kernel_size, stride, padding, dilation, 2)


@converter("aten.max_pool2d_with_indices.default")
def convert_max_pool2d_with_indices(
    ctx: Context,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> list[Tensor | None]:
    return [_max_pool(ctx, x, kernel_size, stride, padding, dilation, 2), None]


@converter("aten.avg_pool1d.default", "aten.avg_pool2d.default")
def convert_avg_pool(
    ctx: Context,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Tensor:
    assert ctx.node is not None
    axes = 1 if "avg_pool1d" in str(ctx.node.target) else 2
    kernel, borders = _each(kernel_size, axes), _each(padding, axes)
    steps = _each(stride, axes) if stride else kernel
    sums = pool(ctx, x, te.sum, tirx.const(0, x.dtype), kernel, steps, borders, (1,) * axes)
    sizes = x.shape[x.rank - axes :]

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        count: Any = tirx.IntImm("int64", 1)
        at = position[x.rank - axes :]
        for p, step, border, width, size in zip(at, steps, borders, kernel, sizes, strict=True):
            start = p * tirx.IntImm("int64", step) - tirx.IntImm("int64", border)
            # A window never counts beyond the padding, which ceil_mode may reach over.
            end = tirx.min(start + tirx.IntImm("int64", width), scope.size(size + border))
            if not count_include_pad:
                start = tirx.max(start, tirx.IntImm("int64", 0))
                end = tirx.min(end, scope.size(size))
            count = count * (end - start)
        if divisor_override is not None:
            count = tirx.IntImm("int64", divisor_override)
        return tensors[0](*position) / count.astype(x.dtype)

    return ctx.compute("average", [sums], sums.shape, x.dtype, element)


@converter(
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default",
)
def convert_adaptive_avg_pool(ctx: Context, x: Tensor, output_size: Sequence[Any]) -> Tensor:
    axes = len(output_size)
    sizes = x.shape[x.rank - axes :]
    if all(size == 1 for size in output_size):
        return mean(ctx, x, list(range(x.rank - axes, x.rank)), True, x.dtype)
    if not all(isinstance(size, int) for size in (*sizes, *output_size)):
        raise Unsupported("of axes that vary", "pool to size 1")
    widths = []
    for size, out in zip(sizes, output_size, strict=True):
        if size % out:
            raise Unsupported(f"from {size} to {out}", "an output size that divides the input's")
        widths.append(size // out)
    sums = pool(ctx, x, te.sum, tirx.const(0, x.dtype), widths, widths, (0,) * axes, (1,) * axes)
    count = 1
    for width in widths:
        count *= width
    return pointwise(ctx, "average", lambda a, b: a / b, sums, count, dtype=x.dtype)
