"""Elementary functions of one operand."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from ..context import Context
from ..symbols import Scalar
from ..tensor import Tensor
from .elementwise import (
    Element,
    constant,
    dtype_of_result,
    erf,
    gelu,
    gelu_tanh,
    is_float,
    libm,
    pointwise,
    relu,
    sigmoid,
    silu,
    tanh,
)
from .registry import converter


def _sign(x: Any) -> Any:
    dtype = str(x.ty.dtype)
    if dtype == "bool":
        return x
    zero = constant(0, x)
    return (x > zero).astype(dtype) - (x < zero).astype(dtype)


# The result has the trace's dtype (an int becomes a float first).

_UNARY: dict[str, Element] = {
    "abs": tirx.abs,
    "acos": lambda x: libm("acos", x),
    "acosh": lambda x: libm("acosh", x),
    "asin": lambda x: libm("asin", x),
    "asinh": lambda x: libm("asinh", x),
    "atan": lambda x: libm("atan", x),
    "atanh": lambda x: libm("atanh", x),
    "ceil": lambda x: tirx.ceil(x) if is_float(str(x.ty.dtype)) else x,
    "cos": tirx.cos,
    "cosh": lambda x: libm("cosh", x),
    "erf": erf,
    "erfc": lambda x: libm("erfc", x),
    "exp": tirx.exp,
    "exp2": tirx.exp2,
    "expm1": lambda x: libm("expm1", x),
    "floor": lambda x: tirx.floor(x) if is_float(str(x.ty.dtype)) else x,
    "lgamma": lambda x: libm("lgamma", x),
    "log": tirx.log,
    "log10": tirx.log10,
    "log1p": lambda x: libm("log1p", x),
    "log2": tirx.log2,
    "neg": lambda x: constant(0, x) - x if not is_float(str(x.ty.dtype)) else -x,
    "reciprocal": lambda x: constant(1, x) / x,
    "relu": relu,
    "round": lambda x: tirx.nearbyint(x) if is_float(str(x.ty.dtype)) else x,
    "rsqrt": lambda x: constant(1, x) / tirx.sqrt(x),
    "sigmoid": sigmoid,
    "sign": _sign,
    "silu": silu,
    "sin": tirx.sin,
    "sinh": lambda x: libm("sinh", x),
    "sqrt": tirx.sqrt,
    "square": lambda x: x * x,
    "tan": lambda x: libm("tan", x),
    "tanh": tanh,
    "trunc": lambda x: tirx.trunc(x) if is_float(str(x.ty.dtype)) else x,
}


def _register_unary(name: str, element: Element) -> None:
    @converter(f"aten.{name}.default")
    def convert_unary(ctx: Context, x: Tensor) -> Tensor:
        return pointwise(ctx, name, element, x, dtype=dtype_of_result(ctx))


for _name, _element in _UNARY.items():
    _register_unary(_name, _element)


@converter("aten.gelu.default")
def convert_gelu(ctx: Context, x: Tensor, approximate: str) -> Tensor:
    element = gelu_tanh if approximate == "tanh" else gelu
    return pointwise(ctx, "gelu", element, x, dtype=x.dtype)


@converter("aten.leaky_relu.default")
def convert_leaky_relu(ctx: Context, x: Tensor, negative_slope: Scalar) -> Tensor:
    def element(value: Any, slope: Any) -> Any:
        return tirx.Select(value > constant(0, value), value, value * slope)

    return pointwise(ctx, "leaky_relu", element, x, negative_slope, dtype=x.dtype)


@converter("aten.elu.default")
def convert_elu(ctx: Context, x: Tensor, alpha: Any, scale: Any, input_scale: Any) -> Tensor:
    def element(value: Any) -> Any:
        negative = libm("expm1", value * constant(input_scale, value)) * constant(alpha, value)
        positive = tirx.Select(value > constant(0, value), value, negative)
        return positive * constant(scale, value)

    return pointwise(ctx, "elu", element, x, dtype=x.dtype)


@converter("aten.softplus.default")
def convert_softplus(ctx: Context, x: Tensor, beta: Any, threshold: Any) -> Tensor:
    def element(value: Any) -> Any:
        scaled = value * constant(beta, value)
        soft = libm("log1p", tirx.exp(scaled)) / constant(beta, value)
        return tirx.Select(scaled > constant(threshold, value), value, soft)

    return pointwise(ctx, "softplus", element, x, dtype=x.dtype)


def _clip(value: Any, low: Any, high: Any) -> Any:
    value = tirx.Select(value < low, low, value)
    return tirx.Select(value > high, high, value)


@converter("aten.hardtanh.default")
def convert_hardtanh(ctx: Context, x: Tensor, min_val: Scalar, max_val: Scalar) -> Tensor:
    return pointwise(ctx, "hardtanh", _clip, x, min_val, max_val, dtype=x.dtype)


@converter("aten.hardsigmoid.default")
def convert_hardsigmoid(ctx: Context, x: Tensor) -> Tensor:
    def element(value: Any) -> Any:
        shifted = _clip(value + constant(3, value), constant(0, value), constant(6, value))
        return shifted / constant(6, value)

    return pointwise(ctx, "hardsigmoid", element, x, dtype=x.dtype)


@converter("aten.hardswish.default")
def convert_hardswish(ctx: Context, x: Tensor) -> Tensor:
    def element(value: Any) -> Any:
        shifted = _clip(value + constant(3, value), constant(0, value), constant(6, value))
        return value * shifted / constant(6, value)

    return pointwise(ctx, "hardswish", element, x, dtype=x.dtype)


@converter("aten.signbit.default")
def convert_signbit(ctx: Context, x: Tensor) -> Tensor:
    def element(value: Any) -> Any:
        if is_float(x.dtype):  # also of -0.0 and of a NaN
            value = tirx.reinterpret(x.dtype.replace("float", "int"), value)
        return value < constant(0, value)

    if x.dtype == "bool":
        return pointwise(ctx, "signbit", lambda _: tirx.const(False), x, dtype="bool")
    return pointwise(ctx, "signbit", element, x, dtype=x.dtype, result="bool")


@converter("aten.round.decimals")
def convert_round_decimals(ctx: Context, x: Tensor, decimals: int) -> Tensor:
    factor = 10.0 ** abs(decimals)

    def element(value: Any) -> Any:
        scale = constant(factor, value)
        if decimals < 0:
            return tirx.nearbyint(value / scale) * scale
        return tirx.nearbyint(value * scale) / scale

    return pointwise(ctx, "round", element, x, dtype=dtype_of_result(ctx))


@converter("aten.isnan.default")
def convert_isnan(ctx: Context, x: Tensor) -> Tensor:
    if not is_float(x.dtype):
        return pointwise(
            ctx, "isnan", lambda _: tirx.const(False, "bool"), x, dtype=x.dtype, result="bool"
        )
    return pointwise(ctx, "isnan", tirx.isnan, x, dtype=x.dtype, result="bool")


@converter("aten.isinf.default")
def convert_isinf(ctx: Context, x: Tensor) -> Tensor:
    def element(value: Any) -> Any:
        if not is_float(x.dtype):
            return tirx.const(False, "bool")
        return tirx.EQ(tirx.abs(value), tirx.infinity(x.dtype))

    return pointwise(ctx, "isinf", element, x, dtype=x.dtype, result="bool")


def _polynomial(x: Any, *coefficients: float) -> Any:
    """By Horner, the constant last."""
    first, *rest = (tirx.const(each, "float64") for each in coefficients)
    value = first
    for each in rest:
        value = value * x + each
    return value


@converter("aten.erfinv.default")
def convert_erfinv(ctx: Context, x: Tensor) -> Tensor:
    """As ATen's ``calc_erfinv``: two rational functions, and two of Newton's steps. In double: near 1
    the steps divide the error of erf by a derivative that vanishes."""

    def element(y: Any) -> Any:
        one, size = tirx.const(1.0, "float64"), tirx.abs(y)
        z = y * y
        middle = y * _polynomial(z, -0.140543331, 0.914624893, -1.645349621, 0.886226899)
        middle = middle / _polynomial(z, 0.012229801, -0.329097515, 1.442710462, -2.118377725, 1)
        z = tirx.sqrt(-tirx.log((one - size) * tirx.const(0.5, "float64")))
        outer = _polynomial(z, 1.641345311, 3.429567803, -1.624906493, -1.970840454)
        outer = libm("copysign", outer, y) / _polynomial(z, 1.637067800, 3.543889200, 1)
        value = tirx.Select(size > tirx.const(0.7, "float64"), outer, middle)
        for _ in range(2):
            slope = tirx.const(2 / math.sqrt(math.pi), "float64") * tirx.exp(-value * value)
            value = value - (erf(value) - y) / slope
        # Beyond 1 the logarithm is NaN.
        end = libm("copysign", tirx.infinity("float64"), y)
        return tirx.Select(tirx.EQ(size, one), end, value)

    dtype = dtype_of_result(ctx)
    return pointwise(ctx, "erfinv", element, x, dtype="float64", result=dtype)
