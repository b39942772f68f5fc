"""Arithmetic, comparison, logic and elementary functions, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import (
    Context,
    Unsupported,
    broadcast,
    broadcast_index,
    convert,
    result_dtype,
)
from ..kernels.prim_func import let, local, parallel, serial, store
from ..symbols import Scalar, product, wrapped
from ..tensor import DTYPES, HALVES, TORCH_DTYPES, Tensor
from .registry import converter

Operand = Any  # Tensor | Scalar
Element = Callable[..., Any]


def pointwise(
    ctx: Context,
    name: str,
    element: Element,
    *operands: Tensor | Scalar,
    dtype: str,
    result: str | None = None,
) -> Tensor:
    """Emit ``element`` over the broadcast operands, each converted to ``dtype`` first.

    ``result`` is the dtype that ``element`` gives, ``dtype`` unless said otherwise. Numbers and
    constants of one element become part of the kernel. Half-precision floats are computed in
    float32.
    """
    result = result or dtype
    dtype = "float32" if dtype in HALVES else dtype
    shape = broadcast(*(o.shape for o in operands if isinstance(o, Tensor)))
    if len(shape) == 4 and any(isinstance(o, Tensor) and o.last is not None for o in operands):
        moved = [_with_channels_last(ctx, operand) for operand in operands]
        return ctx.as_image(pointwise(ctx, name, element, *moved, dtype=dtype, result=result))
    inputs = [o for o in operands if isinstance(o, Tensor) and _number(o) is None]

    def value(scope: Any, tensors: tuple[Any, ...], position: tuple[Any, ...]) -> Any:
        remaining = iter(tensors)
        elements = []
        for operand in operands:
            number = _number(operand)
            if number is not None:
                elements.append(scope.number(number, dtype))
            else:
                assert isinstance(operand, Tensor)
                read = next(remaining)(*broadcast_index(operand.shape, position))
                elements.append(convert(read, dtype))
        return convert(element(*elements), result)

    return ctx.compute(name, inputs, shape, result, value)


def _with_channels_last(ctx: Context, operand: Operand) -> Operand:
    if not isinstance(operand, Tensor) or _number(operand) is not None:
        return operand
    return ctx.with_channels_last(
        ctx.reshape(operand, (1,) * (4 - operand.rank) + operand.shape)
        if operand.rank < 4
        else operand
    )


def _number(operand: Operand) -> Any:
    """The Python number of a scalar operand or of a constant with one element, else None."""
    if not isinstance(operand, Tensor):
        return operand
    if operand.constant is not None and operand.constant.value.numel() == 1:
        return operand.constant.value.item()
    return None


def rounded(operand: Operand, dtype: str) -> Operand:
    """A number as torch takes it into an op of half-precision floats that is not continuous, where
    the last digit decides."""
    number = _number(operand)
    if dtype not in HALVES or not isinstance(number, (int, float)):
        return operand
    return torch.tensor(number, dtype=TORCH_DTYPES[dtype]).item()


def dtype_of_result(ctx: Context) -> str:
    """The dtype that a converter is to give: the trace's, or float32 for a narrower float."""
    dtype = ctx.expected().dtype
    if dtype not in DTYPES:
        raise Unsupported(f"with dtype {dtype}")
    name = DTYPES[dtype]
    return "float32" if ctx.wide and name in HALVES else name


def is_float(dtype: str) -> bool:
    return "float" in dtype


# Elements that more than one op is made of.


def constant(value: float, like: Any) -> Any:
    dtype = str(like.ty.dtype)
    return tirx.const(wrapped(value, dtype), dtype)


# `schedule_rest` turns tirx.max and tirx.min into forms that propagate NaN, and these functions of
# float32 into polynomials. TVM's own expansions of them lose all digits near 0, hence libm's for
# double.


def sigmoid(x: Any) -> Any:
    if str(x.ty.dtype) == "float32":
        return tirx.sigmoid(x)
    return constant(1, x) / (constant(1, x) + tirx.exp(-x))


def tanh(x: Any) -> Any:
    return tirx.tanh(x) if str(x.ty.dtype) == "float32" else libm("tanh", x)


def erf(x: Any) -> Any:
    return tirx.erf(x) if str(x.ty.dtype) == "float32" else libm("erf", x)


def libm(name: str, *operands: Any) -> Any:
    dtype = str(operands[0].ty.dtype)
    suffix = "f" if dtype == "float32" else ""
    return tirx.call_pure_extern(dtype, name + suffix, *operands)


def gelu(x: Any) -> Any:
    return constant(0.5, x) * x * (constant(1, x) + erf(x * constant(math.sqrt(0.5), x)))


def gelu_tanh(x: Any) -> Any:
    inner = constant(math.sqrt(2 / math.pi), x) * (x + constant(0.044715, x) * x * x * x)
    return constant(0.5, x) * x * (constant(1, x) + tanh(inner))


def silu(x: Any) -> Any:
    return x / (constant(1, x) + tirx.exp(-x))


def relu(x: Any) -> Any:
    return tirx.Select(x < constant(0, x), constant(0, x), x)  # NaN is not less


def _is_number(value: Any) -> Any:
    return tirx.Not(tirx.isnan(value))


def equal(a: Any, b: Any) -> Any:
    """a == b. TVM's simplifier takes x == x for true, NaN or not."""
    if not is_float(str(a.ty.dtype)):
        return tirx.EQ(a, b)
    return tirx.all(tirx.EQ(a, b), _is_number(a), _is_number(b))


def negation(condition: Any) -> Any:
    """Not. TVM's simplifier makes a <= b of Not(a > b), which is false where one of them is NaN; it
    does not look behind the cast."""
    return tirx.EQ(condition.astype("int8"), tirx.const(0, "int8"))


def differ(a: Any, b: Any) -> Any:
    """a != b. LLVM's code for tirx.NE of floats is an *ordered* comparison: false for NaN."""
    dtype = str(a.ty.dtype)
    if dtype == "bool":
        return tirx.NE(a.astype("int8"), b.astype("int8"))
    if not is_float(dtype):
        return tirx.NE(a, b)
    return tirx.any(a < b, a > b, tirx.isnan(a), tirx.isnan(b))


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
        return tirx.trunc(a / b)
    return _integer_quotient(tirx.truncdiv, a, b)


def _floored_quotient(a: Any, b: Any) -> Any:
    """Floats as in ATen's ``div_floor_floating``: exact, from the remainder, not floor(a / b)."""
    if not is_float(str(a.ty.dtype)):
        return _integer_quotient(tirx.floordiv, a, b)
    remainder = libm("fmod", a, b)
    quotient = (a - remainder) / b
    zero = constant(0, a)
    wrong_side = tirx.all(differ(remainder, zero), differ(b < zero, remainder < zero))
    quotient = tirx.Select(wrong_side, quotient - constant(1, a), quotient)
    floored = tirx.floor(quotient)
    floored = tirx.Select(quotient - floored > constant(0.5, a), floored + constant(1, a), floored)
    return tirx.Select(tirx.EQ(b, zero), a / b, floored)


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of the divisor, as Python's ``%``."""
    if not is_float(str(a.ty.dtype)):
        return _integer_remainder(tirx.floormod, a, b)
    zero = constant(0, a)
    remainder = libm("fmod", a, b)
    wrong_side = tirx.all(differ(remainder, zero), differ(b < zero, remainder < zero))
    return tirx.Select(wrong_side, remainder + b, remainder)


# One operand, result in the trace's dtype (an int becomes a float first).

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
    "sign": lambda x: (
        (x > constant(0, x)).astype(str(x.ty.dtype)) - (x < constant(0, x)).astype(str(x.ty.dtype))
    ),
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


# Two operands.


def _scaled(alpha: Scalar, dtype: str) -> Callable[[Any], Any]:
    if alpha == 1:
        return lambda value: value
    if not isinstance(alpha, (int, float)):
        raise Unsupported(f"with alpha={alpha}")
    return lambda value: value * tirx.const(wrapped(alpha, dtype), dtype)


@converter("aten.add.Tensor", "aten.add.Scalar")
def convert_add(ctx: Context, x: Tensor, other: Operand, alpha: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
    if dtype == "bool":
        return pointwise(ctx, "add", tirx.any, x, other, dtype="bool")
    scaled = _scaled(alpha, dtype)
    return pointwise(ctx, "add", lambda a, b: a + scaled(b), x, other, dtype=dtype)


@converter("aten.sub.Tensor", "aten.sub.Scalar")
def convert_sub(ctx: Context, x: Tensor, other: Operand, alpha: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
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
    element = tirx.all if dtype == "bool" else lambda a, b: a * b
    return pointwise(ctx, "multiply", element, x, other, dtype=dtype)


@converter("aten.div.Tensor", "aten.div.Scalar")
def convert_div(ctx: Context, x: Tensor, other: Operand) -> Tensor:
    return pointwise(ctx, "divide", lambda a, b: a / b, x, other, dtype=dtype_of_result(ctx))


@converter("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def convert_div_mode(ctx: Context, x: Tensor, other: Operand, rounding_mode: Any) -> Tensor:
    dtype = dtype_of_result(ctx)
    if rounding_mode is None:
        return pointwise(ctx, "divide", lambda a, b: a / b, x, other, dtype=dtype)
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
    number = _number(divisor)
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


@converter("aten.maximum.default")
def convert_maximum(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return pointwise(ctx, "maximum", tirx.max, x, other, dtype=dtype_of_result(ctx))


@converter("aten.minimum.default")
def convert_minimum(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return pointwise(ctx, "minimum", tirx.min, x, other, dtype=dtype_of_result(ctx))


def _number_of(extreme: Element) -> Element:
    """The extreme of two, or the one that is a number."""

    def element(a: Any, b: Any) -> Any:
        if not is_float(str(a.ty.dtype)):
            return extreme(a, b)
        picked = tirx.Select(a < b, a, b) if extreme is tirx.min else tirx.Select(a > b, a, b)
        return tirx.Select(tirx.isnan(a), b, tirx.Select(tirx.isnan(b), a, picked))

    return element


_FLOAT_PAIRS: dict[str, tuple[str, Element]] = {
    "fmax": ("default", _number_of(tirx.max)),
    "fmin": ("default", _number_of(tirx.min)),
    "hypot": ("default", lambda a, b: libm("hypot", a, b)),
    "nextafter": ("default", lambda a, b: libm("nextafter", a, b)),
    "copysign": ("Tensor", lambda a, b: libm("copysign", a, b)),
}


def _register_pair(name: str, overload: str, element: Element) -> None:
    # The step to the next half is another than the step to the next float32.
    @converter(f"aten.{name}.{overload}", takes_halves=name == "nextafter")
    def convert_pair(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
        dtype = dtype_of_result(ctx)
        if name == "nextafter" and dtype in HALVES:
            raise Unsupported(f"of {dtype}", "float32")
        return pointwise(ctx, name, element, x, other, dtype=dtype)


for _name, (_overload, _element) in _FLOAT_PAIRS.items():
    _register_pair(_name, _overload, _element)


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


@converter("aten.clamp.default", "aten.clamp.Tensor")
def convert_clamp(ctx: Context, x: Tensor, min: Operand, max: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    if min is not None:
        x = pointwise(ctx, "clamp_min", tirx.max, x, min, dtype=dtype)
    if max is not None:
        x = pointwise(ctx, "clamp_max", tirx.min, x, max, dtype=dtype)
    return x


@converter("aten.clamp_min.default", "aten.clamp_min.Tensor")
def convert_clamp_min(ctx: Context, x: Tensor, min: Operand) -> Tensor:
    return pointwise(ctx, "clamp_min", tirx.max, x, min, dtype=dtype_of_result(ctx))


@converter("aten.clamp_max.default", "aten.clamp_max.Tensor")
def convert_clamp_max(ctx: Context, x: Tensor, max: Operand) -> Tensor:
    return pointwise(ctx, "clamp_max", tirx.min, x, max, dtype=dtype_of_result(ctx))


def _power(a: Any, b: Any) -> Any:
    return libm("pow", a, b)


def _integer_power(value: Any, exponent: int) -> Any:
    result, square = None, value
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        square = square * square
        exponent >>= 1
    return constant(1, value) if result is None else result


@converter("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor")
def convert_pow(ctx: Context, x: Tensor, exponent: Operand) -> Tensor:
    dtype = dtype_of_result(ctx)
    number = _number(exponent)
    if number == 0.5 and is_float(dtype):
        return pointwise(ctx, "sqrt", tirx.sqrt, x, dtype=dtype)
    small = isinstance(number, (int, float)) and number in (2, 3)
    if small or (not is_float(dtype) and isinstance(number, int) and number >= 0):
        power = int(number)
        return pointwise(ctx, "power", lambda a: _integer_power(a, power), x, dtype=dtype)
    if not is_float(dtype):
        return _integer_powers(ctx, x, exponent, dtype)
    return pointwise(ctx, "power", _power, x, exponent, dtype=dtype)


def _integer_powers(ctx: Context, x: Operand, exponent: Operand, dtype: str) -> Tensor:
    """By repeated squaring, modulo the dtype; to a negative power only 1 and -1 are not 0."""
    base = pointwise(ctx, "base", lambda a, _: a, x, exponent, dtype=dtype)
    power = pointwise(ctx, "exponent", lambda _, b: b, x, exponent, dtype=dtype)
    length = product(base.shape)

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        with parallel(scope.size(length)) as i:
            square, left, total = local((1,), dtype), local((1,), dtype), local((1,), dtype)
            a, b = let(inputs[0][i]), let(inputs[1][i])
            for variable, value in ((square, a), (left, b), (total, one)):
                store(variable, value, 0, lanes=1)
            with T.While(left[0] > zero):
                odd = tirx.EQ(left[0] % tirx.const(2, dtype), one)
                with T.If(odd), T.Then():
                    store(total, total[0] * square[0], 0, lanes=1)
                store(square, square[0] * square[0], 0, lanes=1)
                store(left, tirx.truncdiv(left[0], tirx.const(2, dtype)), 0, lanes=1)
            value = total[0]
            if not dtype.startswith("uint"):
                minus_one = tirx.const(-1, dtype)
                even = tirx.EQ(tirx.truncmod(b, tirx.const(2, dtype)), zero)
                sign = tirx.Select(even, one, minus_one)
                tiny = tirx.Select(tirx.EQ(a, minus_one), sign, zero)
                tiny = tirx.Select(tirx.EQ(a, one), one, tiny)
                value = tirx.Select(b < zero, tiny, value)
            store(results[0], value, i, lanes=1)

    flat = [ctx.reshape(t, (length,)) for t in (base, power)]
    (result,) = ctx.procedure("power", flat, [((length,), dtype)], emit)
    return ctx.reshape(result, base.shape)


@converter("aten.pow.Scalar")
def convert_pow_scalar(ctx: Context, x: Scalar, exponent: Tensor) -> Tensor:
    dtype = dtype_of_result(ctx)
    if not is_float(dtype):
        return _integer_powers(ctx, x, exponent, dtype)
    return pointwise(ctx, "power", _power, x, exponent, dtype=dtype)


def _shift(left: bool) -> Element:
    def element(a: Any, b: Any) -> Any:
        """Beyond the width of the dtype, and by a negative number, nothing of ``a`` is left but the
        sign of a shift to the right."""
        dtype = str(a.ty.dtype)
        bits = int(dtype.lstrip("uint"))
        outside = tirx.any(b < constant(0, b), b >= constant(bits, b))
        if left:
            safe = tirx.Select(outside, constant(0, b), b)
            return tirx.Select(outside, constant(0, a), tirx.shift_left(a, safe))
        most = bits if dtype.startswith("uint") else bits - 1
        if most == bits:
            safe = tirx.Select(outside, constant(0, b), b)
            return tirx.Select(outside, constant(0, a), tirx.shift_right(a, safe))
        return tirx.shift_right(a, tirx.Select(outside, constant(most, b), b))

    return element


def _register_shift(name: str, python_name: str, left: bool) -> None:
    @converter(
        f"aten.{name}.Tensor",
        f"aten.{name}.Tensor_Scalar",
        f"aten.{python_name}.Tensor",
        f"aten.{python_name}.Scalar",
    )
    def convert_shift(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        dtype = dtype_of_result(ctx)
        if is_float(dtype) or dtype == "bool":
            raise Unsupported(f"of {dtype}", "integers")
        return pointwise(ctx, name, _shift(left), x, other, dtype=dtype)


_register_shift("bitwise_left_shift", "__lshift__", left=True)
_register_shift("bitwise_right_shift", "__rshift__", left=False)


@converter("aten.atan2.default")
def convert_atan2(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    element = lambda a, b: libm("atan2", a, b)  # noqa: E731
    return pointwise(ctx, "atan2", element, x, other, dtype=dtype_of_result(ctx))


_COMPARISONS: dict[str, Element] = {
    "eq": equal,
    "ne": differ,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: tirx.any(a < b, equal(a, b)),
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: tirx.any(a > b, equal(a, b)),
}


def _register_comparison(name: str, element: Element) -> None:
    @converter(f"aten.{name}.Tensor", f"aten.{name}.Scalar", takes_halves=True)
    def convert_comparison(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        dtype = result_dtype(x, other)
        if dtype == "bool":
            dtype = "int8"
        other = rounded(other, dtype)
        return pointwise(ctx, name, element, x, other, dtype=dtype, result="bool")


for _name, _element in _COMPARISONS.items():
    _register_comparison(_name, _element)


_LOGIC: dict[str, Element] = {
    "logical_and": tirx.all,
    "logical_or": tirx.any,
    "logical_xor": differ,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}


def _register_logic(name: str, element: Element, overloads: tuple[str, ...]) -> None:
    @converter(*(f"aten.{name}.{overload}" for overload in overloads))
    def convert_logic(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        if dtype_of_result(ctx) == "bool":
            chosen = _LOGIC[name.replace("bitwise", "logical")]
            return pointwise(ctx, name, chosen, x, other, dtype="bool")
        return pointwise(ctx, name, element, x, other, dtype=dtype_of_result(ctx))


for _name, _element in _LOGIC.items():
    _register_logic(
        _name, _element, ("default",) if _name.startswith("logical") else ("Tensor", "Scalar")
    )


@converter("aten.logical_not.default")
def convert_logical_not(ctx: Context, x: Tensor) -> Tensor:
    return pointwise(ctx, "logical_not", negation, x, dtype="bool")


@converter("aten.bitwise_not.default")
def convert_bitwise_not(ctx: Context, x: Tensor) -> Tensor:
    element = negation if x.dtype == "bool" else tirx.bitwise_not
    return pointwise(ctx, "bitwise_not", element, x, dtype=x.dtype)


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


# Choice and conversion.


def choose(ctx: Context, condition: Tensor, yes: Operand, no: Operand, dtype: str) -> Tensor:
    """``yes`` where the condition holds, else ``no``."""
    shape = broadcast(*(o.shape for o in (condition, yes, no) if isinstance(o, Tensor)))
    operands = [condition, yes, no]
    inputs = [o for o in operands if isinstance(o, Tensor) and _number(o) is None]

    def value(scope: Any, tensors: tuple[Any, ...], position: tuple[Any, ...]) -> Any:
        remaining = iter(tensors)
        elements = []
        for operand, wanted in zip(operands, ("bool", dtype, dtype), strict=True):
            number = _number(operand)
            if number is not None:
                elements.append(scope.number(number, wanted))
            else:
                read = next(remaining)(*broadcast_index(operand.shape, position))
                elements.append(convert(read, wanted))
        return tirx.Select(*elements)

    return ctx.compute("where", inputs, shape, dtype, value)


@converter(
    "aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar"
)
def convert_where(ctx: Context, condition: Tensor, x: Operand, other: Operand) -> Tensor:
    return choose(ctx, condition, x, other, dtype_of_result(ctx))


@converter("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def convert_masked_fill(ctx: Context, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return choose(ctx, mask, value, x, dtype_of_result(ctx))


@converter(
    "aten._to_copy.default",
    "aten.to.dtype",
    "prims.convert_element_type.default",
    takes_halves=True,
)
def convert_to_copy(ctx: Context, x: Tensor) -> Tensor:
    return ctx.cast(x, dtype_of_result(ctx))


@converter(
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
    takes_halves=True,
)
def convert_clone(ctx: Context, x: Tensor) -> Tensor:
    return x  # nothing in the graph writes to a tensor, so the same one will do


@converter("aten.copy.default", takes_halves=True)
def convert_copy(ctx: Context, x: Tensor, src: Tensor) -> Tensor:
    return ctx.stretch(ctx.cast(src, x.dtype), x.shape)
