"""Arithmetic of two operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context, Unsupported
from ..kernels.prim_func import serial
from ..symbols import Scalar, product, wrapped
from ..tensor import DTYPES, HALVES, Tensor
from .codes import codes_less, codes_times
from .elementwise import (
    Element,
    Operand,
    as_number,
    constant,
    differ,
    divided,
    dtype_of_result,
    is_float,
    libm,
    opaque,
    pointwise,
    rounded,
)
from .registry import converter


def _integer_quotient(divide: Element, a: Any, b: Any) -> Any:
    """By -1 it is a negation: the quotient of the least integer does not exist, and the CPU traps."""
    if isinstance(b, tirx.IntImm) or str(b.ty.dtype).startswith("uint"):
        return divide(a, b)
    minus_one = tirx.EQ(b, constant(-1, b))
    quotient = divide(a, tirx.Select(minus_one, constant(1, b), b))
    return tirx.Select(minus_one, constant(0, a) - a, quotient)


def _integer_remainder(divide: Element, a: Any, b: Any) -> Any:
    if isinstance(b, tirx.IntImm) or str(b.ty.dtype).startswith("uint"):
        return divide(a, b)
    # By 1 nothing is left, as by -1.
    return divide(a, tirx.Select(tirx.EQ(b, constant(-1, b)), constant(1, b), b))


def _truncated_quotient(a: Any, b: Any) -> Any:
    if is_float(str(a.ty.dtype)):
        return tirx.trunc(divided(a, b))
    return _integer_quotient(tirx.truncdiv, a, b)


def _floored_quotient(a: Any, b: Any) -> Any:
    """Floats as in ATen's ``div_floor_floating``: exact, from the remainder, not floor(a / b)."""
    if not is_float(str(a.ty.dtype)):
        return _integer_quotient(tirx.floordiv, a, b)
    remainder = libm("fmod", a, b)
    quotient = divided(a - remainder, b)
    zero = constant(0, a)
    wrong_side = tirx.all(differ(remainder, zero), differ(b < zero, remainder < zero))
    quotient = tirx.Select(wrong_side, quotient - constant(1, a), quotient)
    floored = tirx.floor(quotient)
    floored = tirx.Select(quotient - floored > constant(0.5, a), floored + constant(1, a), floored)
    return tirx.Select(tirx.EQ(b, zero), divided(a, b), floored)


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of the divisor, as Python's ``%``."""
    if not is_float(str(a.ty.dtype)):
        return _integer_remainder(tirx.floormod, a, b)
    zero = constant(0, a)
    remainder = libm("fmod", a, b)
    wrong_side = tirx.all(differ(remainder, zero), differ(b < zero, remainder < zero))
    return tirx.Select(wrong_side, remainder + b, remainder)


def _scaled(alpha: Scalar, dtype: str) -> Callable[[Any], Any]:
    if alpha == 1:
        return lambda value: value
    if not isinstance(alpha, (int, float)):
        raise Unsupported(f"with alpha={alpha}")
    return lambda value: value * opaque(tirx.const(wrapped(alpha, dtype), dtype))


@converter("aten.add.Tensor", "aten.add.Scalar")
def convert_add(ctx: Context, x: Tensor, other: Operand, alpha: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
    if dtype == "bool":
        if alpha == 0:
            return pointwise(ctx, "add", lambda a, _: a, x, other, dtype="bool")
        return pointwise(ctx, "add", tirx.any, x, other, dtype="bool")
    scaled = _scaled(alpha, dtype)
    return pointwise(ctx, "add", lambda a, b: a + scaled(b), x, other, dtype=dtype)


@converter("aten.sub.Tensor", "aten.sub.Scalar")
def convert_sub(ctx: Context, x: Tensor, other: Operand, alpha: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
    less = codes_less(ctx, x, other, dtype) if alpha == 1 else None
    if less is not None:
        return less
    scaled = _scaled(alpha, dtype)
    return pointwise(ctx, "subtract", lambda a, b: a - scaled(b), x, other, dtype=dtype)


@converter("aten.rsub.Scalar", "aten.rsub.Tensor")
def convert_rsub(ctx: Context, x: Tensor, other: Operand, alpha: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
    scaled = _scaled(alpha, dtype)
    return pointwise(ctx, "subtract", lambda a, b: b - scaled(a), x, other, dtype=dtype)


@converter("aten.mul.Tensor", "aten.mul.Scalar")
def convert_mul(ctx: Context, x: Tensor, other: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    scaled = codes_times(ctx, x, other, dtype) or codes_times(ctx, other, x, dtype)
    if scaled is not None:
        return scaled
    element = tirx.all if dtype == "bool" else lambda a, b: opaque(a) * opaque(b)
    return pointwise(ctx, "multiply", element, x, other, dtype=dtype)


@converter("aten.div.Tensor", "aten.div.Scalar")
def convert_div(ctx: Context, x: Tensor, other: Operand) -> Tensor:
    return pointwise(ctx, "divide", divided, x, other, dtype=dtype_of_result(ctx))


@converter("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def convert_div_mode(ctx: Context, x: Tensor, other: Operand, rounding_mode: Any) -> Tensor:
    dtype = dtype_of_result(ctx)
    if rounding_mode is None:
        return pointwise(ctx, "divide", divided, x, other, dtype=dtype)
    other = _divisor(ctx, dtype, other)
    element = _floored_quotient if rounding_mode == "floor" else _truncated_quotient
    return pointwise(ctx, f"divide_{rounding_mode}", element, x, other, dtype=dtype)


@converter("aten.floor_divide.default")
def convert_floor_divide(ctx: Context, x: Tensor, other: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    other = _divisor(ctx, dtype, other)
    return pointwise(ctx, "divide_floor", _floored_quotient, x, other, dtype=dtype)


@converter("aten.remainder.Tensor", "aten.remainder.Scalar")
def convert_remainder(ctx: Context, x: Tensor, other: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    other = rounded(_divisor(ctx, dtype, other), DTYPES[ctx.expected().dtype])
    return pointwise(ctx, "remainder", _remainder, x, other, dtype=dtype)


@converter("aten.fmod.Tensor", "aten.fmod.Scalar")
def convert_fmod(ctx: Context, x: Tensor, other: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    other = rounded(_divisor(ctx, dtype, other), DTYPES[ctx.expected().dtype])

    def element(a: Any, b: Any) -> Any:
        return libm("fmod", a, b) if is_float(dtype) else _integer_remainder(tirx.truncmod, a, b)

    return pointwise(ctx, "fmod", element, x, other, dtype=dtype)


def _divisor(ctx: Context, dtype: str, divisor: Operand) -> Operand:
    """An integer divisor that is not zero: a zero fails the call, as it fails in eager mode."""
    if is_float(dtype):
        return divisor
    number = as_number(divisor)
    if number is None:
        return _not_zero(ctx, ctx.cast(divisor, dtype))
    if number == 0:
        raise Unsupported("of integers by zero")
    return divisor


def _not_zero(ctx: Context, x: Tensor) -> Tensor:
    length = product(x.shape)
    asserts = ctx.asserts("no divisor is 0")

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        # One thread: an error in a parallel loop would not come through.
        with serial(scope.size(length)) as i:
            value = inputs[0][i]
            holds = tirx.NE(value, tirx.const(0, x.dtype))
            with T.Assert(holds, asserts, "ZeroDivisionError"):
                T.buffer_store(results[0], value, [i])

    flat = ctx.reshape(x, (length,))
    (copy,) = ctx.procedure("divisor", [flat], [((length,), x.dtype)], emit)
    return ctx.reshape(copy, x.shape)


def _larger(a: Any, b: Any) -> Any:
    return tirx.any(a, b) if str(a.ty.dtype) == "bool" else tirx.max(a, b)


def _smaller(a: Any, b: Any) -> Any:
    return tirx.all(a, b) if str(a.ty.dtype) == "bool" else tirx.min(a, b)


@converter("aten.maximum.default")
def convert_maximum(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return pointwise(ctx, "maximum", _larger, x, other, dtype=dtype_of_result(ctx))


@converter("aten.minimum.default")
def convert_minimum(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return pointwise(ctx, "minimum", _smaller, x, other, dtype=dtype_of_result(ctx))


def _number_of(extreme: Element) -> Element:
    """The extreme of two, or the one that is a number."""

    def element(a: Any, b: Any) -> Any:
        if not is_float(str(a.ty.dtype)):
            return extreme(a, b)
        picked = tirx.Select(a < b, a, b) if extreme is _smaller else tirx.Select(a > b, a, b)
        return tirx.Select(tirx.isnan(a), b, tirx.Select(tirx.isnan(b), a, picked))

    return element


_FLOAT_PAIRS: dict[str, tuple[tuple[str, ...], Element]] = {
    "fmax": (("default",), _number_of(_larger)),
    "fmin": (("default",), _number_of(_smaller)),
    "hypot": (("default",), lambda a, b: libm("hypot", a, b)),
    "nextafter": (("default",), lambda a, b: libm("nextafter", a, b)),
    "copysign": (("Tensor", "Scalar"), lambda a, b: libm("copysign", a, b)),
}


def _register_pair(name: str, overloads: Sequence[str], element: Element) -> None:
    # The step to the next half is another than the step to the next float32.
    @converter(*(f"aten.{name}.{each}" for each in overloads), takes_halves=name == "nextafter")
    def convert_pair(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        dtype = dtype_of_result(ctx)
        if name == "nextafter" and dtype in HALVES:
            raise Unsupported(f"of {dtype}", "float32")
        return pointwise(ctx, name, element, x, other, dtype=dtype)


for _name, (_overloads, _element) in _FLOAT_PAIRS.items():
    _register_pair(_name, _overloads, _element)


@converter("aten.clamp.default", "aten.clamp.Tensor")
def convert_clamp(ctx: Context, x: Tensor, min: Operand, max: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    if min is not None:
        x = pointwise(ctx, "clamp_min", _larger, x, min, dtype=dtype)
    if max is not None:
        x = pointwise(ctx, "clamp_max", _smaller, x, max, dtype=dtype)
    return x


@converter("aten.clamp_min.default", "aten.clamp_min.Tensor")
def convert_clamp_min(ctx: Context, x: Tensor, min: Operand) -> Tensor:
    return pointwise(ctx, "clamp_min", _larger, x, min, dtype=dtype_of_result(ctx))


@converter("aten.clamp_max.default", "aten.clamp_max.Tensor")
def convert_clamp_max(ctx: Context, x: Tensor, max: Operand) -> Tensor:
    return pointwise(ctx, "clamp_max", _smaller, x, max, dtype=dtype_of_result(ctx))


@converter("aten.atan2.default")
def convert_atan2(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    element = lambda a, b: libm("atan2", a, b)  # noqa: E731
    return pointwise(ctx, "atan2", element, x, other, dtype=dtype_of_result(ctx))
