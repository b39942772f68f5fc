"""Arithmetic of complex numbers."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..symbols import Scalar
from ..tensor import Complex, Tensor
from .complex import Value, dtype_of_parts, pair, parts_of, zero_like
from .elementwise import constant, libm, pointwise
from .registry import complex_converter


@complex_converter("aten.add.Tensor", "aten.add.Scalar")
def convert_add(ctx: Context, x: Value, other: Value, alpha: Scalar) -> Complex:
    return sum_of(ctx, x, other, alpha, 1)


@complex_converter("aten.sub.Tensor", "aten.sub.Scalar")
def convert_sub(ctx: Context, x: Value, other: Value, alpha: Scalar) -> Complex:
    return sum_of(ctx, x, other, alpha, -1)


@complex_converter("aten.rsub.Scalar", "aten.rsub.Tensor")
def convert_rsub(ctx: Context, x: Value, other: Value, alpha: Scalar) -> Complex:
    if alpha != 1:
        raise Unsupported(f"with alpha={alpha}")
    negative = (
        Complex(
            *(
                pointwise(ctx, "negate", lambda v: -v, part, dtype=part.dtype)
                for part in (x.re, x.im)
            )
        )
        if isinstance(x, Complex)
        else pointwise(ctx, "negate", lambda v: -v, x, dtype=dtype_of_parts(ctx))
    )
    return sum_of(ctx, negative, other, 1, 1)


def sum_of(ctx: Context, x: Value, other: Value, alpha: Scalar, sign: int) -> Complex:
    dtype = dtype_of_parts(ctx)
    if not isinstance(alpha, (int, float)):
        raise Unsupported(f"with alpha={alpha}")
    factor = sign * alpha
    (a, b), (c, d) = parts_of(x), parts_of(other)
    # Both results need the common shape, also where a part is missing.
    b, d = 0.0 if b is None else b, 0.0 if d is None else d
    shaped = [each for each in (a, c) if isinstance(each, Tensor)]

    def element(p: Any, q: Any, *_: Any) -> Any:
        return p + q * tirx.const(factor, str(q.ty.dtype))

    return Complex(
        pointwise(ctx, "add", element, a, c, dtype=dtype),
        pointwise(ctx, "add", element, b, d, *shaped, dtype=dtype),
    )


@complex_converter("aten.mul.Tensor", "aten.mul.Scalar")
def convert_mul(ctx: Context, x: Value, other: Value) -> Complex:
    return times(ctx, x, other, dtype_of_parts(ctx))


def times(ctx: Context, x: Value, other: Value, dtype: str) -> Complex:
    (a, b), (c, d) = parts_of(x), parts_of(other)
    if b is None:
        (a, b), (c, d) = (c, d), (a, b)
    if d is None:
        elements: Any = (lambda p, q, r: p * r, lambda p, q, r: q * r)
        return pair(ctx, "scale", elements, a, b, c, dtype=dtype)
    elements = (lambda p, q, r, s: p * r - q * s, lambda p, q, r, s: p * s + q * r)
    return pair(ctx, "multiply", elements, a, b, c, d, dtype=dtype)


@complex_converter("aten.div.Tensor", "aten.div.Scalar")
def convert_div(ctx: Context, x: Value, other: Value) -> Complex:
    return quotient(ctx, x, other, dtype_of_parts(ctx))


def quotient(ctx: Context, x: Value, other: Value, dtype: str) -> Complex:
    """Smith's division, as in c10: nothing overflows before the result does."""
    (a, b), (c, d) = parts_of(x), parts_of(other)
    if d is None:
        elements: Any = (lambda p, q, r: p / r, lambda p, q, r: q / r)
        b = zero_like(ctx, a, dtype) if b is None else b
        return pair(ctx, "divide", elements, a, b, c, dtype=dtype)
    b = 0.0 if b is None else b

    def element(p: Any, q: Any, r: Any, s: Any, imaginary: bool) -> Any:
        size_r, size_s, zero = tirx.abs(r), tirx.abs(s), constant(0, r)
        by_r = s / r
        of_r = constant(1, r) / (r + s * by_r)
        by_s = r / s
        of_s = constant(1, r) / (r * by_s + s)
        if imaginary:
            first, second = (q - p * by_r) * of_r, (q * by_s - p) * of_s
            nothing = q / size_s
        else:
            first, second = (p + q * by_r) * of_r, (p * by_s + q) * of_s
            nothing = p / size_r
        value = tirx.Select(size_r >= size_s, first, second)
        return tirx.Select(tirx.all(tirx.EQ(size_r, zero), tirx.EQ(size_s, zero)), nothing, value)

    elements = (
        lambda p, q, r, s: element(p, q, r, s, False),
        lambda p, q, r, s: element(p, q, r, s, True),
    )
    return pair(ctx, "divide", elements, a, b, c, d, dtype=dtype)


@complex_converter("aten.reciprocal.default")
def convert_reciprocal(ctx: Context, x: Complex) -> Complex:
    return quotient(ctx, 1.0, x, dtype_of_parts(ctx))


@complex_converter("aten.square.default")
def convert_square(ctx: Context, x: Complex) -> Complex:
    return times(ctx, x, x, dtype_of_parts(ctx))


@complex_converter("aten.abs.default")
def convert_abs(ctx: Context, x: Complex) -> Tensor:
    return size_of(ctx, x)


def size_of(ctx: Context, x: Complex) -> Tensor:
    return pointwise(ctx, "hypot", lambda a, b: libm("hypot", a, b), x.re, x.im, dtype=x.re.dtype)


@complex_converter("aten.angle.default")
def convert_angle(ctx: Context, x: Complex) -> Tensor:
    return pointwise(ctx, "angle", lambda a, b: libm("atan2", b, a), x.re, x.im, dtype=x.re.dtype)


@complex_converter("aten.sgn.default")
def convert_sgn(ctx: Context, x: Complex) -> Complex:
    def element(value: Any, size: Any) -> Any:
        zero = constant(0, value)
        return tirx.Select(tirx.EQ(size, zero), zero, value / size)

    size, dtype = size_of(ctx, x), x.re.dtype
    return Complex(
        *(pointwise(ctx, "sgn", element, part, size, dtype=dtype) for part in (x.re, x.im))
    )
