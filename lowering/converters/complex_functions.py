"""Elementary functions of complex numbers: the parts of f(a + ib)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..symbols import Scalar
from ..tensor import Complex
from .complex import dtype_of_parts, pair
from .complex_arithmetic import quotient, size_of, times
from .elementwise import constant, libm, pointwise
from .registry import complex_converter

_LN2, _LN10 = math.log(2), math.log(10)


def _log1p(a: Any, b: Any) -> Any:
    """log |1 + z|, near 0 without the digits that 1 + a loses, as in ATen."""
    near = constant(0.5, a) * libm("log1p", a * (constant(2, a) + a) + b * b)
    far = tirx.log(libm("hypot", a + constant(1, a), b))
    return tirx.Select(libm("hypot", a, b) < constant(0.5, a), near, far)


def _tanh(a: Any, b: Any) -> tuple[Any, Any]:
    """By Kahan, "Branch cuts for complex elementary functions"; where the square of sinh would
    overflow, its limit."""
    one = constant(1, a)
    t, s = libm("tan", b), libm("sinh", a)
    beta = one + t * t
    below = one + beta * s * s
    large = tirx.abs(a) > constant(20, a)
    vanishing = constant(4, a) * tirx.sin(b) * tirx.cos(b) * tirx.exp(-constant(2, a) * tirx.abs(a))
    re = beta * tirx.sqrt(one + s * s) * s / below
    return (
        tirx.Select(large, libm("copysign", one, a), re),
        tirx.Select(large, vanishing, t / below),
    )


_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (
        lambda a, b: tirx.exp(a) * tirx.cos(b),
        lambda a, b: tirx.Select(tirx.EQ(b, constant(0, b)), b, tirx.exp(a) * tirx.sin(b)),
    ),
    "log": (
        lambda a, b: tirx.log(libm("hypot", a, b)),
        lambda a, b: libm("atan2", b, a),
    ),
    "exp2": (
        lambda a, b: tirx.exp2(a) * tirx.cos(b * constant(_LN2, b)),
        lambda a, b: tirx.exp2(a) * tirx.sin(b * constant(_LN2, b)),
    ),
    "expm1": (
        lambda a, b: (
            libm("expm1", a) * tirx.cos(b)
            - constant(2, b) * tirx.sin(b * constant(0.5, b)) * tirx.sin(b * constant(0.5, b))
        ),
        lambda a, b: tirx.exp(a) * tirx.sin(b),
    ),
    "log2": (
        lambda a, b: tirx.log2(libm("hypot", a, b)),
        lambda a, b: libm("atan2", b, a) / constant(_LN2, a),
    ),
    "log10": (
        lambda a, b: tirx.log10(libm("hypot", a, b)),
        lambda a, b: libm("atan2", b, a) / constant(_LN10, a),
    ),
    "log1p": (_log1p, lambda a, b: libm("atan2", b, a + constant(1, a))),
    "tanh": (lambda a, b: _tanh(a, b)[0], lambda a, b: _tanh(a, b)[1]),
    # tan z = -i tanh iz
    "tan": (lambda a, b: _tanh(-b, a)[1], lambda a, b: -_tanh(-b, a)[0]),
    "sin": (
        lambda a, b: tirx.sin(a) * libm("cosh", b),
        lambda a, b: tirx.cos(a) * libm("sinh", b),
    ),
    "cos": (
        lambda a, b: tirx.cos(a) * libm("cosh", b),
        lambda a, b: -(tirx.sin(a) * libm("sinh", b)),
    ),
    "sinh": (
        lambda a, b: libm("sinh", a) * tirx.cos(b),
        lambda a, b: libm("cosh", a) * tirx.sin(b),
    ),
    "cosh": (
        lambda a, b: libm("cosh", a) * tirx.cos(b),
        lambda a, b: libm("sinh", a) * tirx.sin(b),
    ),
}


def _register_function(name: str, elements: Any) -> None:
    @complex_converter(f"aten.{name}.default")
    def convert_function(ctx: Context, x: Complex) -> Complex:
        return pair(ctx, name, elements, x.re, x.im, dtype=x.re.dtype)


for _name, _elements in _FUNCTIONS.items():
    _register_function(_name, _elements)


@complex_converter("aten.sigmoid.default")
def convert_sigmoid(ctx: Context, x: Complex) -> Complex:
    re, im = _FUNCTIONS["exp"]
    below = (lambda a, b: re(-a, -b) + constant(1, a), lambda a, b: im(-a, -b))
    return quotient(ctx, 1.0, pair(ctx, "below", below, x.re, x.im, dtype=x.re.dtype), x.re.dtype)


@complex_converter("aten.sqrt.default")
def convert_sqrt(ctx: Context, x: Complex) -> Complex:
    return root(ctx, x)


@complex_converter("aten.rsqrt.default")
def convert_rsqrt(ctx: Context, x: Complex) -> Complex:
    return quotient(ctx, 1.0, root(ctx, x), x.re.dtype)


def root(ctx: Context, x: Complex) -> Complex:
    """The root with a real part that is not negative, without cancellation."""
    half = pointwise(
        ctx,
        "half_root",
        lambda a, size: tirx.sqrt((tirx.abs(a) + size) * constant(0.5, a)),
        x.re,
        size_of(ctx, x),
        dtype=x.re.dtype,
    )

    def other(b: Any, t: Any) -> Any:
        zero = constant(0, t)
        return tirx.Select(tirx.EQ(t, zero), zero, b / (t + t))

    def re(a: Any, b: Any, t: Any) -> Any:
        return tirx.Select(a < constant(0, a), tirx.abs(other(b, t)), t)

    def im(a: Any, b: Any, t: Any) -> Any:
        return tirx.Select(a < constant(0, a), libm("copysign", t, b), other(b, t))

    return pair(ctx, "sqrt", (re, im), x.re, x.im, half, dtype=x.re.dtype)


@complex_converter("aten.pow.Tensor_Scalar")
def convert_pow(ctx: Context, x: Complex, exponent: Scalar) -> Complex:
    dtype = dtype_of_parts(ctx)
    if not isinstance(exponent, (int, float)):
        raise Unsupported(f"with exponent={exponent}", "a real constant")
    if exponent == 0.5:
        return root(ctx, x)
    if isinstance(exponent, int) and 2 <= exponent <= 4:
        value = x
        for _ in range(exponent - 1):
            value = times(ctx, value, x, dtype)
        return value
    if exponent == -1:
        return quotient(ctx, 1.0, x, dtype)

    def element(a: Any, b: Any, f: Callable[[Any], Any]) -> Any:
        size = libm("hypot", a, b)
        turn = libm("atan2", b, a) * constant(exponent, a)
        value = libm("pow", size, constant(exponent, a)) * f(turn)
        if exponent > 0:
            value = tirx.Select(tirx.EQ(size, constant(0, a)), constant(0, a), value)
        return value

    if exponent <= 0:
        raise Unsupported(f"with exponent={exponent}", "a positive constant, or 1 / x ** n")
    elements = (lambda a, b: element(a, b, tirx.cos), lambda a, b: element(a, b, tirx.sin))
    return pair(ctx, "pow", elements, x.re, x.im, dtype=dtype)
