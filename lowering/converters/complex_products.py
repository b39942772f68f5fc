"""Products of complex matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..tensor import Complex, Tensor
from . import linear as products
from .complex import Value, complex_of, dtype_of_parts
from .complex_arithmetic import sum_of, times
from .elementwise import pointwise
from .registry import complex_converter


@complex_converter("aten.mm.default", "aten.bmm.default")
def convert_mm(ctx: Context, x: Value, mat2: Value) -> Complex:
    return _product(ctx, x, mat2)


@complex_converter("aten.matmul.default")
def convert_matmul(ctx: Context, x: Value, other: Value) -> Complex:
    return _product(ctx, x, other)


@complex_converter("aten.dot.default")
def convert_dot(ctx: Context, x: Value, tensor: Value) -> Complex:
    return _product(ctx, x, tensor)


@complex_converter("aten.mv.default")
def convert_mv(ctx: Context, x: Value, vec: Value) -> Complex:
    return _product(ctx, x, vec)


@complex_converter("aten.addmm.default")
def convert_addmm(
    ctx: Context, x: Value, mat1: Value, mat2: Value, beta: Any, alpha: Any
) -> Complex:
    return _added(ctx, x, _product(ctx, mat1, mat2), beta, alpha)


@complex_converter("aten.addmv.default")
def convert_addmv(ctx: Context, x: Value, mat: Value, vec: Value, beta: Any, alpha: Any) -> Complex:
    return _added(ctx, x, _product(ctx, mat, vec), beta, alpha)


@complex_converter("aten.baddbmm.default")
def convert_baddbmm(
    ctx: Context, x: Value, batch1: Value, batch2: Value, beta: Any, alpha: Any
) -> Complex:
    return _added(ctx, x, _product(ctx, batch1, batch2), beta, alpha)


def _added(ctx: Context, x: Value, result: Complex, beta: Any, alpha: Any) -> Complex:
    dtype = dtype_of_parts(ctx)
    scaled = result if alpha == 1 else times(ctx, result, alpha, dtype)
    if beta == 0:
        return scaled
    bias = x if beta == 1 else times(ctx, x, beta, dtype)
    return sum_of(ctx, scaled, bias, 1, 1)


@complex_converter("aten.linear.default")
def convert_linear(ctx: Context, input: Complex, weight: Complex, bias: Value) -> Complex:
    def product(a: Tensor, b: Tensor) -> Tensor:
        return products.linear(ctx, a, b, None)

    result = _of_parts(ctx, input, weight, product)
    return result if bias is None else sum_of(ctx, result, bias, 1, 1)


def _product(ctx: Context, x: Value, other: Value) -> Complex:
    dtype = dtype_of_parts(ctx)
    left, right = complex_of(ctx, x, dtype), complex_of(ctx, other, dtype)
    return _of_parts(ctx, left, right, lambda a, b: products.convert_matmul(ctx, a, b))


def _of_parts(
    ctx: Context, x: Complex, other: Complex, product: Callable[[Tensor, Tensor], Tensor]
) -> Complex:
    dtype = x.re.dtype
    re = product(x.re, other.re), product(x.im, other.im)
    im = product(x.re, other.im), product(x.im, other.re)
    return Complex(
        pointwise(ctx, "subtract", lambda a, b: a - b, *re, dtype=dtype),
        pointwise(ctx, "add", lambda a, b: a + b, *im, dtype=dtype),
    )
