"""Overloads that torch's own Python seldom writes into a graph, and rare functions."""

import torch
from torch.nn import functional as F

aten = torch.ops.aten

FLOATS = [
    lambda x: torch.acos(x.clamp(-1, 1)),
    lambda x: torch.asin(x.clamp(-1, 1)),
    lambda x: torch.acosh(x.abs() + 1),
    lambda x: torch.atanh(x.clamp(-0.9, 0.9)),
    torch.cosh,
    torch.exp2,
    lambda x: aten.add.Scalar(x, 2, 3),
    lambda x: aten.sub.Scalar(x, 2, 3),
    lambda x: aten.div.Scalar(x, 3),
    lambda x: aten.div.Scalar_mode(x, 0.3, rounding_mode="floor"),
    lambda x: aten.rsub.Tensor(x, x.flip(0), alpha=2),
    lambda x: x <= 0.5,
    lambda x: aten.clamp_max.Tensor(x, x.flip(0)),
    lambda x: x.masked_fill(x > 0, torch.tensor(3.0)),
    lambda x: torch.logical_and(x > 0, x),
    lambda x: torch.logical_or(x > 0, x.bool()),
    lambda x: torch.logical_not(x),
    lambda x: (x > 0).any(),
    lambda x: (x > 0).all(1),
    lambda x: (x > 0).all((0, 1)),
    lambda x: torch.any(x > 0, (0, 1), keepdim=True),
    lambda x: x.prod(),
    lambda x: x.chunk(2, 1)[0],
    lambda x: x.narrow(0, 0, 1),
    lambda x: x[:, :1].squeeze(),
    lambda x: aten.t.default(x),
    lambda x: aten.mm.default(x, x.t()),
    lambda x: torch.mv(x, x[0]),
    lambda x: torch.addmv(x[:, 0], x, x[0], beta=2),
    lambda x: aten._softmax.default(x, -1, False),
    lambda x: aten._log_softmax.default(x, 0, False),
    lambda x: torch.eye(3, 5) + x[0, 0],
    lambda x: torch.cat([x, x.new_empty(0)]),
    lambda x: torch.triu_indices(4, 5, 1) + x.shape[0],
    lambda x: torch.tril_indices(3, 3) * x.shape[1],
    lambda x: torch.searchsorted(x[0].sort().values, 0.25),
    lambda x: x.scatter(0, torch.zeros(1, 1, dtype=torch.int64), 3.0, reduce="multiply"),
    lambda x: x.scatter(1, torch.zeros(1, 1, dtype=torch.int64), x[:1, :1], reduce="add"),
    lambda x: F.interpolate(x[None], scale_factor=2, mode="nearest"),
    lambda x: F.interpolate(x[None], scale_factor=2, mode="nearest-exact"),
    lambda x: F.interpolate(x[None, None, None], scale_factor=2, mode="nearest-exact"),
    lambda x: F.conv3d(x[None, None, None].repeat(1, 1, 3, 1, 1), torch.ones(2, 1, 2, 1, 1)),
    lambda x: F.adaptive_avg_pool3d(x[None, None], (1, 1, 2)),
    lambda x: F.adaptive_max_pool3d(x[None, None], (1, 2, 1)),
]


def test_rare_forms_of_floats(agree) -> None:
    agree(FLOATS, (torch.randn(3, 4),), (torch.randn(2, 2),), (torch.randn(5, 7),))


INTEGERS = [
    lambda i: i >> 1,
    lambda i: torch.bitwise_left_shift(i, i.abs() % 7),
    lambda i: torch.bitwise_right_shift(i, i.abs() % 70),
    lambda i: torch.bitwise_left_shift(i, 3),
    lambda i: torch.bitwise_right_shift(i, 3),
    lambda i: torch.bitwise_xor(i, i.flip(0)),
    lambda i: i.to(torch.uint8) >> 3,
    lambda i: i.to(torch.int16).sum(0),
    lambda i: i.to(torch.int8).amax(1),
]


def test_rare_forms_of_integers(agree) -> None:
    agree(INTEGERS, (torch.arange(-6, 6).reshape(3, 4),), (torch.tensor([[-7], [300]]),))
