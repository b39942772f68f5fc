"""float16 and bfloat16: eager's dtype at every op, its rounding at op boundaries."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

HALVES = [torch.float16, torch.bfloat16]


def floats(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


ELEMENTWISE = [
    lambda x: x + 0.1,
    lambda x: 2 - x,
    lambda x: x * x.shape[0],
    lambda x: x / 3,
    lambda x: x + x.float(),
    lambda x: x.abs().sqrt(),
    lambda x: -x,
    lambda x: x.exp(),
    torch.tanh,
    torch.sigmoid,
    torch.erf,
    lambda x: F.gelu(x.clamp(-9, 9)),  # eager: NaN for inf
    F.silu,
    F.relu,
    F.hardswish,
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: torch.maximum(x, x.flip(0)),
    lambda x: x > 0.1,
    lambda x: x >= 0.3,
    lambda x: x == x.flip(1),
    lambda x: torch.where(x > 0, x, 0.1),
    lambda x: x.masked_fill(x > 0, -math.inf),
    lambda x: x**2,
    lambda x: x // 0.3,
    lambda x: x % 0.7,
    lambda x: torch.fmod(x, 0.7),
    lambda x: x.float(),
    lambda x: x.double() * 0.1,
    lambda x: (x * 4).int(),
    lambda x: (x * 4).int().to(x.dtype),
    lambda x: x.double().to(x.dtype),
    lambda x: x.bool(),
    lambda x: x.isnan(),
    lambda x: torch.arange(x.shape[1], dtype=x.dtype) * 0.5,
    lambda x: torch.full_like(x, 0.3),
    lambda x: torch.zeros(3, dtype=x.dtype) + x.shape[0],
    lambda x: torch.cat([x, x[:1]]),
    lambda x: torch.stack([x, x], -1).transpose(0, 1),
    lambda x: F.pad(x, (1, 2), value=0.1),
    lambda x: x.tril(),
    lambda x: x[:, :1].expand(-1, 4).contiguous(),
    lambda x: x.roll(1, 0).repeat(2, 1),
]


@pytest.mark.parametrize("dtype", HALVES)
def test_elementwise_and_moves(agree, dtype: torch.dtype) -> None:
    special = torch.tensor([[math.nan, math.inf, -math.inf, 0.0], [-0.0, 0.1, 0.3, 1e-7]])
    # Where a remainder jumps: what 0.7 is once it is rounded, and its neighbour below.
    jump = torch.tensor([[0.7, -0.7, 1.4, 0.699]])
    drawn = [floats(3, 4, dtype=dtype), floats(1, 1, dtype=dtype)]
    agree(ELEMENTWISE, *((x.to(dtype),) for x in (drawn[0], special, drawn[1], jump)))


REDUCTIONS = [
    lambda x: x.sum(-1),
    lambda x: x.sum(0),
    lambda x: x.mean((0, 2)),
    lambda x: x.var(-1),
    lambda x: x.amax(1),
    lambda x: tuple(x.max(1)),
    lambda x: x.argmin(2),
    lambda x: x.prod(0),
    lambda x: x.norm(dim=-1),
    lambda x: x.cumsum(1),
    lambda x: x.softmax(-1),
    lambda x: x.softmax(0),
    lambda x: x.softmax(-1, dtype=torch.float32),
    lambda x: x.log_softmax(-1),
    lambda x: x.logsumexp(1),
    lambda x: (x > 0).any(1),
    lambda x: x.sum(dtype=torch.float32),
    lambda x: F.layer_norm(x, (x.shape[-1],)),
    lambda x: F.normalize(x, dim=-1),
]


@pytest.mark.parametrize("dtype", HALVES)
def test_reductions(agree, dtype: torch.dtype) -> None:
    auto = torch.export.Dim.AUTO
    calls = [(floats(*shape, dtype=dtype),) for shape in ((3, 5, 40), (1, 1, 40), (2, 9, 40))]
    agree(REDUCTIONS, *calls, dynamic=(({0: auto, 1: auto},),))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 24)
        self.first = nn.Linear(24, 40)
        self.second = nn.Linear(40, 24, bias=False)
        self.norm = nn.LayerNorm(24)
        self.rms = nn.RMSNorm(24)
        self.matrix = nn.Parameter(torch.randn(24, 6))
        self.offset = nn.Parameter(torch.randn(6))

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + self.table(ids)
        hidden = self.second(F.gelu(self.first(x)))
        heads = x.unflatten(-1, (3, 8)).transpose(1, 2)
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return (
            hidden,
            x + self.second(F.relu(self.first(x))),
            self.norm(x + hidden),
            self.rms(x),
            x @ self.matrix + self.offset,
            torch.addmm(self.offset, x[0], self.matrix),
            heads @ heads.mT,
            F.scaled_dot_product_attention(heads, heads, heads),
            F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
            F.scaled_dot_product_attention(heads, heads, heads, attn_mask=keep),
            x[:, :1].softmax(-1),
            x.softmax(1),
            x.log_softmax(-1),
            F.scaled_dot_product_attention(heads, heads, heads, attn_mask=keep.to(x.dtype)),
            F.scaled_dot_product_attention(heads, heads[..., :2, :], heads[..., :2, :5]),
            F.layer_norm(x, x.shape[-1:], self.norm.weight.float()),
        )


@pytest.mark.parametrize("dtype", HALVES)
def test_layers_of_a_transformer(agree, dtype: torch.dtype) -> None:
    calls = [
        (torch.randint(0, 9, (b, s)), floats(b, s, 24, dtype=dtype))
        for b, s in ((2, 5), (1, 1), (3, 17))
    ]
    auto = torch.export.Dim.AUTO
    axes = ({0: auto, 1: auto}, {0: auto, 1: auto})
    compiled = agree(Layers().to(dtype), *calls, dynamic=axes)
    kept = dict(zip(compiled.answer.main.weights, compiled.kept, strict=True))
    assert kept["first.weight:packed32"].dtype == dtype


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.groups = nn.GroupNorm(2, 8)
        self.line = nn.Conv1d(4, 6, 3, stride=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(self.norm(self.conv(x)))
        return (
            y,
            self.groups(y),
            self.line(x[:, :, 0]),
            F.max_pool2d(y, 2),
            F.avg_pool2d(y, 3, 1, 1),
            F.adaptive_avg_pool2d(y, 1),
        )


class LargeImages(nn.Module):
    """Convolutions with their channels last, weights of halves in panels and in vectors, and without a
    border; what has no such kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 36, 3, padding=1)
        self.wide = nn.Conv2d(36, 72, 3, stride=2, padding=1, groups=2)
        self.depthwise = nn.Conv2d(72, 72, 3, groups=72, bias=False)
        self.small = nn.Conv2d(72, 72, 3, padding=(0, 1), groups=18)
        self.point = nn.Conv2d(72, 72, 1)
        self.odd = nn.Conv2d(72, 15, 3, groups=3)
        self.line = nn.Conv1d(72, 90, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = F.relu(self.stem(x))
        y = self.depthwise(F.silu(self.wide(x)))
        y = F.relu(self.point(y) + y)
        return y, self.small(y), self.odd(y), self.line(y.flatten(2))


@pytest.mark.parametrize("dtype", HALVES)
def test_convolutions_keep_their_weights(agree, dtype: torch.dtype) -> None:
    calls = [(floats(b, 4, 13, 12, dtype=dtype) / 4,) for b in (2, 1, 3)]
    compiled = agree(LargeImages().to(dtype), *calls, dynamic=({0: torch.export.Dim.AUTO},))
    kept = dict(zip(compiled.answer.main.weights, compiled.kept, strict=True))
    for name in ("stem", "wide", "depthwise", "small", "point"):
        assert kept[f"{name}.weight:conv-last"].dtype is dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_convolutions_and_pools(agree, dtype: torch.dtype) -> None:
    calls = [(floats(b, 4, 8, 9, dtype=dtype),) for b in (2, 1, 3)]
    agree(Images().to(dtype), *calls, dynamic=({0: torch.export.Dim.AUTO},))
