"""Convolution in two dimensions with the channels last, NHWC.

A tile of the result is a run of pixels of one line by some vectors of output channels, and adds up
products of input elements and panels of the weight: GEMM's own tile, with the pixels as its rows.
What a kernel line meets of an input line lies side by side there (the columns of the kernel, each
with all its channels), so that the sum runs over contiguous pieces of both (`conv_tiles`). Groups that
make few output channels go another way (`conv_vectors`).

Where there is padding, the input is copied with its borders first.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .conv_tiles import emit_dense
from .conv_vectors import emit_by_vectors
from .conv_weights import Convolution, Write, packed_shape
from .half import load_wide, narrow, rounded
from .prim_func import (
    Expr,
    dim,
    div,
    index,
    let,
    load,
    mod,
    parallel,
    param,
    prim_func,
    store,
    vector,
    workspace,
)
from .row import over
from .vector_math import activate


def conv2d(conv: Convolution, target: CpuTarget) -> tirx.PrimFunc:
    """Y = act(conv(X, W) + bias + residual), for any batch, height and width, in float32; all but X are
    stored as ``dtype``, X as ``input_dtype``.

    Parameters: X ``[n, h, w * channels]``, the weight as ``packing`` gives it, stored as
    ``weight_dtype`` where that is given, scale in float32 and bias ``[filters]`` and residual (as Y)
    where asked for, Y ``[n, ho, wo, filters]``. Padding is of zeros, the same on both sides.
    """

    def declare() -> Callable[[], None]:
        n, h, row, ho, wo = (dim(None, name) for name in ("n", "h", "row", "ho", "wo"))
        x = param("X", (n, h, row), conv.input_dtype)
        weight = param("W", packed_shape(conv), conv.weight_dtype or conv.dtype)
        scale = param("scale", (conv.filters,)) if conv.scaled else None
        bias = param("bias", (conv.filters,), conv.dtype) if conv.bias else None
        shape = (n, ho, wo, conv.filters)
        residual = param("residual", shape, conv.dtype) if conv.residual else None
        y = param("Y", shape, conv.dtype)

        def write_to(results: list[tirx.Buffer]) -> Write:
            def write(value: Expr, channel: Expr, at: Expr, lanes: int) -> None:
                # Rounded after each op, as torch rounds the result of each.
                if scale is not None:
                    value = value * load(scale, channel, lanes=lanes)
                if bias is not None:
                    value = value + load_wide(bias, channel, lanes=lanes)
                if residual is not None:
                    value = rounded(value, conv.dtype, lanes)
                    value = value + load_wide(results[1], at, lanes=lanes)
                if conv.activation is not None:
                    if conv.activation != "relu":  # for which rounding may come after as well
                        value = rounded(value, conv.dtype, lanes)
                    value = activate(conv.activation, value, lanes)
                store(results[0], narrow(value, conv.dtype, lanes), at, lanes=lanes)

            return write

        def body() -> None:
            write = write_to([_flat(each) for each in (y, residual) if each is not None])
            lines, wide = h, row
            source = _flat(x)
            if any(conv.padding):
                lines = let(h + index(2 * conv.padding[0]), "lines")
                wide = let(row + index(2 * conv.padding[1] * conv.channels), "wide")
                source = _padded(conv, source, n, h, row, lines, wide, target)
            emit = emit_by_vectors if conv.by_vectors else emit_dense
            emit(conv, source, weight, n, lines, wide, ho, wo, target, write)

        return body

    return prim_func(f"conv_last_{conv.channels}_{conv.filters}", declare)


def _flat(buffer: tirx.Buffer) -> tirx.Buffer:
    """The same memory along one axis. TVM takes exponential time over the indices of a buffer with
    several dynamic sizes; there the kernel counts by itself."""
    size = T.int64(1)
    for extent in buffer.shape:
        size = size * extent
    return T.decl_buffer((size,), buffer.dtype, data=buffer.data)


def _padded(
    conv: Convolution,
    x: tirx.Buffer,
    n: Expr,
    h: Expr,
    row: Expr,
    lines: Expr,
    wide: Expr,
    target: CpuTarget,
) -> tirx.Buffer:
    """The input with its borders, ``[n, lines, wide]``, along one axis."""
    (py, px), c = conv.padding, conv.channels
    padded = workspace((n * lines * wide,))
    with parallel(n * lines) as task:
        item, line = let(div(task, lines)), let(mod(task, lines))
        start = let(task * wide)

        def zeros(first: Expr, count: Expr) -> None:
            over(
                count,
                target.lanes,
                lambda j, lanes: store(padded, vector(0.0, lanes), first + j, lanes=lanes),
            )

        with T.If(tirx.all(line >= index(py), line < h + index(py))):
            with T.Then():
                source = let((item * h + line - index(py)) * row)
                inner = let(start + index(px * c))
                if px:
                    zeros(start, index(px * c))
                    zeros(let(inner + row), index(px * c))
                over(
                    row,
                    target.lanes,
                    lambda j, lanes: store(
                        padded, load_wide(x, source + j, lanes=lanes), inner + j, lanes=lanes
                    ),
                )
            with T.Else():
                zeros(start, wide)
    return padded
