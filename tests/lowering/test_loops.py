"""torch's loops are kept whole: the number of steps is the call's, or the data's."""

from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import map as map_of
from torch._higher_order_ops import scan, while_loop

AUTO = torch.export.Dim.AUTO


class Doubling(nn.Module):
    """Steps until the data says stop; with a weight and a tensor that does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, limit: torch.Tensor) -> Any:
        def goes_on(count: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (count < 100) & (y.abs().sum() < limit.sum())

        def step(count: torch.Tensor, y: torch.Tensor) -> Any:
            return count + 1, y * 1.25 + self.linear(y).tanh() * 0.1

        return while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x))


def test_a_loop_runs_as_long_as_the_data_say(agree) -> None:
    x = torch.rand(3, 4) + 0.1
    calls = [(x, torch.tensor([limit])) for limit in (50.0, 0.0, 1e9)]
    calls.append((torch.rand(7, 4), torch.tensor([70.0])))
    agree(Doubling(), *calls, dynamic=({0: AUTO}, None), tolerance=1e-4)


class Recurrence(nn.Module):
    """The recurrence of state-space models: h = a h + b x; y = c h."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, decay: torch.Tensor) -> Any:
        def step(h: torch.Tensor, piece: torch.Tensor) -> Any:
            h = h * decay + self.mix(piece)
            return h, h.sum(-1) * 2

        return scan(step, torch.zeros(x.shape[1], 4), x)


def test_a_scan_over_any_number_of_steps(agree) -> None:
    decay = torch.rand(4)
    calls = [(torch.randn(t, b, 4), decay) for t, b in ((5, 3), (1, 1), (100, 2), (17, 4))]
    agree(Recurrence(), *calls, dynamic=({0: AUTO, 1: AUTO}, None))


def test_a_map_over_any_number_of_rows(agree) -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return map_of(lambda row, other: (row.sin() @ other).cumsum(0), x, y)

    calls = [(torch.randn(n, 3, 4), torch.randn(4, 2)) for n in (6, 1, 9)]
    agree(Rows(), *calls, dynamic=({0: AUTO}, None))
