"""Fourier transforms: of complex numbers, of real ones, and back to real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from tvm import tirx

from ..broadcasting import axis_of
from ..context import Context
from ..kernels.fft import transform
from ..kernels.prim_func import div, index, let, mod, store
from ..symbols import Shape, Size, as_shape, as_size, product
from ..tensor import Complex, Tensor
from .elementwise import pointwise
from .registry import complex_converter

_BY_ROOT, _BY_SIZE = 1, 2  # ATen's fft_norm_mode


@complex_converter("aten._fft_c2c.default")
def convert_c2c(
    ctx: Context, x: Complex, dim: Sequence[int], normalization: int, forward: bool
) -> Complex:
    value = x
    for axis in _axes(dim, x.rank):
        value = _along(ctx, value, axis, x.shape[axis], not forward)
    return _scaled(ctx, value, [x.shape[axis] for axis in _axes(dim, x.rank)], normalization)


@complex_converter("aten._fft_r2c.default")
def convert_r2c(
    ctx: Context, x: Tensor, dim: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    *others, last = _axes(dim, x.rank)
    kept = as_shape(ctx.expected().shape)[last]
    value = _along(ctx, x, last, x.shape[last], False, kept=kept)
    for axis in others:
        value = _along(ctx, value, axis, x.shape[axis], False)
    return _scaled(ctx, value, [x.shape[axis] for axis in (*others, last)], normalization)


@complex_converter("aten._fft_c2r.default")
def convert_c2r(
    ctx: Context, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Size
) -> Tensor:
    *others, last = _axes(dim, x.rank)
    value = x
    for axis in others:
        value = _along(ctx, value, axis, x.shape[axis], True)
    value = _along(ctx, value, last, last_dim_size, True, half=True)
    sizes = [*(x.shape[axis] for axis in others), last_dim_size]
    return _scaled(ctx, value, sizes, normalization).re


def _axes(dim: Sequence[int], rank: int) -> list[int]:
    return [axis_of(axis, rank) for axis in dim]


def _along(
    ctx: Context,
    x: Complex | Tensor,
    axis: int,
    n: Size,
    inverse: bool,
    *,
    kept: Size | None = None,
    half: bool = False,
) -> Complex:
    """The transform of ``n`` elements along an axis, not scaled.

    ``kept``: how many elements of the result are wanted. ``half``: ``x`` has the first ``n // 2 + 1``
    elements of a sequence whose rest is their conjugate, reversed.
    """
    kept = n if kept is None else kept
    outer, inner = product(x.shape[:axis]), product(x.shape[axis + 1 :])
    cube: Shape = (outer, x.shape[axis], inner)
    parts = [x.re, x.im] if isinstance(x, Complex) else [x]
    dtype = parts[0].dtype
    result: Shape = (outer, kept, inner)
    rows = product((outer, inner))

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        length, across = scope.size(n), scope.size(inner)

        def place(row: Any, k: Any) -> tuple[Any, Any, Any]:
            return div(row, across), k, mod(row, across)

        def read(row: Any, j: Any) -> Any:
            if half:
                mirrored = let(j > div(length, 2))
                at = let(tirx.Select(mirrored, length - j, j))
            else:
                at = j
            re = let(inputs[0][place(row, at)])
            if len(inputs) == 1:
                im = tirx.const(0, dtype)
            else:
                im = inputs[1][place(row, at)]
                if half:
                    # Of what is its own conjugate, the imaginary part counts as 0.
                    real = tirx.any(tirx.EQ(at, index(0)), tirx.EQ(at * 2, length))
                    im = tirx.Select(mirrored, tirx.const(0, dtype) - im, im)
                    im = tirx.Select(real, tirx.const(0, dtype), im)
                im = let(im)
            return (im, re) if inverse else (re, im)

        def write(row: Any, k: Any, re: Any, im: Any) -> None:
            if inverse:
                re, im = im, re
            store(results[0], re, *place(row, k), lanes=1)
            store(results[1], im, *place(row, k), lanes=1)

        transform(
            scope.size(rows),
            length,
            read,
            write,
            scope.size(kept),
            ctx.cpu,
            dtype,
        )

    inputs = [ctx.reshape(part, cube) for part in parts]
    made = ctx.procedure("fft", inputs, [(result, dtype)] * 2, emit, (n, kept, rows, inner))
    shape = (*x.shape[:axis], kept, *x.shape[axis + 1 :])
    return Complex(*(ctx.reshape(part, shape) for part in made))


def _scaled(ctx: Context, x: Complex, sizes: Sequence[Size], normalization: int) -> Complex:
    if normalization not in (_BY_ROOT, _BY_SIZE):
        return x
    number = sympy.sympify(product(sizes))

    def element(value: Any, size: Any) -> Any:
        size = tirx.sqrt(size) if normalization == _BY_ROOT else size
        return (value.astype("float64") / size.astype("float64")).astype(x.re.dtype)

    def part(tensor: Tensor) -> Tensor:
        return pointwise(ctx, "scale", element, tensor, as_size(number), dtype=tensor.dtype)

    return Complex(part(x.re), part(x.im))
