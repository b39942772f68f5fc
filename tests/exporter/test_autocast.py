"""Regions under autocast: their results have eager's dtypes, whichever way the trace went."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
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


class Taken(nn.Module):
    """Numbers of data, and what is asserted of them, within a region and within one in it."""

    def forward(self, x, k, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            n = k.item()
            torch._check(n >= 0)
            torch._check(n <= x.shape[0])
            y = x[:n] @ x.t()
            with torch.autocast("cpu", enabled=False):
                count = mask.sum().item()
                torch._check(count >= 2)
                torch._check(count <= x.shape[0])
                z = x[:count] @ x.t()
        return y, z


def test_what_a_region_asserts_of_numbers_holds_in_every_call(
    export_once: Callable[..., Path],
) -> None:
    model = Taken()
    example = (torch.randn(3, 6), torch.tensor(2), torch.tensor([True, True, False]))
    axes = {"x": ("n", None), "mask": ("n",)}
    path = export_once("autocast-numbers", model, example, axes=axes, dynamic={"n": (2, 8)})
    bundle = tcexport.load(path)
    x = torch.randn(5, 6)
    for k, hits in ((0, 2), (3, 4), (5, 5)):
        args = (x, torch.tensor(k), torch.arange(5) < hits)
        for mine, eager in zip(bundle(*args), model(*args), strict=True):
            assert mine.dtype == eager.dtype and mine.shape == eager.shape
            torch.testing.assert_close(mine, eager)
    mask = torch.arange(5) < 3
    for k, code in ((6, "k: got 6, needs k <= n"), (-1, "k: got -1, needs k >= 0")):
        with pytest.raises(tcexport.GuardError, match=re.escape(code)):
            bundle(x, torch.tensor(k), mask)
    with pytest.raises(tcexport.GuardError, match="TC3") as refused:
        bundle(x, torch.tensor(1), torch.arange(5) < 1)
    assert "test_autocast.py" in str(refused.value)
