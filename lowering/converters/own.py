"""Ops that come with a kernel of their own: see `lowering.own_ops`."""

from __future__ import annotations

import tvm

from ..context import Context
from ..own_ops import OWN, kernel_name
from ..symbols import as_shape
from ..tensor import DTYPES, Tensor
from .registry import converter


@converter(str(OWN), takes_halves=True)
def convert_own(ctx: Context, inputs: tuple[Tensor, ...], number: int, name: str) -> Tensor:
    kernel, expected = ctx.own[number], ctx.expected()
    return ctx.call_with(
        kernel_name(name),
        tvm.ir.load_json(kernel.function),
        inputs,
        [ctx.symbols.variable(size) for size in kernel.sizes],
        as_shape(expected.shape),
        DTYPES[expected.dtype],
    )
