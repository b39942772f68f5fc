"""Regions under autocast: their results have eager's dtypes, whichever way the trace went."""

from __future__ import annotations

import torch
from torch import nn

import tcexport
from tcexport.artifacts.contract import TensorOutput


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(torch.relu(self.first(x)))
            inside = y.float()
        return y, inside, y.float().softmax(-1)


def test_results_of_an_autocast_region_have_eagers_dtypes() -> None:
    found = tcexport.check(Mixed().eval(), (torch.randn(3, 6),), axes={"x": ("n", None)},
                           dynamic={"n": (1, 8)})  # fmt: skip
    assert not found.errors and found.contract is not None
    outputs = [each for each in found.contract.outputs if isinstance(each, TensorOutput)]
    assert [each.dtype for each in outputs] == ["bfloat16", "float32", "float32"]
