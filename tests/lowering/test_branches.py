"""torch.cond: both sides are computed, and each result is taken from one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tcexport


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(6, 6)
        self.large = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6))

    def forward(self, x):
        y = torch.cond((x > 0).any(), self.large, self.small, (x,))
        more, less = torch.cond(
            x.mean() > 0, lambda x, y: (x + 1, y * 2), lambda x, y: (x, y), (x, y)
        )
        return more, less, y


def test_the_side_that_the_condition_says_is_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sides().eval()
    path = tmp_path / "m.tcpkg"
    tcexport.export(
        model,
        (torch.randn(5, 6),),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 64)},
        out=path,
        targets=("cpu:x86-64-v3",),
    )
    bundle = tcexport.load(path)
    for x in (torch.rand(3, 6), -torch.rand(7, 6), torch.randn(1, 6) - 0.5):
        with torch.no_grad():
            y = model.large(x) if (x > 0).any() else model.small(x)
        want = (x + 1, y * 2, y) if x.mean() > 0 else (x, y, y)
        for a, b in zip(bundle(x), want, strict=True):
            torch.testing.assert_close(a, b)


def test_a_condition_on_sizes_is_no_tensor_and_is_decided_by_the_trace() -> None:
    class BySize(nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(
            BySize().eval(),
            (torch.randn(5, 6),),
            axes={"x": ("n", None)},
            dynamic={"n": (1, 64)},
            out="never.tcpkg",
        )
    assert error.value.code in ("TC210", "TC501")
