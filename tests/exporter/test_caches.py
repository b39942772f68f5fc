"""What calls leave behind: a cache that no answer hangs on is left out, all else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter.export import CheckReport, check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory


class Rotary(nn.Module):
    """Tables that are kept until the length changes."""

    def __init__(self):
        super().__init__()
        self.kept, self.length = None, None

    def forward(self, x):
        if self.length != x.shape[1]:
            self.length = x.shape[1]
            self.kept = torch.outer(torch.arange(x.shape[1]), torch.arange(4.0)).cos()
        return x * self.kept


class ByDevice(nn.Module):
    """Something that is computed of the weights once, under a key."""

    def __init__(self):
        super().__init__()
        self.bias, self.kept = nn.Parameter(torch.randn(4)), {}

    def forward(self, x):
        if str(x.device) not in self.kept:
            self.kept[str(x.device)] = self.bias * 2
        return x + self.kept[str(x.device)]


class Normed(nn.Module):
    """A hook sets the weight anew before each call."""

    def __init__(self):
        super().__init__()
        self.inner = nn.utils.spectral_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.inner(x)


class Longest(Rotary):
    """The base of the tables is that of the longest call so far."""

    def forward(self, x):
        self.length = max(self.length or 8, x.shape[1])
        return x * torch.arange(x.shape[1]).div(self.length).cos()[:, None]


class First(Rotary):
    """What is kept hangs on the values of the call that filled it."""

    def forward(self, x):
        if self.length != x.shape[1]:
            self.length, self.kept = x.shape[1], x.mean(0)
        return x - self.kept


class Last(Rotary):
    """Kept for others to read."""

    def forward(self, x):
        self.kept = x.mean(0)
        return x - self.kept


class Count(Rotary):
    """The hundredth call is another one."""

    def forward(self, x):
        self.length = (self.length or 0) + 1
        return x * (2 if self.length == 100 else 1)


class OfOtherSize(Rotary):
    """What is kept for a length is made of the batch."""

    def forward(self, x):
        if self.length != x.shape[1]:
            self.length, self.kept = x.shape[1], float(x.shape[0])
        return x * self.kept


class ForEight(Rotary):
    """What is kept for a length is used for those beside it, too."""

    def forward(self, x):
        if self.length != x.shape[1] // 8:
            self.length, self.kept = x.shape[1] // 8, float(x.shape[1])
        return x * self.kept


class Bounded(Rotary):
    """What is kept of the values hardly ever differs."""

    def forward(self, x):
        if self.length != x.shape[1]:
            self.length, self.kept = x.shape[1], (x.abs().max() > 50).float()
        return x - self.kept


class Masked(Rotary):
    """What is kept of the mask is that of the first call; the example's is of ones, and so is any
    that is drawn like it."""

    def forward(self, x, mask):
        if self.length != mask.shape:
            self.length = mask.shape
            self.kept = {(1, 2): (1 - mask) * -100.0, (3, 4): torch.ones(4)}
        return (x + self.kept[1, 2][..., None]) * self.kept[3, 4]


RANGES = {"batch": DimRequest(1, 4), "n": DimRequest(1, 30)}


def checked(model: nn.Module) -> CheckReport:
    example: tuple[Any, ...] = (torch.randn(3, 6, 4),)
    axes = {"x": ("batch", "n", None)}
    if isinstance(model, Masked):
        example, axes = (
            (*example, torch.ones(3, 6, dtype=torch.int64)),
            {**axes, "mask": ("batch", "n")},
        )
    source = source_in_memory(model.eval(), example, {}, axes)
    return check(source, dynamic=RANGES)


@pytest.mark.parametrize("model", [Rotary, ByDevice, Normed])
def test_a_cache_is_left_out_and_said(model: type[nn.Module]) -> None:
    report = checked(model())
    assert {note.code for note in report.notes} == {"TC124"}
    assert [dim.span() for dim in report.dims] == ["1..4", "1..30"]


@pytest.mark.parametrize(
    "model",
    [Longest, First, Last, Count, OfOtherSize, ForEight, Bounded, Masked],
)
def test_what_an_answer_may_hang_on_is_refused(model: type[nn.Module]) -> None:
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(model())
    assert {each.code for each in refusal.value.diagnostics} == {"TC103"}


class AtSeventeen(Rotary):
    """One size changes the answers that follow, and the graph is the same there."""

    factor = 1.0

    def forward(self, x):
        y = super().forward(x) * self.factor
        if x.shape[1] == 17:
            self.factor = 2.0
        return y


class LongestOfAll(nn.Module):
    """No call of the example's size changes anything."""

    def __init__(self):
        super().__init__()
        self.length = 8

    def forward(self, x):
        self.length = max(self.length, x.shape[1])
        return x / self.length


class Alone(nn.Module):
    """Counts calls of one row, which shows at the fourth."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        y = x * (2 if self.calls > 2 else 1)
        if x.shape[0] == 1:
            self.calls += 1
        return y


@pytest.mark.parametrize("model", [AtSeventeen, LongestOfAll, Alone])
def test_what_calls_of_other_sizes_leave_behind_is_refused(model: type[nn.Module]) -> None:
    with pytest.raises(tcexport.ExportError):
        checked(model())


def test_a_bundle_answers_as_the_model_with_and_without_its_cache(tmp_path: Path) -> None:
    model = Rotary().eval()
    kept: dict[str, Any] = {
        "axes": {"x": ("batch", "n", None)},
        "dynamic": {"batch": (1, 4), "n": (1, 30)},
    }
    report = tcexport.export(model, (torch.randn(3, 6, 4),), **kept, out=tmp_path / "m.tcpkg")
    assert (model.kept, model.length) == (None, None)
    bundle = tcexport.load(report.path)
    for size in (6, 30, 1, 30):
        x = torch.randn(2, size, 4)
        np.testing.assert_allclose(bundle(x.numpy()), model(x).numpy(), rtol=1e-5, atol=1e-6)
