"""Powers."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context
from ..kernels.prim_func import let, local, parallel, store
from ..symbols import Scalar, product
from ..tensor import Tensor
from .elementwise import Operand, as_number, constant, dtype_of_result, is_float, libm, pointwise
from .registry import converter


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
