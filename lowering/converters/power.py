"""Powers."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context
from ..kernels.prim_func import local, store
from ..symbols import Scalar
from ..tensor import Tensor
from .elementwise import Operand, as_number, constant, dtype_of_result, is_float, libm, pointwise
from .registry import converter
from .stepwise import stepwise


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
    number = as_number(exponent)
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
    one, zero, two = (tirx.const(number, dtype) for number in (1, 0, 2))

    def element(a: Any, b: Any) -> Any:
        square, left, total = local((1,), dtype), local((1,), dtype), local((1,), dtype)
        for variable, value in ((square, a), (left, b), (total, one)):
            store(variable, value, 0, lanes=1)
        with T.While(left[0] > zero):
            odd = tirx.EQ(left[0] % two, one)
            with T.If(odd), T.Then():
                store(total, total[0] * square[0], 0, lanes=1)
            store(square, square[0] * square[0], 0, lanes=1)
            store(left, tirx.truncdiv(left[0], two), 0, lanes=1)
        if dtype.startswith("uint"):
            return total[0]
        minus_one = tirx.const(-1, dtype)
        even = tirx.EQ(tirx.truncmod(b, two), zero)
        sign = tirx.Select(even, one, minus_one)
        tiny = tirx.Select(tirx.EQ(a, minus_one), sign, zero)
        tiny = tirx.Select(tirx.EQ(a, one), one, tiny)
        return tirx.Select(b < zero, tiny, total[0])

    return stepwise(ctx, "power", element, x, exponent, dtype)


@converter("aten.pow.Scalar")
def convert_pow_scalar(ctx: Context, x: Scalar, exponent: Tensor) -> Tensor:
    dtype = dtype_of_result(ctx)
    if not is_float(dtype):
        return _integer_powers(ctx, x, exponent, dtype)
    return pointwise(ctx, "power", _power, x, exponent, dtype=dtype)
