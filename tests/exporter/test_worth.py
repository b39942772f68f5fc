"""Variants are measured beside the general code, and what is slower is left out, bytes and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tcexport
from tcexport.artifacts.errors import ExportError
from tcexport.artifacts.turns import NOISE, Ratio, ratio_of
from tcexport.exporter import export as exporting
from tcexport.exporter.variants import Plan
from tcexport.exporter.worth import Raced


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).cumsum(0) / x.shape[0]


def export(out: Path, sizes: list[int], **options: Any) -> tcexport.Report:
    return tcexport.export(
        Net().eval(),
        (torch.ones(3, 8),),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 64)},
        specialize={"n": sizes},
        out=out,
        targets=("cpu:x86-64-v3",),
        **options,
    )


TIMES = st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0)), min_size=4, max_size=40)


@given(times=TIMES)
def test_faster_and_slower_are_never_both_and_change_places(times: list) -> None:
    ratio = ratio_of(times)
    assert ratio.low <= ratio.median <= ratio.high
    assert not (ratio.faster and ratio.slower)
    beyond = sum(other > one / NOISE for one, other in times)
    if ratio.slower:
        assert beyond >= 3 * len(times) / 4 - 1, "three quarters of the rounds, at least"
    if beyond == len(times):
        assert ratio.slower or ratio.low == pytest.approx(1 / NOISE)


def test_every_variant_is_measured_and_the_report_says_what_became_of_it(tmp_path: Path) -> None:
    report = export(tmp_path / "m.tcpkg", [1, 64])
    measured = {each.variant for each in report.races}
    assert measured == {"n=1", "n=64"}
    assert all(each.ratio is not None and each.ratio.low > 0 for each in report.races)
    assert {each.against for each in report.races} == {"general"}
    slower = {each.variant for each in report.races if each.slower}
    assert {*report.variants, *slower} >= measured and not slower & {*report.variants}
    assert len([note for note in report.notes if note.code == "TC226"]) == len(slower)


def _slow(name: str) -> Any:
    def raced(bundle: Path, planned: Plan, folder: Path) -> tuple[Raced, ...]:
        assert bundle.is_file() and (folder / "calls.json").is_file()
        ratio = Ratio(1.2, 1.15, 1.25)
        return tuple(
            Raced(each.name, "general", {"n": 1}, ratio, each.name == name) for each in planned.made
        )

    return raced


def test_without_what_is_slower_a_bundle_has_the_bytes_of_one_that_never_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is made to say so: what it says of real code is another thing each time."""
    monkeypatch.setattr(exporting, "raced", _slow("n=8"))
    report = export(tmp_path / "one.tcpkg", [1, 8, 64], weights="external")
    assert report.variants == ("n=1", "n=64", "general")
    (note,) = report.notes
    assert note.code == "TC226" and "n=8 was left out: at n=1 it takes 1.15 to 1.25" in note.message
    export(tmp_path / "two.tcpkg", [1, 64], keep_variants=True, weights="external")
    assert (tmp_path / "one.tcpkg").read_bytes() == (tmp_path / "two.tcpkg").read_bytes()
    assert len(list(tmp_path.glob("weights-*"))) == 1
    with pytest.raises(ExportError, match="TC226"):
        export(tmp_path / "three.tcpkg", [1, 8], error="TC226")
    assert {each.name for each in tmp_path.glob("[!w]*")} == {"one.tcpkg", "two.tcpkg"}
