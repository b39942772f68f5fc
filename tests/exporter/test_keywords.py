"""``forward(self, **inputs)``: the caller's names are those of the contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tcexport.exporter.export import check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> Any:
        return x + others["a"].sum(1) - others["b"].amax(1)


def test_keywords_that_callers_name_are_dynamic_like_others() -> None:
    inputs = {"b": torch.randn(3, 5), "x": torch.randn(3), "a": torch.randn(3, 4)}
    axes = {"x": ("n",), "a": ("n", "p"), "b": ("n", "q")}
    asked = {"n": DimRequest(1, 9), "p": DimRequest(1, 20), "q": DimRequest(1, 7)}
    report = check(source_in_memory(Sum().eval(), (), inputs, axes), dynamic=asked)
    assert {dim.name: dim.span() for dim in report.dims} == {"n": "1..9", "p": "1..20", "q": "1..7"}
    assert [each.name for each in report.contract.parameters] == ["x", "a", "b"]
