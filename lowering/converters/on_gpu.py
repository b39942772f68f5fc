"""Kernels for a GPU, as tensor expressions that `cuda.schedule` gives their threads.

Weights are read from the packed forms that the CPU's kernels read, so that the targets of one
bundle share them: GEMM's panels ``[ceil(n/32)][k][32]``, in which neighbouring threads read
neighbouring columns, suit a GPU as well. Sums are of float32 for all floats but float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ..context import Context
from ..symbols import Shape, Size, Symbols
from ..tensor import HALVES, Tensor

PANEL = 32


def _int(value: int) -> Any:
    return tirx.IntImm("int64", value)


def _over(scope: Symbols, size: Size, name: str) -> Any:
    return te.reduce_axis((_int(0), scope.size(size)), name=name)


def _wide(value: Any) -> Any:
    return value.astype("float32") if str(value.ty.dtype) in HALVES else value


def gemm(ctx: Context, x: Tensor, packed: Tensor, n: int) -> Tensor:
    """x ``[m, k]`` by a weight in panels, ``[m, n]`` in float32."""
    m, k = x.shape

    def build(scope: Symbols, left: te.Tensor, right: te.Tensor) -> te.Tensor:
        over = _over(scope, k, "k")

        def element(row: Any, column: Any) -> Any:
            panel, lane = tirx.floordiv(column, _int(PANEL)), tirx.floormod(column, _int(PANEL))
            return te.sum(
                _wide(left(row, over.var)) * _wide(right(panel, over.var, lane)), axis=[over]
            )

        return te.compute(scope.shape((m, n)), element, name="matmul")

    ctx.templates += 1
    return ctx.kernel("matmul", build, [x, packed], (m, n), "float32")


def conv_last(
    ctx: Context,
    image: Tensor,
    packed: Tensor,
    shape: Shape,
    *,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    depthwise: bool,
) -> Tensor:
    """A convolution of ``[n, h, w, c]`` in float32 that gives ``shape``, ``[n, ho, wo, o]``; the
    weight as `kernels.conv_weights.packing` gives it. Padding is of zeros."""
    channels = image.shape[3]

    def build(scope: Symbols, source: te.Tensor, weight: te.Tensor) -> te.Tensor:
        padded = _padded(scope, source, image.shape, (0, *padding, 0))
        taps = [_over(scope, size, name) for size, name in zip(window, "yx", strict=True)]

        def at(row: Any, column: Any) -> list[Any]:
            return [
                p * _int(step) + tap.var * _int(apart)
                for p, step, tap, apart in zip((row, column), stride, taps, dilation, strict=True)
            ]

        def each_alone(number: Any, row: Any, column: Any, filter: Any) -> Any:
            value = padded(number, *at(row, column), filter)
            return te.sum(value * weight(*(tap.var for tap in taps), _int(0), filter), axis=taps)

        over = _over(scope, channels, "c")

        def all_channels(number: Any, row: Any, column: Any, filter: Any) -> Any:
            step = (taps[0].var * _int(window[1]) + taps[1].var) * scope.size(channels) + over.var
            panel, lane = tirx.floordiv(filter, _int(PANEL)), tirx.floormod(filter, _int(PANEL))
            value = padded(number, *at(row, column), over.var)
            return te.sum(value * weight(panel, step, lane), axis=[*taps, over])

        element = each_alone if depthwise else all_channels
        return te.compute(scope.shape(shape), element, name="conv")

    ctx.templates += 1
    return ctx.kernel("conv", build, [image, packed], shape, "float32")


def _padded(scope: Symbols, source: te.Tensor, shape: Shape, borders: Sequence[int]) -> te.Tensor:
    if not any(borders):
        return source

    def element(*position: Any) -> Any:
        where = [p - _int(border) for p, border in zip(position, borders, strict=True)]
        inside = [
            condition
            for at, size, border in zip(where, shape, borders, strict=True)
            if border
            for condition in (at >= _int(0), at < scope.size(size))
        ]
        zero = tirx.const(0, source.dtype)
        return tirx.if_then_else(tirx.all(*inside), source(*where), zero)

    wide = tuple(size + 2 * border for size, border in zip(shape, borders, strict=True))
    return te.compute(scope.shape(wide), element, name="padded")


# --- rows -----------------------------------------------------------------------------------------


def softmax(ctx: Context, x: Tensor, *, log: bool) -> Tensor:
    """Of each row of ``[rows, width]``, in one kernel."""
    rows, width = x.shape

    def build(scope: Symbols, source: te.Tensor) -> te.Tensor:
        a, b = _over(scope, width, "a"), _over(scope, width, "b")
        one = scope.shape((rows,))
        highest = te.compute(one, lambda i: te.max(source(i, a.var), axis=[a]), name="highest")

        def power(i: Any, j: Any) -> Any:
            return tirx.exp(source(i, j) - highest(i))

        total = te.compute(one, lambda i: te.sum(power(i, b.var), axis=[b]), name="total")

        def element(i: Any, j: Any) -> Any:
            if log:
                return source(i, j) - highest(i) - tirx.log(total(i))
            return power(i, j) / total(i)

        return te.compute(scope.shape((rows, width)), element, name="softmax")

    ctx.templates += 1
    return ctx.kernel("softmax", build, [x], x.shape, x.dtype)


def layer_norm(
    ctx: Context,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Of each row of x + residual, ``[rows, width]``, in one kernel; in two passes, as `variance`."""
    rows, width = x.shape
    extra = [t for t in (residual, weight, bias) if t is not None]

    def build(scope: Symbols, source: te.Tensor, *others: te.Tensor) -> te.Tensor:
        rest = list(others)
        added = rest.pop(0) if residual is not None else None
        scale = rest.pop(0) if weight is not None else None
        offset = rest.pop(0) if bias is not None else None
        a, b = _over(scope, width, "a"), _over(scope, width, "b")
        one = scope.shape((rows,))
        count = scope.size(width).astype("float32")

        def value(i: Any, j: Any) -> Any:
            return source(i, j) if added is None else source(i, j) + added(i, j)

        total = te.compute(one, lambda i: te.sum(value(i, a.var), axis=[a]), name="total")

        def apart(i: Any, j: Any) -> Any:
            return value(i, j) - total(i) / count

        squares = te.compute(
            one, lambda i: te.sum(apart(i, b.var) * apart(i, b.var), axis=[b]), name="squares"
        )

        def element(i: Any, j: Any) -> Any:
            spread = tirx.sqrt(squares(i) / count + tirx.const(eps, "float32"))
            result = apart(i, j) * (tirx.const(1, "float32") / spread)
            result = result if scale is None else result * scale(j)
            return result if offset is None else result + offset(j)

        return te.compute(scope.shape((rows, width)), element, name="layer_norm")

    ctx.templates += 1
    return ctx.kernel("layer_norm", build, [x, *extra], x.shape, "float32")


def rms_norm(ctx: Context, eps: float, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Of each row of ``[rows, width]``, in one kernel."""
    rows, width = x.shape
    extra = [] if weight is None else [weight]

    def build(scope: Symbols, source: te.Tensor, *scale: te.Tensor) -> te.Tensor:
        over = _over(scope, width, "a")
        count = scope.size(width).astype("float32")
        squares = te.compute(
            scope.shape((rows,)),
            lambda i: te.sum(source(i, over.var) * source(i, over.var), axis=[over]),
            name="squares",
        )

        def element(i: Any, j: Any) -> Any:
            spread = tirx.sqrt(squares(i) / count + tirx.const(eps, "float32"))
            result = source(i, j) / spread
            return result * scale[0](j) if scale else result

        return te.compute(scope.shape((rows, width)), element, name="rms_norm")

    ctx.templates += 1
    return ctx.kernel("rms_norm", build, [x, *extra], x.shape, "float32")
