"""Small modules that take something for granted of numbers which only data says, for the fuzz of the
contract: what is counted, summed or found, the values of inputs, assertions, branches on values."""

from __future__ import annotations

import torch
from torch import nn

from .contract_parts import Part, ids, rows


class Counted(nn.Module):
    """A count that sizes what is made of it."""

    def forward(self, x, mask):
        n = mask.sum().item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0])
        return x[:n] * 2, torch.arange(n), x.new_zeros(n, 2)


class Equalled(nn.Module):
    def forward(self, x, mask):
        n = mask.sum().item()
        torch._check(n == x.shape[0])
        return x * 2, x.reshape(n)


class Found(nn.Module):
    """How many are found, at most and exactly."""

    def forward(self, x, some, all_of):
        found = some.nonzero()
        torch._check(2 * found.shape[0] <= x.shape[0] + 2)
        each = all_of.nonzero()
        torch._check(each.shape[0] == x.shape[0])
        return found, x * found.shape[0], x[:, None] + each


class Filtered(nn.Module):
    """What is computed of rows of which only data says how many there are."""

    def forward(self, x, mask):
        y = x[mask]
        torch._check(y.shape[0] <= 6)
        return y.softmax(1), y.sum(0), y.cumsum(0), torch.cat([y, x]), y @ y.T, y.flip(0)


class Sliced(nn.Module):
    """The values of inputs as ends of slices."""

    def forward(self, i, k, x):
        start, end = i.item(), k.item()
        torch._check(start >= 0)
        torch._check(end >= start)
        torch._check(end <= x.shape[0])
        return x[start:end] * 2, x[end:], x.narrow(0, start, end - start).sum(0)


class Sized(nn.Module):
    """The values of inputs as sizes."""

    def forward(self, k, x):
        n = k.item()
        torch._check(n >= 1)
        torch._check(x.shape[0] % n == 0)
        return x.new_zeros(n, 2), torch.arange(n), x.reshape(n, -1), x.sum().expand(n) + 1


class Summed(nn.Module):
    """Conditions on floats, and on arithmetic with what is summed."""

    def forward(self, x, counts):
        torch._check(x.sum().item() > -1.5)
        n = counts.sum().item()
        torch._check(n % 3 != 1)
        torch._check(2 * n - counts.shape[0] >= -4)
        return x * 2, x + n


class Demanded(nn.Module):
    """Assertions on values: with and without words, of one and of several elements."""

    def forward(self, x, ids):
        torch._assert_async((x < 1.5).all(), "small numbers")
        torch._assert_async(ids.sum() != 2)
        return x * 2, ids + 1


class Chosen(nn.Module):
    """Branches on values, of several results, one of them in the other."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, y, mask, k):
        total, hits = torch.cond(
            mask.any(),
            lambda x, mask: (self.up(x), mask.sum()),
            lambda x, mask: (self.down(x), mask.sum() - 1),
            (x, mask),
        )
        z = torch.cond(
            y.sum() > 0,
            lambda y: torch.cond((y < 1).all(), lambda y: y.sin(), lambda y: y.cos(), (y,)),
            lambda y: y * 2,
            (y,),
        )
        return total, hits, z, torch.cond(k > 2, lambda y: y.sum(0) + 1, lambda y: -y.sum(0), (y,))


class Sided(nn.Module):
    """What one side of a branch alone asserts of its data."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, x, k):
        def looked(x, k):
            torch._assert_async((k >= 0).all(), "not negative")
            return self.table(k.clamp(0, 6)), x // 2

        def made(x, k):
            torch._assert_async(k.sum() != 1)
            return k[:, None].expand(-1, 3).float(), x * 2

        return torch.cond(x.sum() > 0, looked, made, (x, k))


DATA_PARTS = [
    Part("counted", Counted(), (rows(6), rows(5) > 0), {"0": ("n",), "1": ("m",)},
         {"n": (0, 9), "m": (0, 9)}),
    Part("equalled", Equalled(), (rows(4), rows(4) < 9), {"0": ("n",), "1": ("n",)}, {"n": (0, 9)}),
    Part("found", Found(), (rows(4), rows(5) > 3, rows(4) < 9), {"0": ("n",), "1": ("m",), "2": ("n",)},
         {"n": (0, 9), "m": (0, 9)}),
    Part("filtered", Filtered(), (rows(5, 3), rows(5) > 0), {"0": ("n", None), "1": ("n",)},
         {"n": (0, 12)}, finite=True, summed=True),
    Part("ends of inputs", Sliced(), (torch.tensor(1), torch.tensor(3), rows(7, 2)),
         {"2": ("n", None)}, {"n": (0, 9)}, {"0": (0, 1), "1": (1, 4)}),
    Part("sizes of inputs", Sized(), (torch.tensor(3), rows(6)), {"1": ("n",)}, {"n": (1, 12)},
         {"0": (1, 4)}, summed=True),
    Part("summed", Summed(), (rows(5).abs(), torch.tensor([1, 2, 0, 2])), {"0": ("n",), "1": ("m",)},
         {"n": (0, 9), "m": (0, 9)}, {"1": (-2, 4)}, finite=True),
    Part("demanded", Demanded(), (-rows(5).abs(), ids(3, 4) + 3), {"0": ("n",), "1": ("m",)},
         {"n": (0, 9), "m": (0, 9)}, {"1": (-2, 4)}),
    Part("chosen", Chosen(), (rows(5, 4), rows(5, 3), rows(3) > 0, torch.tensor(2)),
         {"0": ("n", None), "1": ("n", "m"), "2": ("m",)}, {"n": (0, 9), "m": (0, 9)},
         finite=True, summed=True),
    Part("sided", Sided(), (ids(5, 4), ids(3, 3) + 1), {"0": ("n",), "1": ("m",)},
         {"n": (0, 9), "m": (0, 9)}, {"0": (-3, 3), "1": (-1, 3)}),
]  # fmt: skip
