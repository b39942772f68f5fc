"""The user's own line beside each assumption, whichever way the model was traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tcexport.artifacts.expr import render
from tcexport.exporter import trace as tracing
from tcexport.exporter.export import check
from tcexport.exporter.source import source_in_memory


class Assuming(nn.Module):
    """A guard of each kind of place, each on a line of its own; under autocast, which a strict trace
    of torch 2.13 has in other dtypes, if ``cast``."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.cast = cast
        self.register_buffer("table", torch.randn(24, 4))
        self.words = nn.Embedding(50, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        n = k.item()
        torch._check(n < x.shape[0])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cast):
            y = x + self.table[: x.shape[1]]
            if x.shape[0] > 3:
                y = y * 2
            pairs = y.reshape(x.shape[0], x.shape[1] // 2, 8)
            hits = ids.nonzero()
            torch._check(hits.shape[0] <= 40)
            words = self.words(ids).sum(1)
            return pairs.sum(1) * n, hits, words[:, :1]


@pytest.mark.parametrize("strict", [True, False])
def test_each_guard_names_the_line_of_the_model(
    strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[bool] = []
    inner = tracing._export

    def noted(*args: Any) -> Any:
        program, way = inner(*args)
        ways.append(way)
        return program, way

    monkeypatch.setattr(tracing, "_export", noted)
    example = (torch.randn(5, 6, 4), torch.randint(0, 50, (5, 6)), torch.tensor(2))
    axes = {"x": ("n", "m", None), "ids": ("n", "m")}
    source = source_in_memory(Assuming(not strict).eval(), example, {}, axes)
    contract = check(source, dynamic={"n": None, "m": None}).contract
    assert ways[0] is strict
    dims = {dim.name: dim for dim in contract.dims}
    guards = {render(guard.expr): guard.origin for guard in contract.guards}
    said = {
        "m, at most": dims["m"].hi_from,
        "m, in steps": dims["m"].step_from,
        "n, at least": dims["n"].lo_from,
        "k": guards["k < n"],
        "ids": contract.index_guards[0].origin,
        "hits": contract.computed_guards[0].origin,
    }
    lines = {what: origin.location and origin.location.text for what, origin in said.items()}
    assert lines == {
        "m, at most": "y = x + self.table[: x.shape[1]]",
        "m, in steps": "pairs = y.reshape(x.shape[0], x.shape[1] // 2, 8)",
        "n, at least": "if x.shape[0] > 3:",
        "k": "n = k.item()",
        "ids": "words = self.words(ids).sum(1)",
        "hits": "hits = ids.nonzero()",
    }
