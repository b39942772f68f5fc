"""Random numbers that nothing comes of: no reason to refuse. Others are named with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport


class SkipsLayers(nn.Module):
    """Wav2Vec2's LayerDrop: a number is drawn for each layer, and asked for in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            skipped = torch.rand([])
            if self.training and skipped < 0.1:
                continue
            x = layer(x)
        return x


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        unused = torch.rand(3) * 2
        del unused
        return x + torch.randn(4)


class TakesEither(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.rand(()) < 2 else x * 3


def test_numbers_that_are_drawn_and_not_used_are_left_out(tmp_path: Path) -> None:
    model, x = SkipsLayers().eval(), torch.randn(3, 4)
    path = tmp_path / "m.tcpkg"
    tcexport.export(
        model, (x,), axes={"x": ("n", None)}, dynamic={"n": (1, 8)}, out=path,
        targets=("cpu:x86-64-v3",),
    )  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(tcexport.load(path)(x), model(x))


@pytest.mark.parametrize(
    ("module", "code", "text"),
    [
        # The trace leaves out the first draw, and the second is another one than the model's.
        (Noisy(), "TC105", "return x + torch.randn(4)"),
        (TakesEither(), "TC102", "return x * 2 if torch.rand(()) < 2"),
    ],
)
def test_draws_that_a_trace_cannot_follow_are_refused_at_their_line(
    module: nn.Module, code: str, text: str
) -> None:
    found: Any = tcexport.check(module.eval(), (torch.randn(3, 4),)).errors
    drawn = [each for each in found if each.code == code]
    assert drawn and any(each.location.text.startswith(text) for each in drawn)
