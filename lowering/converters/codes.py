"""Weights that are kept as int8, and what the graph does to make floats of them.

It does so before each product, which takes longer than the product where there are few rows. So what is
asked for is only noted (`Codes`), and the product's kernel makes floats of the integers in registers.
"""

from __future__ import annotations

from dataclasses import replace

from ..context import Context
from ..tensor import Codes, Tensor
from .elementwise import Operand


def codes_less(ctx: Context, x: Operand, zeros: Operand, dtype: str) -> Tensor | None:
    """``x - zeros`` where ``x`` is codes, and the zero points are all 0, and stay so; else None."""
    if not isinstance(x, Tensor):
        return None
    codes = x.codes or ctx.codes_of(x)
    if codes is None or codes.scale is not None:
        return None
    if isinstance(zeros, Tensor):
        if zeros.constant is None or bool(zeros.constant.value.any()):
            return None
        ctx.weights.freeze(zeros.constant, "is 0, and is not subtracted")
    elif zeros != 0:
        return None
    return Tensor(x.shape, dtype, codes=codes)


def codes_times(ctx: Context, x: Operand, scale: Operand, dtype: str) -> Tensor | None:
    """``x * scale`` in float32 where ``x`` is codes, and there is a scale of each entry along the first
    axis or of all; else None. Of narrower floats eager rounds each product."""
    if not isinstance(x, Tensor) or x.codes is None or x.codes.scale is not None:
        return None
    if dtype != "float32" or x.dtype in ("float16", "bfloat16"):
        return None
    if isinstance(scale, Tensor):
        if scale.constant is None or scale.dtype != dtype:
            return None
        rows = x.shape[0]
        if scale.shape != (rows, *(1,) * (x.rank - 1)):
            return None
        scale = ctx.reshape(scale, (rows,))
    elif not isinstance(scale, (int, float)):
        return None
    return replace(x, dtype=dtype, codes=Codes(x.codes.constant, scale))
