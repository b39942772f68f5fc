"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..cuda import attention as on_gpu
from ..kernels.attention import attention
from ..symbols import Size
from ..tensor import HALVES, Tensor
from .choice import choose
from .elementwise import pointwise
from .linear import matrix_product
from .norm import softmax
from .registry import converter


@converter("aten.scaled_dot_product_attention.default", takes_halves=True)
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
    width = query.shape[-1]
    if not isinstance(width, int):
        raise Unsupported("with a head size that varies")
    factor = 1 / math.sqrt(width) if scale is None else scale
    heads_agree = enable_gqa or query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    mask_dtype = None if attn_mask is None else attn_mask.dtype
    dtype = query.dtype
    if (
        ctx.on_gpu
        and heads_agree
        and mask_dtype in (None, "bool", dtype)
        and _fits_gpu(query, key, value)
    ):
        return _on_gpu(ctx, query, key, value, attn_mask, bool(is_causal), factor)
    if (
        not ctx.on_gpu
        and dtype in HALVES | {"float32"}
        and heads_agree
        and query.rank in (3, 4)
        and isinstance(value.shape[-1], int)
        and mask_dtype in HALVES | {None, "bool", "float32"}
    ):
        return _flash(ctx, query, key, value, attn_mask, bool(is_causal), factor)
    if enable_gqa:
        key, value = (_repeat_heads(ctx, t, query.shape[-3]) for t in (key, value))
    if dtype in HALVES:
        query, key, value = (ctx.cast(t, "float32") for t in (query, key, value))
    if attn_mask is not None and mask_dtype in HALVES:
        attn_mask = ctx.cast(attn_mask, "float32")
    result = _in_steps(ctx, query, key, value, attn_mask, bool(is_causal), factor)
    return ctx.cast(result, dtype)


def _fits_gpu(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether there is a kernel for a GPU for this dtype, and heads of these numbers and sizes."""
    sizes = (query.shape[-1], value.shape[-1])
    return (
        query.dtype in HALVES | {"float32"}
        and query.rank in (3, 4)
        and query.shape[:-3] == key.shape[:-3] == value.shape[:-3]
        and key.shape[-3] == value.shape[-3]
        and all(isinstance(n, int) and 0 < n <= on_gpu.WIDEST_HEAD for n in sizes)
    )


def _on_gpu(
    ctx: Context,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    factor: float,
) -> Tensor:
    """All in one kernel: masks are not broadcast, nor heads repeated, in memory."""
    shape = (*query.shape[:-1], value.shape[-1])
    if query.rank == 3:
        query, key, value = (ctx.reshape(t, (1, *t.shape)) for t in (query, key, value))
    inputs = [query, key, value]
    broadcast = (True, True, True, True)
    if mask is not None:
        mask = ctx.reshape(mask, (1,) * (4 - mask.rank) + mask.shape)
        inputs.append(mask)
        first, second, third, fourth = (size == 1 for size in mask.shape)
        broadcast = (first, second, third, fourth)
    width, value_width = query.shape[-1], value.shape[-1]
    assert isinstance(width, int) and isinstance(value_width, int)
    function = on_gpu.attention(
        width,
        value_width,
        dtype=query.dtype,
        causal=causal,
        mask=None if mask is None else mask.dtype,
        broadcast=broadcast,
        scale=factor,
    )
    made = ctx.launch("attention", function, inputs, (*query.shape[:-1], value_width), query.dtype)
    return ctx.reshape(made, shape)


def _flash(
    ctx: Context,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    factor: float,
) -> Tensor:
    """All in one kernel, which never holds a whole matrix of scores."""
    shape = (*query.shape[:-1], value.shape[-1])
    if query.rank == 3:
        query, key, value = (ctx.reshape(t, (1, *t.shape)) for t in (query, key, value))
    batch, heads, rows, width = query.shape
    inputs = [query, key, value]
    if mask is not None:
        mask = ctx.reshape(mask, ((1,) * (4 - mask.rank)) + mask.shape)
        mask = ctx.stretch(mask, (*mask.shape[:2], rows, key.shape[2]))
        inputs.append(mask)
    function = attention(
        width,
        value.shape[-1],
        causal=causal,
        mask=None if mask is None else "bool" if mask.dtype == "bool" else "float",
        mask_batch=mask is not None and mask.shape[0] != 1,
        mask_heads=mask is not None and mask.shape[1] != 1,
        scale=factor,
        target=ctx.cpu,
        dtype=query.dtype,
        mask_dtype="float32" if mask is None else mask.dtype,
    )
    made = (batch, heads, rows, value.shape[-1])
    result = ctx.call("attention", function, inputs, made, query.dtype)
    return ctx.reshape(result, shape)


def _in_steps(
    ctx: Context,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    factor: float,
) -> Tensor:
    """Product, mask, softmax and product, for what the kernel does not take."""
    dtype = query.dtype
    scores = matrix_product(ctx, query, key, transpose_b=True)
    scores = pointwise(ctx, "scale", lambda a, b: a * b, scores, factor, dtype=dtype)
    if causal:
        scores = _causal(ctx, scores)
    if mask is not None and mask.dtype == "bool":
        scores = choose(ctx, mask, scores, -math.inf, dtype)
    elif mask is not None:
        scores = pointwise(ctx, "add", lambda a, b: a + b, scores, mask, dtype=dtype)
    weights = softmax(ctx, scores, scores.rank - 1)
    if mask is not None or causal:
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
