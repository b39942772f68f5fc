"""The checks of `lowering.checks`."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..checks import CHECK_INDEX, REQUIRE
from ..context import Context, Unsupported
from ..kernels.check import checked_copy, required_copy
from ..symbols import Size, Symbols, product
from ..tensor import Tensor
from .registry import converter


@converter(str(CHECK_INDEX))
def convert_check_index(
    ctx: Context, indices: Tensor, size: Size, wraps: bool, number: int
) -> Tensor:
    if ctx.on_gpu:
        raise Unsupported(
            "on a GPU: indices that the model computes cannot be looked at during a call",
            "indices.clamp(0, size - 1), which proves where they lie",
        )
    scope = Symbols()

    def extent() -> tuple[list[tirx.Var], Any]:
        expression = scope.size(size)
        return [scope.variables[name] for name in sorted(scope.variables)], expression

    function = checked_copy(indices.dtype, extent, wraps=wraps, number=number)
    flat = ctx.reshape(indices, (product(indices.shape),))
    sizes = [ctx.symbols.variable(name) for name in sorted(scope.variables)]
    copy = ctx.call_with("check_index", function, [flat], sizes, flat.shape, indices.dtype)
    return ctx.reshape(copy, indices.shape)


@converter(str(REQUIRE))
def convert_require(ctx: Context, values: Tensor, holds: Tensor, number: int) -> Tensor:
    return required(ctx, values, holds, f"tcexport check {number}")


def required(ctx: Context, values: Tensor, holds: Tensor, message: str) -> Tensor:
    """The values; the call fails with the message where one of the bools is false."""
    if ctx.on_gpu:
        raise Unsupported(
            "on a GPU: what the model asserts of its values cannot be looked at during a call",
            "--target cpu",
        )
    flat = ctx.reshape(values, (product(values.shape),))
    conditions = ctx.reshape(holds, (product(holds.shape),))
    function = required_copy(values.dtype, message=message)
    copy = ctx.call_with("require", function, [flat, conditions], [], flat.shape, values.dtype)
    return ctx.reshape(copy, values.shape)
