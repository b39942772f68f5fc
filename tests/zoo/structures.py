"""Models that are no stack of layers: recommenders, graphs, boxes, spectra, points, half precision."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

from tcexport.tools.zoo_rows import Row, floats, ids, mask, row, uniform


class Dlrm(nn.Module):
    """Naumov et al. 2019: embedding bags and dense features, all pairs multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8))
        self.bags = nn.ModuleList(nn.EmbeddingBag(100, 8, mode="sum") for _ in range(3))
        self.over = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        first = self.dense(dense)
        all_of = [first, *(bag(sparse[:, index]) for index, bag in enumerate(self.bags))]
        stacked = torch.stack(all_of, dim=1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        joined = torch.cat([first, pairs[:, rows, columns]], dim=1)
        return torch.sigmoid(self.over(joined)).squeeze(1)


@row(batch=(1, 64), bag=(1, 12))
def dlrm() -> Row:
    return Dlrm(), {"dense": floats("batch", 13), "sparse": ids("batch", 3, "bag")}


class TwoTower(nn.Module):
    """Scores of users and items: embeddings, means over what was seen, a normalized product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 16), nn.Embedding(200, 16, padding_idx=0)
        self.tower = nn.Sequential(
            nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16)
        )

    def forward(
        self, user: torch.Tensor, seen: torch.Tensor, candidates: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        counted = (seen != 0).sum(dim=1, keepdim=True).clamp(min=1)
        history = self.items(seen).sum(dim=1) / counted
        left = F.normalize(self.tower(torch.cat([self.users(user), history], dim=1)), dim=1)
        scores = torch.einsum("bd,bcd->bc", left, F.normalize(self.items(candidates), dim=2))
        best = scores.topk(3, dim=1)
        return best.values, candidates.gather(1, best.indices)


@row(batch=(1, 32), seen=(1, 20), items=(3, 40))
def two_tower() -> Row:
    inputs = {
        "user": ids("batch", below=50),
        "seen": ids("batch", "seen", below=200),
        "candidates": ids("batch", "items", below=200),
    }
    return TwoTower(), inputs


class Gcn(nn.Module):
    """Kipf and Welling 2017 over a list of edges: sums by destination, divided by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    @staticmethod
    def spread(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        degree = x.new_ones(x.shape[0]).index_add(0, target, x.new_ones(target.shape[0]))
        scale = degree.rsqrt()
        messages = x[source] * (scale[source] * scale[target])[:, None]
        return (x * (scale * scale)[:, None]).index_add(0, target, messages)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.spread(self.first(x), edges))
        return self.spread(self.second(x), edges).log_softmax(dim=1)


@row(nodes=(8, 64), edges=(1, 200))
def gcn() -> Row:
    return Gcn(), {"x": floats("nodes", 8), "edges": ids(2, "edges", below=8)}


class Gat(nn.Module):
    """Veličković et al. 2018: a softmax over the edges of each node, by scatter_reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.source, self.target = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = self.project(x)
        source, target = edges[0], edges[1]
        scores = F.leaky_relu(self.source(x)[source] + self.target(x)[target], 0.2)[:, 0]
        least = torch.full((x.shape[0],), -1e30, dtype=x.dtype)
        largest = least.scatter_reduce(0, target, scores, "amax")
        weights = (scores - largest[target]).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, target, weights)
        weights = weights / total[target]
        return torch.zeros_like(x).index_add(0, target, x[source] * weights[:, None])


@row(nodes=(8, 64), edges=(1, 200))
def gat() -> Row:
    return Gat(), {"x": floats("nodes", 8), "edges": ids(2, "edges", below=8)}


class Nms(nn.Module):
    """Boxes that no better one overlaps, decided for all pairs at once, as in SOLOv2."""

    def forward(
        self, boxes: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        order = scores.argsort(descending=True)
        corner, extent = boxes[order].chunk(2, dim=1)
        low, high = corner, corner + extent
        overlap = (
            torch.minimum(high[:, None], high[None]) - torch.maximum(low[:, None], low[None])
        ).clamp(min=0)
        common = overlap.prod(dim=2)
        area = extent.prod(dim=1)
        iou = common / (area[:, None] + area[None] - common).clamp(min=1e-6)
        keep = iou.triu(diagonal=1).amax(dim=0) < 0.5
        return torch.where(keep, scores[order], 0.0), order


@row(boxes=(1, 60))
def nms_like() -> Row:
    return Nms(), {"boxes": uniform("boxes", 4), "scores": uniform("boxes")}


class Kept(nn.Module):
    """How many there are depends on the data."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return boxes[scores > 0.5] * 2


@row(boxes=(1, 60))
def boolean_mask() -> Row:
    return Kept(), {"boxes": floats("boxes", 4), "scores": uniform("boxes")}


class SpectralMixer(nn.Module):
    """FNet's mixing (Lee-Thorp et al. 2021) and a filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(17))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.fft.fft(torch.fft.fft(x, dim=2), dim=1).real
        spectrum = torch.fft.rfft(x, dim=2) * self.filter
        return mixed + torch.fft.irfft(spectrum, n=32, dim=2)


@row(batch=(1, 4), seq=(1, 24))
def spectral_mixer() -> Row:
    return SpectralMixer(), {"x": floats("batch", "seq", 32)}


class Spectrogram(nn.Module):
    """The front of a speech recognizer: stft, mel, log."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("mel", torch.rand(33, 12))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(wave, 64, 32, window=self.window, return_complex=True)
        return torch.log1p(spectrum.abs().square().transpose(1, 2) @ self.mel)


@row(batch=(1, 4), samples=(128, 800))
def spectrogram() -> Row:
    return Spectrogram(), {"wave": floats("batch", "samples")}


class ComplexRotary(nn.Module):
    """Attention with rotary embeddings as Llama's own code has them: complex multiplication."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        angles = torch.outer(torch.arange(64.0), 1e4 ** -(torch.arange(0, 8, 2) / 8))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * self.turns[: x.shape[1]].unsqueeze(1)
        return torch.view_as_real(turned).flatten(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, 4, 8).unbind(2)
        q, k, v = (each.transpose(1, 2) for each in (self.turned(q), self.turned(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(batch, seq, 32)


@row(batch=(1, 4), seq=(1, 40))
def complex_rotary() -> Row:
    return ComplexRotary(), {"x": floats("batch", "seq", 32)}


class QuantizedMlp(nn.Module):
    """int8 weights and activations, int32 sums, as quantized models spell them in plain ops."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"first": (32, 64), "second": (64, 16)}.items():
            self.register_buffer(name, torch.randint(-127, 128, shape, dtype=torch.int8))

    @staticmethod
    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-6) / 127
        codes = (x / scale).round().clamp(-127, 127).to(torch.int8)
        return (codes.to(torch.int32) @ weight.to(torch.int32)).float() * scale * 0.01

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(F.relu(self.product(x, self.first)), self.second)


@row(batch=(1, 64))
def quantized_mlp() -> Row:
    return QuantizedMlp(), {"x": floats("batch", 32)}


class PointNet(nn.Module):
    """Qi et al. 2017: the same network for every point, a maximum over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.turn = nn.Linear(16, 9)
        self.last = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        turn = self.turn(self.each(points).amax(dim=2)).view(-1, 3, 3) + torch.eye(3)
        return self.last(self.each(torch.bmm(turn, points)).amax(dim=2))


@row(batch=(1, 4), points=(1, 100))
def pointnet() -> Row:
    return PointNet(), {"points": floats("batch", 3, "points")}


class Experts(nn.Module):
    """A sparse mixture without a loop: all experts compute, the two best count."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(16, 4)
        self.weights = nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.route(x).softmax(-1).topk(2, dim=-1)
        gates = torch.zeros(*x.shape[:-1], 4).scatter(-1, chosen.indices, chosen.values)
        return torch.einsum("bsd,edf,bse->bsf", x, self.weights, gates)


@row(batch=(1, 4), seq=(1, 40))
def dense_experts() -> Row:
    return Experts(), {"x": floats("batch", "seq", 16)}


class Warp(nn.Module):
    """A spatial transformer (Jaderberg et al. 2015): an affine grid, sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Linear(3, 6)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        theta = self.turn(image.mean(dim=(2, 3))).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(image.shape), align_corners=False)
        return F.grid_sample(image, grid, align_corners=False)


@row(batch=(1, 4), height=(8, 40), width=(8, 40))
def spatial_transformer() -> Row:
    return Warp(), {"image": floats("batch", 3, "height", "width")}


class VectorQuantizer(nn.Module):
    """The nearest entry of a codebook, and how often each was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        nearest = torch.cdist(x.reshape(-1, 8), self.codes.weight).argmin(dim=1)
        counts = F.one_hot(nearest, 32).sum(dim=0)
        return self.codes(nearest).view_as(x), nearest.view(x.shape[:-1]), counts


@row(batch=(1, 4), seq=(1, 40))
def vector_quantizer() -> Row:
    return VectorQuantizer(), {"x": floats("batch", "seq", 8)}


def _half_bert(dtype: torch.dtype) -> Row:
    config = hf.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    inputs = {"input_ids": ids("batch", "seq"), "attention_mask": mask("batch", "seq")}
    return hf.BertModel(config).to(dtype), inputs


@row(batch=(1, 4), seq=(1, 40))
def bert_bfloat16() -> Row:
    return _half_bert(torch.bfloat16)


@row(batch=(1, 4), seq=(1, 40))
def bert_float16() -> Row:
    return _half_bert(torch.float16)


@row(slow=True, batch=(1, 4), seq=(1, 40))
def bert_float64() -> Row:
    return _half_bert(torch.float64)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(F.gelu(self.first(x)))
        return y, y.float().softmax(-1)


@row(batch=(1, 64))
def autocast_bfloat16() -> Row:
    return Autocast(), {"x": floats("batch", 16)}


class Sampler(nn.Module):
    """A step of sampled decoding, with dropout that stays on (Gal and Ghahramani, 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 40)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.dropout(F.gelu(self.mix(self.table(ids).mean(1))), 0.1)
        best, places = (self.head(x) / 0.8).topk(10)
        picked = torch.multinomial(best.softmax(-1), 1)
        return x, places.gather(-1, picked)


@row(batch=(1, 8), seq=(1, 40))
def sampled_decoding() -> Row:
    return Sampler(), {"ids": ids("batch", "seq", below=40)}
