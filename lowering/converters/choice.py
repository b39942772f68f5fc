"""Choice of one of two elements, conversion, and copies."""

from __future__ import annotations

from tvm import tirx

from ..context import Context
from ..tensor import Tensor
from .elementwise import Operand, dtype_of_result, elementwise
from .registry import converter


def choose(ctx: Context, condition: Tensor, yes: Operand, no: Operand, dtype: str) -> Tensor:
    """``yes`` where the condition holds, else ``no``."""
    operands, dtypes = (condition, yes, no), ("bool", dtype, dtype)
    return elementwise(ctx, "where", tirx.Select, operands, dtypes, dtype)


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
