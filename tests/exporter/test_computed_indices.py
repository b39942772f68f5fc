"""Indices that a model computes: bounded before a call where that can be proved, else looked at by
the compiled code. Never read from other memory, never clamped in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter import indices
from tcexport.exporter.export import check
from tcexport.exporter.source import source_in_memory


class Squares(nn.Module):
    """``ids * ids`` has no bound before a call; ``ids + 1`` has."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.register_buffer("values", torch.arange(30.0))

    def forward(self, ids):
        return self.table(ids * ids), self.values[ids.float().long() - 2], self.table(ids + 1)


def test_a_computed_index_is_checked_when_it_is_used(export_once: Callable[..., Path]) -> None:
    module, example = Squares(), torch.tensor([[1, 2], [3, 4]])
    options: dict[str, Any] = {"axes": {"ids": ("b", "s")}, "dynamic": {"b": (1, 8), "s": (1, 8)}}
    model = tcexport.load(export_once("squares", module, (example,), **options))
    assert len(model.contract.computed_guards) == 2
    for ids in (example, torch.tensor([[7, 0, 1]])):  # 0 - 2 counts from the end
        for got, want in zip(model(ids), module(ids), strict=True):
            torch.testing.assert_close(got, want.detach())
    with pytest.raises(tcexport.GuardError) as error:
        model(torch.tensor([[1, 8]]))  # 64 rows down a table of 50
    assert error.value.code == "TC309"
    assert "needs 0 <= index < 50" in str(error.value)
    assert "self.table(ids * ids)" in str(error.value)
    with pytest.raises(IndexError):
        module(torch.tensor([[1, 8]]))
    with pytest.raises(tcexport.GuardError, match="ids"):
        model(torch.tensor([[-1, 49]]))  # bounded by the guard of ids + 1, before the call
    for got, want in zip(model(example), module(example), strict=True):
        torch.testing.assert_close(got, want.detach())  # the model is whole after a refusal
    assert model.metrics.violations == {"TC309": 2}


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 4)

    def forward(self, mask, x):
        counted = torch.cumsum(mask.to(torch.int64), dim=1)
        best = x.argmax(dim=1, keepdim=True)
        return self.table(counted + 1), torch.gather(x, 1, best), self.table(counted.clamp(0, 9))


def test_what_can_be_proved_needs_no_check_at_run_time() -> None:
    source = source_in_memory(
        Positions().eval(),
        (torch.ones(2, 5, dtype=torch.bool), torch.randn(2, 6)),
        {},
        {"mask": ("b", "s"), "x": ("b", None)},
    )
    report = check(source, dynamic={"b": None, "s": None})
    assert not report.contract.computed_guards and not report.contract.index_guards
    (seq,) = [dim for dim in report.dims if dim.name == "s"]
    assert seq.hi == 62, "cumsum + 1 reaches s + 1, which must stay below 64"


class Gathers(nn.Module):
    def forward(self, x, index):
        return torch.gather(x, 1, index)


def test_an_op_whose_indices_nobody_bounds_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a converter that the analysis does not know of would meet."""
    monkeypatch.delitem(indices._INDEXING, torch.ops.aten.gather)
    example = (torch.randn(2, 3), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(tcexport.ExportError, match="the indices of gather have no bound") as error:
        tcexport.export(Gathers().eval(), example, out=tmp_path / "m.tcpkg")
    assert error.value.code == "TC507"
    assert error.value.diagnostics[0].location.text == "return torch.gather(x, 1, index)"
    assert not list(tmp_path.iterdir())


class Pairs(nn.Module):
    """Rows and columns in one tensor of positions, each in a range of its own."""

    def forward(self, x):
        rows, columns = x.shape
        row = torch.arange(rows).unsqueeze(1).expand(rows, columns)
        column = torch.arange(columns).expand(rows, columns)
        stacked = torch.stack([row, column], -1)
        joined = torch.cat([column.unsqueeze(0), row.unsqueeze(0)])
        first = x[stacked[..., 0], stacked[..., 1]]
        return first, x[joined[-1], joined[:1].squeeze(0)]


def test_positions_that_were_joined_keep_their_own_ranges() -> None:
    args = (torch.randn(3, 5),)
    source = source_in_memory(Pairs().eval(), args, {}, {"x": ("rows", "columns")})
    report = check(source, dynamic={"rows": None, "columns": None})
    spans = {dim.name: dim.span() for dim in report.dims}
    assert spans == {"rows": "1..", "columns": "1.."} and not report.contract.guards
