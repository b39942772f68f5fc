"""Small modules of every kind of assumption, for the fuzz of the contract: one export holds several.

Each part takes its own arguments and has its own dims, so that a module of several parts means what
its parts mean.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Axes = tuple[Any, ...]
Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Part:
    """``axes`` names those of each tensor argument, by its place in ``example`` (a path below it, for
    nested ones: ``0.x``). ``values`` gives the range of each integer argument inside of the contract.
    ``spans`` are the dims of which less is left than ``ranges`` ask for, with the reason. ``finite``:
    only finite numbers are tried. ``summed``: a zero may come out with either sign, as sums do."""

    name: str
    module: nn.Module
    example: tuple[Any, ...]
    axes: dict[str, Axes]
    ranges: dict[str, tuple[int, int]]
    values: dict[str, tuple[int, int]] = field(default_factory=dict)
    spans: dict[str, tuple[str, str]] = field(default_factory=dict)
    finite: bool = False
    summed: bool = False


class Sliced(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(24, 4))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(24, 4)

    def forward(self, x):
        return x + self.table(torch.arange(x.shape[1]))


class Divided(nn.Module):
    def forward(self, x):
        return x.reshape(6, -1) * 2


class Halved(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], x.shape[1] // 2, 2).sum(-1)


class Branched(nn.Module):
    def forward(self, x):
        return x.sin() if x.shape[0] > 5 else x.cos()


class Strided(nn.Module):
    def forward(self, x):
        return x[:, ::2] * 3


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 7, stride=4)

    def forward(self, x):
        return self.conv(x)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x):
        return functional.max_pool2d(self.conv(x).relu(), 2)


class Averaged(nn.Module):
    def forward(self, x):
        return functional.avg_pool1d(x, 3, stride=2)


class Joined(nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y], dim=1).cumsum(1)


class Added(nn.Module):
    def forward(self, x, y):
        return x + y


class Derived(nn.Module):
    def forward(self, x, y):
        return x.sum() + y, x[: y.shape[0]]


class Halves(nn.Module):
    def forward(self, x, y):
        return x.sum() + y


class Asserted(nn.Module):
    def forward(self, x):
        torch._assert_async(x.sum() > 0, "the sum must be positive")
        return x * 2


class Taken(nn.Module):
    def forward(self, i, y):
        n = i.item()
        torch._check(n >= 0)
        torch._check(n <= y.shape[0])
        return y[:n] * 2


class Repeated(nn.Module):
    def forward(self, x):
        return x.repeat(2, 3), x.unsqueeze(1).expand(-1, 3, -1) + 1


class Softened(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1), torch.log_softmax(x, dim=1)


class Meant(nn.Module):
    def forward(self, x):
        return x.mean(1), x.sum(1), x.var(1), x.prod(1)


class Largest(nn.Module):
    def forward(self, x):
        return x.amax(1), x.min(1).values


class Placed(nn.Module):
    def forward(self, x):
        return x.argmax(1), x.argmin(1)


class Squared(nn.Module):
    def forward(self, x, y):
        return torch.softmax(x @ y.transpose(-1, -2), -1) @ y


class Gathered(nn.Module):
    def forward(self, x, index):
        return torch.gather(x, 1, index)


class Selected(nn.Module):
    def forward(self, x, index):
        return x.index_select(0, index)


class Indexed(nn.Module):
    def forward(self, x, index):
        return x[index] + 1


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids):
        return self.table(ids)


class Shifted(nn.Module):
    """Offsets, the last columns, and every second one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)

    def forward(self, ids):
        return self.table(ids + 2), self.table(ids[:, -2:]), self.table(ids[:, ::2] - 1)


class Tailed(nn.Module):
    """The columns from the middle on, counted from the end."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)

    def forward(self, ids, x):
        return self.table(ids[:, -x.shape[0] :]).sum() + x


class Narrowed(nn.Module):
    """Small integers wrap around before they index."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 3)

    def forward(self, ids, small):
        return self.table(ids.to(torch.int8).long()), self.table((small + 100).long())


class Wrapped(nn.Module):
    """Negative ids made to count from the end by hand."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)

    def forward(self, ids):
        return self.table(torch.where(ids >= 0, ids, ids + 20))


class OneHot(nn.Module):
    def forward(self, ids):
        return functional.one_hot(ids, 7)


class Crossed(nn.Module):
    def forward(self, x, target):
        return functional.cross_entropy(x, target, reduction="none")


class Quotients(nn.Module):
    def forward(self, x, y):
        return x // 7, x % -3, y.fmod(4), x // 2 * y


class Scaled(nn.Module):
    def forward(self, x, k: int, flag: bool = True, bias=None):
        y = x * k if flag else x - k
        return y if bias is None else y + bias


class Nested(nn.Module):
    def forward(self, batch, pair, rest):
        x, (y,) = batch["x"], batch["rest"]
        return {"total": x + y, "pair": Pair(pair.first * 2, pair.second), "rows": x.shape[0] // 2,
                "same": (x, x), "rest": [each + 1 for each in rest]}  # fmt: skip


class Broadcast(nn.Module):
    def forward(self, x, y):
        return x * y + y


class Ends(nn.Module):
    def forward(self, x):
        return x[:, 0] + x[:, -1], x.flip(1), x.roll(1, 1)


class Unfolded(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        return functional.pad(x, (1, 1)), a.sum(1) + b.sum(1)


class Attended(nn.Module):
    def forward(self, q, k):
        return functional.scaled_dot_product_attention(q, k, k, is_causal=True)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return functional.gelu(self.linear(self.norm(x)))


class Extremes(nn.Module):
    """Where NaN, infinities and -0.0 tell."""

    def forward(self, x, y):
        return (
            torch.maximum(x, y), torch.minimum(x, y), x.relu(), x.clamp(-1, 1), x.sign(),
            x.max(1).values, x.amin(), torch.where(x > 0, x, -x), x.abs(), x.neg(),
            torch.nan_to_num(x), x.isnan(), x.round(), x.floor(), torch.sigmoid(x), torch.tanh(x),
        )  # fmt: skip


class Casts(nn.Module):
    def forward(self, x):
        return x.to(torch.int32), x.to(torch.float64), x.to(torch.bool), x.to(torch.float16)


class Bytes(nn.Module):
    def forward(self, x, mask):
        return x + 1, x.sum(1), x.masked_fill(mask, 7), x.float().mean(1), mask.any(1), mask.all(1)


class Masked(nn.Module):
    def forward(self, x, mask):
        return x.masked_fill(mask, float("-inf")).softmax(-1), mask.sum(1)


class Split(nn.Module):
    def forward(self, x):
        return torch.stack(x.split([2, 2], dim=1), 0), x[:, : x.shape[0]]


class Squeezed(nn.Module):
    def forward(self, x):
        return x.squeeze(1) * 2


class Inverse(nn.Module):
    """Numbers made of sizes."""

    def forward(self, x):
        n = x.shape[0]
        return x * (1 / n), torch.full((n, 2), 3.0), torch.arange(0, n, 2), torch.zeros(n).sum()


class Remainders(nn.Module):
    def forward(self, x):
        return x * (100 // x.shape[0]) + x.shape[1] % x.shape[0]


class Windows(nn.Module):
    """Slices whose ends hang on sizes."""

    def forward(self, x, y):
        n, m = x.shape[0], y.shape[1]
        return x[n // 2 :], y[:, 2 : m - 1], y[:, -n:], x[:-2], x[1:-1]


class Picked(nn.Module):
    """One position along an axis that may be too short for it."""

    def forward(self, x):
        return x[:, 3], x[:, -2] * 2


class Spread(nn.Module):
    def forward(self, x, y):
        return x.expand(4, -1) + 1, x @ y


class Triangles(nn.Module):
    def forward(self, x):
        n = x.shape[0]
        mask = torch.ones(n, n).tril().bool()
        return x.masked_fill(~mask, 0.0), torch.arange(n)[:, None] - torch.arange(n)[None, :]


class Shaped(nn.Module):
    """Views that fold and unfold axes."""

    def forward(self, x):
        b, n, _ = x.shape
        heads = x.view(b, n, 2, 2).transpose(1, 2)
        flat = heads.reshape(b * 2, n, 2)
        return (
            flat.reshape(b, 2, n, 2).transpose(1, 2).reshape(b, n, 4),
            x.flatten(1),
            x.permute(2, 0, 1),
        )


class Scattered(nn.Module):
    def forward(self, x, index, source):
        return (
            x.scatter(1, index, source),
            x.scatter_add(1, index, source),
            x.scatter(1, index, 2.0),
        )


class Put(nn.Module):
    def forward(self, x, index, values):
        index = index.clamp(max=8)
        return x.index_put((index,), values), x.index_put((index,), values, accumulate=True)


class Hits(nn.Module):
    """Results whose size hangs on the data."""

    def forward(self, x, mask):
        y = x.clone()
        y[mask] = 0.0
        return x.nonzero(), x[mask], torch.masked_select(x, x > 0), y, mask.nonzero().float().sum(0)


class Sorted(nn.Module):
    def forward(self, x):
        values, places = torch.sort(x, dim=1, stable=True)
        return values, places, torch.argsort(x, dim=0, descending=True, stable=True)


class Best(nn.Module):
    def forward(self, x):
        return x.topk(3, 1).values, x.kthvalue(2, 1).values


class Half(nn.Module):
    def forward(self, x):
        return x * 2 + 1, x.softmax(1), x.sum(1), x.relu().float(), x @ x.T


class Brain(nn.Module):
    def forward(self, x):
        y = x.bfloat16()
        return (y * 3).float(), y.mean(1).float(), torch.tanh(y).float(), (y > 0).sum(1)


class Multiplied(nn.Module):
    """Rows as often as counts say; a negative count is refused, a large one made smaller."""

    def forward(self, x, counts):
        return x.repeat_interleave(counts.clamp(max=4), 0), torch.repeat_interleave(
            counts.clamp(max=3)
        )


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(9, 3, mode=mode) for mode in ("sum", "mean", "max")
        )

    def forward(self, ids):
        return [bag(ids) for bag in self.bags]


class Resized(nn.Module):
    def forward(self, x):
        return (
            functional.interpolate(x, scale_factor=2),
            functional.interpolate(x, scale_factor=1.5),
            functional.interpolate(x, size=(5, 3), mode="bilinear"),
        )


class Whole(nn.Module):
    """Integers by integers: a zero is refused by eager's kernels and by the compiled ones."""

    def forward(self, x, y):
        return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), x.fmod(y)


class Searched(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 7))

    def forward(self, x):
        return torch.bucketize(x, self.edges), torch.searchsorted(self.edges, x, right=True)


class Upwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose1d(2, 3, 4, stride=2, padding=1)

    def forward(self, x):
        return self.conv(x)


class Emptied(nn.Module):
    """What torch takes for granted of sizes, and is not so of 0."""

    def forward(self, x):
        n = x.shape[0]
        return torch.cat([x, x[:1]]), x.new_ones(max(n, 1)), x.new_zeros(min(n, 1)), x.roll(1, 0)


class Cut(nn.Module):
    """Numbers of which torch keeps less than was divided by."""

    def forward(self, x):
        n, m = x.shape
        return x * (n * m // m), x.new_zeros(n + 3 - n % 3), torch.arange(1, n)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def ids(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape).to(dtype)


PARTS = [
    Part("slice", Sliced(), (rows(3, 10, 4),), {"0": ("b", "s", None)}, {"b": (0, 9), "s": (0, 40)},
         spans={"s": ("0..24", "the table ends")}),
    Part("lookup", Looked(), (rows(3, 9, 4),), {"0": ("b", "s", None)}, {"b": (0, 9), "s": (0, 40)},
         spans={"s": ("0..24", "the table ends")}),
    Part("divided", Divided(), (rows(4, 12),), {"0": (None, "n")}, {"n": (0, 60)},
         spans={"n": ("0..60:3", "4*n elements in rows of 6")}),
    Part("halved", Halved(), (rows(3, 10),), {"0": ("b", "s")}, {"b": (0, 9), "s": (0, 40)},
         spans={"s": ("0..40:2", "pairs")}),
    Part("branch", Branched(), (rows(8, 2),), {"0": ("n", None)}, {"n": (0, 20)},
         spans={"n": ("6..20", "the other side of the branch was not traced")}),
    Part("stride", Strided(), (rows(3, 8),), {"0": ("b", "n")}, {"b": (0, 9), "n": (0, 20)}),
    Part("conv", Convolved(), (rows(2, 2, 30),), {"0": ("b", None, "n")}, {"b": (0, 4), "n": (0, 60)},
         spans={"n": ("7..60", "the kernel is as long")}),
    Part("pool", Pooled(), (rows(2, 1, 9, 8),), {"0": ("b", None, "h", "w")},
         {"b": (0, 3), "h": (0, 14), "w": (0, 14)},
         spans={"h": ("2..14", "one window at least"), "w": ("2..14", "one window at least")}),
    Part("average", Averaged(), (rows(2, 3, 9),), {"0": ("b", None, "n")}, {"b": (0, 3), "n": (0, 20)},
         spans={"n": ("3..20", "one window at least")}),
    Part("cat", Joined(), (rows(2, 3), rows(2, 5)), {"0": ("b", "n"), "1": ("b", "m")},
         {"b": (0, 5), "n": (0, 9), "m": (0, 9)}),
    Part("equal", Added(), (rows(4, 3), rows(4, 3)), {"0": ("n", "m"), "1": ("n", "m")},
         {"n": (0, 9), "m": (0, 9)}),
    Part("derived", Derived(), (rows(10), rows(6)), {"0": ("2*n",), "1": ("n+1",)}, {"n": (0, 20)}),
    Part("half an axis", Halves(), (rows(7), rows(3)), {"0": ("n",), "1": ("n//2",)}, {"n": (0, 20)}),
    Part("assertion", Asserted(), (rows(5).abs(),), {"0": ("n",)}, {"n": (0, 20)}),
    Part("item", Taken(), (torch.tensor(3), rows(7)), {"1": ("n",)}, {"n": (0, 20)}, {"0": (0, 20)}),
    Part("repeat", Repeated(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 9)}),
    Part("softmax", Softened(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 40)}),
    Part("mean", Meant(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 40)}),
    Part("largest", Largest(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 40)},
         spans={"m": ("1..40", "eager raises at 0")}),
    Part("placed", Placed(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 40)},
         spans={"m": ("1..40", "eager raises at 0")}),
    Part("products", Squared(), (rows(3, 4), rows(5, 4)), {"0": ("n", None), "1": ("m", None)},
         {"n": (0, 20), "m": (0, 20)}, summed=True),
    Part("gather", Gathered(), (rows(3, 9), ids(9, 3, 4)), {"0": ("b", "n"), "1": ("b", "m")},
         {"b": (0, 5), "n": (0, 12), "m": (0, 12)}, {"1": (0, 11)}),
    Part("index_select", Selected(), (rows(9, 2), ids(9, 4)), {"0": ("n", None), "1": ("m",)},
         {"n": (0, 12), "m": (0, 12)}, {"1": (0, 11)}),
    Part("index", Indexed(), (rows(9, 2), ids(9, 4)), {"0": ("n", None), "1": ("m",)},
         {"n": (0, 12), "m": (0, 12)}, {"1": (-12, 11)}),
    Part("tokens", Tokens(), (ids(50, 3, 4),), {"0": ("b", "s")}, {"b": (0, 9), "s": (0, 20)},
         {"0": (0, 49)}),
    Part("shifted", Shifted(), (ids(10, 3, 4) + 3,), {"0": ("b", "s")}, {"b": (0, 9), "s": (0, 20)},
         {"0": (1, 17)}),
    Part("tail", Tailed(), (ids(20, 3, 5), rows(3)), {"0": (None, None), "1": ("n",)}, {"n": (0, 5)},
         {"0": (0, 19)},
         spans={"n": ("1..5", "ids[:, -0:] is all of it: another shape")}),
    Part("narrow integers", Narrowed(), (ids(100, 3, 4), ids(20, 3, dtype=torch.int8)),
         {"0": ("b", "s"), "1": ("b",)}, {"b": (0, 9), "s": (0, 9)}, {"0": (0, 127), "1": (-100, 27)}),
    Part("wrapped", Wrapped(), (ids(20, 3, 4),), {"0": ("b", "s")}, {"b": (0, 9), "s": (0, 9)},
         {"0": (-20, 19)}),
    Part("one_hot", OneHot(), (ids(7, 3, 4),), {"0": ("b", "s")}, {"b": (0, 9), "s": (0, 9)},
         {"0": (0, 6)}),
    Part("targets", Crossed(), (rows(5, 7), ids(7, 5)), {"0": ("b", None), "1": ("b",)}, {"b": (0, 9)},
         {"1": (0, 6)}),
    Part("quotients", Quotients(), (ids(50, 4), ids(9, 4) + 1), {"0": ("n",), "1": ("n",)},
         {"n": (0, 9)}, {"0": (-100, 100), "1": (-20, 20)}),
    Part("scalars", Scaled(), (rows(3, 4), 2, True, None), {"0": ("b", None)}, {"b": (0, 9)}),
    Part("nested", Nested(), ({"x": rows(3, 4), "rest": [rows(3, 4)]}, Pair(rows(2), 5), [rows(3)]),
         {"0.x": ("b", None), "0.rest[0]": ("b", None), "1.first": ("m",), "2[0]": ("k",)},
         {"b": (0, 9), "m": (0, 9), "k": (0, 4)}),
    Part("broadcast", Broadcast(), (rows(3, 4), rows(1, 4)), {"0": ("b", "n"), "1": (None, "n")},
         {"b": (0, 9), "n": (0, 9)}),
    Part("ends", Ends(), (rows(3, 4),), {"0": ("b", "n")}, {"b": (0, 9), "n": (0, 9)},
         spans={"n": ("1..9", "eager raises at 0")}),
    Part("chunk", Unfolded(), (rows(3, 8),), {"0": ("b", "n")}, {"b": (0, 9), "n": (0, 16)},
         spans={"n": ("2..16", "two chunks were traced; of 1 and of 0 there is one")}),
    Part("attention", Attended(), (rows(2, 2, 5, 4), rows(2, 2, 7, 4)),
         {"0": ("b", None, "q", None), "1": ("b", None, "k", None)},
         {"b": (0, 3), "q": (0, 12), "k": (0, 12)},
         spans={"k": ("1..12", "kernels differ in what no keys give")}, finite=True),
    Part("norm", Normed(), (rows(3, 5, 4),), {"0": ("b", "n", None)}, {"b": (0, 5), "n": (0, 12)}),
    Part("extremes", Extremes(), (rows(3, 5), rows(3, 5)), {"0": ("b", "n"), "1": ("b", "n")},
         {"b": (0, 5), "n": (0, 40)},
         spans={"b": ("1..5", "eager raises at 0"), "n": ("1..40", "eager raises at 0")}),
    Part("casts", Casts(), (rows(3, 5),), {"0": ("b", "n")}, {"b": (0, 5), "n": (0, 12)}),
    Part("bytes", Bytes(), (ids(200, 3, 5, dtype=torch.uint8), rows(3, 5) > 0),
         {"0": ("b", "n"), "1": ("b", "n")}, {"b": (0, 5), "n": (0, 12)}, {"0": (0, 255)}),
    Part("masks", Masked(), (rows(3, 5), rows(3, 5) > 0), {"0": ("b", "n"), "1": ("b", "n")},
         {"b": (0, 5), "n": (0, 12)}),
    Part("squeeze", Squeezed(), (rows(3, 4),), {"0": ("b", "n")}, {"b": (0, 5), "n": (0, 9)},
         spans={"n": ("2..9", "at 1 the axis goes; the trace begins above it")}),
    Part("inverse", Inverse(), (rows(3, 4),), {"0": ("n", None)}, {"n": (0, 9)},
         spans={"n": ("1..9", "eager raises at 0")}),
    Part("remainders", Remainders(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 9)},
         spans={"n": ("1..9", "eager raises at 0")}),
    Part("windows", Windows(), (rows(4, 2), rows(2, 6)), {"0": ("n", None), "1": (None, "m")},
         {"n": (0, 9), "m": (0, 9)},
         spans={"n": ("1..9", "y[:, -0:] is all of it: another shape"),
                "m": ("1..9", "y[:, 2 : m - 1] counts from the end at 0")}),
    Part("picked", Picked(), (rows(3, 7),), {"0": (None, "m")}, {"m": (0, 12)},
         spans={"m": ("4..12", "eager raises below")}),
    Part("spread", Spread(), (rows(1, 6), rows(2, 6, 3)), {"0": (None, "n"), "1": ("b", "n", None)},
         {"n": (0, 9), "b": (0, 9)}),
    Part("triangle", Triangles(), (rows(4, 4),), {"0": ("n", "n")}, {"n": (0, 9)}),
    Part("views", Shaped(), (rows(2, 3, 4),), {"0": ("b", "n", None)}, {"b": (0, 4), "n": (0, 9)}),
    Part("split", Split(), (rows(3, 4),), {"0": ("b", None)}, {"b": (0, 4)}),
]  # fmt: skip

# Of newer ops, in groups of their own.
MORE = [
    Part("scatter", Scattered(), (rows(3, 5), ids(5, 3, 2), rows(3, 2)),
         {"0": ("n", None), "1": ("n", "k"), "2": ("n", "k")}, {"n": (0, 9), "k": (0, 9)},
         {"1": (0, 4)}),
    Part("index_put", Put(), (rows(9, 2), ids(9, 4), rows(4, 2)),
         {"0": (None, "m"), "1": ("k",), "2": ("k", "m")}, {"m": (0, 6), "k": (0, 6)},
         {"1": (-9, 8)}),
    Part("hits", Hits(), (rows(3, 4), rows(3, 4) > 0), {"0": ("n", "m"), "1": ("n", "m")},
         {"n": (0, 9), "m": (0, 9)}),
    Part("sort", Sorted(), (rows(3, 5),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 40)}),
    Part("topk", Best(), (rows(3, 5),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 40)},
         spans={"m": ("3..40", "eager raises below")}),
    Part("float16", Half(), (rows(3, 5).half(),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 20)},
         finite=True),
    Part("bfloat16", Brain(), (rows(3, 5),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 20)}),
    Part("multiplied", Multiplied(), (rows(4, 2), ids(3, 4)), {"0": ("n", None), "1": ("n",)},
         {"n": (0, 9)}, {"1": (0, 6)}),
    Part("bags", Bags(), (ids(9, 3, 4),), {"0": ("b", "s")}, {"b": (0, 9), "s": (0, 9)},
         {"0": (0, 8)}, spans={"s": ("1..9", "eager raises at 0")}),
    Part("resized", Resized(), (rows(2, 3, 4, 5),), {"0": ("b", None, "h", "w")},
         {"b": (0, 3), "h": (0, 9), "w": (0, 9)},
         spans={"h": ("1..9", "eager raises at 0"), "w": ("1..9", "eager raises at 0")}),
    Part("whole", Whole(), (ids(50, 4), ids(9, 4) + 1), {"0": ("n",), "1": ("n",)}, {"n": (0, 9)},
         {"0": (-100, 100), "1": (1, 9)}),
    Part("searched", Searched(), (rows(3, 5),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 9)}),
    Part("upwards", Upwards(), (rows(2, 2, 6),), {"0": ("b", None, "n")}, {"b": (0, 4), "n": (0, 20)},
         spans={"n": ("1..20", "eager raises at 0")}),
    Part("emptied", Emptied(), (rows(3, 4),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 9)}),
    Part("cut", Cut(), (rows(4, 5),), {"0": ("n", "m")}, {"n": (0, 9), "m": (0, 9)},
         spans={"n": ("1..9", "eager raises at 0"), "m": ("1..9", "eager raises at 0")}),
]  # fmt: skip
