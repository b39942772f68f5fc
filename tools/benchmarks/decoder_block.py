"""One block of a Llama-like decoder: RMS norm, rotary positions, grouped-query attention, SwiGLU."""

import torch
from torch import nn
from torch.nn import functional as F


class DecoderBlock(nn.Module):
    def __init__(
        self,
        width: int = 1024,
        heads: int = 16,
        groups: int = 4,
        hidden: int = 2816,
        longest: int = 2048,
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        frequency = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angle = torch.outer(torch.arange(longest), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[2]
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return x * self.cos[:length] + turned * self.sin[:length]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        x = self.attention_norm(hidden)
        query = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        value = self.value(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        seen = F.scaled_dot_product_attention(
            self.rotated(query), self.rotated(key), value, is_causal=True, enable_gqa=True
        )
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        x = self.norm(hidden)
        return hidden + self.down(F.silu(self.gate(x)) * self.up(x))


torch.manual_seed(0)
model = DecoderBlock()
example_inputs = (torch.randn(2, 16, 1024),)
axes = {"hidden": ("batch", "seq", None)}

dynamic = ["batch=1..16", "seq=1..2048"]
sizes = ["batch=1,seq=16", "batch=1,seq=128", "batch=4,seq=128", "batch=1,seq=512"]
