"""Common divisors and multiples of integers."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context
from ..kernels.prim_func import let, local, store
from ..tensor import Tensor
from .elementwise import dtype_of_result
from .registry import converter
from .stepwise import stepwise


@converter("aten.gcd.default")
def convert_gcd(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return _common(ctx, "gcd", x, other)


@converter("aten.lcm.default")
def convert_lcm(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    return _common(ctx, "lcm", x, other)


def _common(ctx: Context, name: str, x: Tensor, other: Tensor) -> Tensor:
    """The greatest divisor that two integers have in common, by Euclid, or their least multiple."""
    dtype = dtype_of_result(ctx)
    one, zero = tirx.const(1, dtype), tirx.const(0, dtype)

    def element(a: Any, b: Any) -> Any:
        small, divisor = local((1,), dtype), local((1,), dtype)
        store(small, tirx.abs(a), 0, lanes=1)
        store(divisor, tirx.abs(b), 0, lanes=1)
        with T.While(tirx.NE(small[0], zero)):
            held = let(small[0])
            store(small, tirx.truncmod(divisor[0], held), 0, lanes=1)
            store(divisor, held, 0, lanes=1)
        if name == "gcd":
            return divisor[0]
        return tirx.abs(tirx.truncdiv(a, tirx.max(divisor[0], one)) * b)  # of two zeros, 0

    return stepwise(ctx, name, element, x, other, dtype)
