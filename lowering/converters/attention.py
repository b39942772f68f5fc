"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..symbols import Size
from ..tensor import Tensor
from .elementwise import choose, pointwise
from .linear import matrix_product
from .norm import softmax
from .registry import converter


@converter("aten.scaled_dot_product_attention.default")
def convert_attention(
    ctx: Context,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: Any,
    scale: float | None,
    enable_gqa: Any,
) -> Tensor:
    """Query ``[..., s, d]``, key ``[..., t, d]``, value ``[..., t, dv]`` → ``[..., s, dv]``."""
    dtype = query.dtype
    width = query.shape[-1]
    if not isinstance(width, int):
        raise Unsupported("with a head size that varies")
    if enable_gqa:
        key, value = (_repeat_heads(ctx, t, query.shape[-3]) for t in (key, value))
    factor = 1 / math.sqrt(width) if scale is None else scale
    scores = matrix_product(ctx, query, key, transpose_b=True)
    scores = pointwise(ctx, "scale", lambda a, b: a * b, scores, factor, dtype=dtype)
    if is_causal:
        scores = _causal(ctx, scores)
    if attn_mask is not None and attn_mask.dtype == "bool":
        scores = choose(ctx, attn_mask, scores, -math.inf, dtype)
    elif attn_mask is not None:
        scores = pointwise(ctx, "add", lambda a, b: a + b, scores, attn_mask, dtype=dtype)
    weights = softmax(ctx, scores, scores.rank - 1)
    if attn_mask is not None or is_causal:
        # torch gives 0, not NaN, for a query that may look at nothing.
        weights = pointwise(
            ctx,
            "defined",
            lambda a: tirx.Select(tirx.isnan(a), tirx.const(0, dtype), a),
            weights,
            dtype=dtype,
        )
    return matrix_product(ctx, weights, value)


def _repeat_heads(ctx: Context, x: Tensor, heads: Size) -> Tensor:
    own = x.shape[-3]
    if not isinstance(own, int) or not isinstance(heads, int):
        raise Unsupported("with enable_gqa and a number of heads that varies")
    if own == heads:
        return x
    group = tirx.IntImm("int64", heads // own)
    shape = (*x.shape[:-3], heads, *x.shape[-2:])

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        *outer, head, row, column = position
        return tensors[0](*outer, tirx.floordiv(head, group), row, column)

    return ctx.compute("repeat_heads", [x], shape, x.dtype, element)


def _causal(ctx: Context, scores: Tensor) -> Tensor:
    """Key ``t`` is hidden from query ``s`` where ``t > s``: torch aligns to the upper left."""

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        row, column = position[-2:]
        hidden = tirx.const(-math.inf, scores.dtype)
        return tirx.Select(column <= row, tensors[0](*position), hidden)

    return ctx.compute("causal", [scores], scores.shape, scores.dtype, element)
