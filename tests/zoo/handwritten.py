"""Models as people write them by hand: einsums, windows, caches, resized images, normed weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tcexport.tools.zoo_rows import Row, floats, ids, row


class EinsumAttention(nn.Module):
    """Attention in one equation for each product, its weights by head."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Parameter(torch.randn(3, 4, 32, 8) * 0.2)
        self.outward = nn.Parameter(torch.randn(4, 8, 32) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.einsum("bnd,phde->pbhne", x, self.inward)
        scores = torch.einsum("bhie,bhje->bhij", q, k) / 8**0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return torch.einsum(
            "bhie,hed->bid", torch.einsum("bhij,bhje->bhie", weights, v), self.outward
        )


@row(batch=(1, 8), seq=(1, 64))
def einsum_attention() -> Row:
    return EinsumAttention(), {"x": floats("batch", "seq", 32)}


class Windows(nn.Module):
    """Liu et al. 2021: attention within shifted windows of a padded image; patches merged."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.merge = nn.Linear(8, 24), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, -w % 4, 0, -h % 4))
        rows, columns = x.shape[1] // 4, x.shape[2] // 4
        x = torch.roll(x, (-2, -2), (1, 2)).view(b, rows, 4, columns, 4, c)
        q, k, v = self.qkv(x.transpose(2, 3).reshape(-1, 16, c)).chunk(3, -1)
        x = F.scaled_dot_product_attention(q, k, v).view(b, rows, columns, 4, 4, c)
        x = x.transpose(2, 3).reshape(b, rows * 4, columns * 4, c)
        x = torch.roll(x, (2, 2), (1, 2))[:, :h, :w].contiguous()
        x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.merge(torch.cat(corners, -1))


@row(batch=(1, 4), height=(1, 24), width=(1, 24))
def shifted_windows() -> Row:
    return Windows(), {"x": floats("batch", "height", "width", 8)}


class StaticCache(nn.Module):
    """A step of decoding: keys and values are written at positions of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(99, 16), nn.Linear(16, 48)
        self.register_buffer("k", torch.zeros(4, 2, 32, 8))
        self.register_buffer("v", torch.zeros(4, 2, 32, 8))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        b, s = token.shape
        parts = self.qkv(self.table(token)).chunk(3, -1)
        q, k, v = (part.view(b, s, 2, 8).transpose(1, 2) for part in parts)
        self.k[:b, :, position] = k
        self.v[:b, :, position] = v
        seen = torch.arange(32) <= position[:, None]
        return F.scaled_dot_product_attention(q, self.k[:b], self.v[:b], attn_mask=seen)


@row(batch=(1, 4), seq=(1, 16))
def static_cache() -> Row:
    return StaticCache(), {"token": ids("batch", "seq"), "position": ids("seq", below=32)}


class Preprocessing(nn.Module):
    """Photos of any size as a classifier wants them: resized without aliasing, cropped, normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        x = photos.permute(0, 3, 1, 2).float() / 255
        x = F.interpolate(x, (24, 24), mode="bicubic", antialias=True)
        x = x[..., 4:20, 4:20].clamp(0, 1)
        return (x - self.mean) / self.deviation


@row(batch=(1, 4), height=(8, 64), width=(8, 64))
def image_preprocessing() -> Row:
    photos = ids("batch", "height", "width", 3, below=256, dtype=torch.uint8)
    return Preprocessing(), {"photos": photos}


class RotaryTables(nn.Module):
    """Tables of a rotary embedding that are kept until the length changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", 1e4 ** -(torch.arange(0, 8, 2) / 8), persistent=False)
        self.length, self.cos, self.sin = 0, None, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != self.length:
            angles = torch.outer(torch.arange(x.shape[1]), self.rates).repeat(1, 2)
            self.length, self.cos, self.sin = x.shape[1], angles.cos(), angles.sin()
        left, right = x.chunk(2, -1)
        return x * self.cos + torch.cat([-right, left], -1) * self.sin


@row(batch=(1, 8), seq=(1, 64))
def rotary_tables() -> Row:
    return RotaryTables(), {"x": floats("batch", "seq", 8)}


class Discriminator(nn.Module):
    """Miyato et al. 2018: weights divided by their largest singular value, by a hook at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.spectral_norm(nn.Conv2d(3, 8, 4, 2, 1))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 16, 4, 2, 1))
        self.last = nn.utils.spectral_norm(nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.first(x), 0.1)
        x = F.leaky_relu(self.second(x), 0.1)
        return self.last(x.sum(dim=(2, 3)))


@row(batch=(1, 4), height=(4, 40), width=(4, 40))
def spectral_norm() -> Row:
    return Discriminator(), {"x": floats("batch", 3, "height", "width")}
