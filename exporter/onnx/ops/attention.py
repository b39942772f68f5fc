"""Attention and rotary embeddings, as opset 23 has them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import as_tensor
from ..operands import require
from ..registry import operator


@operator("Attention", since=23)
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    *,
    outputs: int,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """Of [batch, heads, seq, size], or of [batch, seq, heads * size] with the numbers of heads."""
    q, k, v = (as_tensor(each) for each in (q, k, v))
    flat = q.dim() == 3
    if flat:
        require(bool(q_num_heads and kv_num_heads), "of 3 axes needs q_num_heads and kv_num_heads")
        q, k, v = (_heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads))
    before: Any = 0
    if past_key is not None:
        before = past_key.shape[2]
        k, v = torch.cat([as_tensor(past_key), k], 2), torch.cat([as_tensor(past_value), v], 2)
    present = (k, v)
    groups = q.shape[1] // k.shape[1]
    if groups != 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    added = None if mask is None else as_tensor(mask)
    causal = bool(is_causal)
    if causal and (added is not None or past_key is not None):
        rows = torch.arange(q.shape[2]).unsqueeze(1) + before
        seen = torch.arange(k.shape[2]) <= rows
        if added is None:
            added = seen
        elif added.dtype == torch.bool:
            added = added & seen
        else:
            added = torch.where(seen, added, added.new_full((), float("-inf")))
        causal = False
    if softcap or outputs > 3:
        result, shown = _in_steps(q, k, v, added, causal, scale, softcap, qk_matmul_output_mode)
    else:
        shown = None
        result = F.scaled_dot_product_attention(q, k, v, added, is_causal=causal, scale=scale)
    if flat:
        result = result.transpose(1, 2).flatten(2)
    return (result, *present, shown)[:outputs]


def _in_steps(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    softcap: float,
    shown: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the scores as they are after step ``shown`` of the specification: 0 the product,
    1 with softcap, 2 with the mask, 3 the weights."""
    require(shown in range(4), f"is not read with qk_matmul_output_mode={shown}")
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(q, k.transpose(-1, -2)) * factor
    steps = [scores]
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    steps.append(scores)
    if causal:
        mask = torch.arange(k.shape[2]) <= torch.arange(q.shape[2]).unsqueeze(1)
    if mask is not None:
        hidden = scores.new_full((), float("-inf"))
        scores = torch.where(mask, scores, hidden) if mask.dtype == torch.bool else scores + mask
    steps.append(scores)
    # A row of which everything is hidden weighs nothing.
    some = (scores > float("-inf")).any(-1, keepdim=True)
    weights = torch.where(some, torch.softmax(scores, -1), torch.zeros_like(scores))
    steps.append(weights)
    return torch.matmul(weights, v), steps[shown]


def _heads(x: torch.Tensor, count: int | None) -> torch.Tensor:
    return x.unflatten(2, (count or 1, -1)).transpose(1, 2)


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Any,
    cosines: Any,
    sines: Any,
    positions: Any = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> torch.Tensor:
    x, cos, sin = as_tensor(x), as_tensor(cosines), as_tensor(sines)
    flat = x.dim() == 3
    if flat:
        require(num_heads > 0, "of 3 axes needs num_heads")
        x = _heads(x, num_heads)
    size = rotary_embedding_dim or x.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if positions is not None:
        places = as_tensor(positions).to(torch.int64)
        cos, sin = cos[places], sin[places]
    cos, sin = cos[..., : size // 2].unsqueeze(1), sin[..., : size // 2].unsqueeze(1)
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turned[..., : size // 2], turned[..., size // 2 :]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    result = torch.cat([turned, rest], -1) if rotary_embedding_dim else turned
    return result.transpose(1, 2).flatten(2) if flat else result
