"""Common divisors and multiples of integers."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context
from ..kernels.prim_func import let, local, parallel, store
from ..symbols import product
from ..tensor import Tensor
from .elementwise import dtype_of_result, pointwise
from .registry import converter


@converter("aten.gcd.default")
def convert_gcd(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return _common(ctx, "gcd", x, other)


@converter("aten.lcm.default")
def convert_lcm(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return _common(ctx, "lcm", x, other)


def _common(ctx: Context, name: str, x: Tensor, other: Tensor) -> Tensor:
    """The greatest divisor that two integers have in common, by Euclid, or their least multiple."""
    dtype = dtype_of_result(ctx)
    first = pointwise(ctx, "first", lambda a, _: a, x, other, dtype=dtype)
    second = pointwise(ctx, "second", lambda _, b: b, x, other, dtype=dtype)
    length = product(first.shape)

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
        with parallel(scope.size(length)) as i:
            a, b = let(inputs[0][i]), let(inputs[1][i])
            small, divisor = local((1,), dtype), local((1,), dtype)
            store(small, tirx.abs(a), 0, lanes=1)
            store(divisor, tirx.abs(b), 0, lanes=1)
            with T.While(tirx.NE(small[0], zero)):
                held = let(small[0])
                store(small, tirx.truncmod(divisor[0], held), 0, lanes=1)
                store(divisor, held, 0, lanes=1)
            value = divisor[0]
            if name == "lcm":  # of two zeros, 0
                value = tirx.abs(tirx.truncdiv(a, tirx.max(value, one)) * b)
            store(results[0], value, i, lanes=1)

    flat = [ctx.reshape(each, (length,)) for each in (first, second)]
    (result,) = ctx.procedure(name, flat, [((length,), dtype)], emit)
    return ctx.reshape(result, first.shape)
