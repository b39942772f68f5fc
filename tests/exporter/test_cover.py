"""`--cover`: every arm of a branch on a size is traced, and a call goes to its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tcexport
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import BundleError, ExportError, GuardError
from tcexport.tools import cli

LEVEL = "cpu:x86-64-v3"
AXES = {"x": ("batch", "seq")}


class Branches(nn.Module):
    """One step, few steps or many: three ways over the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(40, 40)
        self.gate = nn.Linear(1, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seq = x.shape[1]
        if seq == 1:
            return self.gate(x)
        if seq > 8:
            return self.mix(torch.nn.functional.pad(x, (0, 40 - seq))) * 2
        return x.cumsum(1).sum(1, keepdim=True) + self.gate(x[:, :1])


class Limited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 4:
            return x * self.table[: x.shape[1]]
        return x + 1


def export(module: nn.Module, path: Path, cover: tuple[int, int], **options) -> tcexport.Report:
    return tcexport.export(
        module.eval(),
        (torch.randn(2, 12),),
        axes=AXES,
        dynamic={"batch": (1, 4)},
        cover={"seq": cover},
        out=path,
        targets=(LEVEL,),
        **options,
    )


@pytest.fixture(scope="module")
def branches() -> Branches:
    torch.manual_seed(0)
    return Branches().eval()


@pytest.fixture(scope="module")
def bundle(branches: Branches, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cover") / "m.tcpkg"
    report = export(branches, path, (1, 40), specialize={"seq": 16, "batch": 1}, keep_variants=True)
    assert report.variants == ("seq=16,batch=1", "seq=1", "seq=2..8", "seq=9..40")
    assert {dim.name: dim.span() for dim in report.dims} == {"batch": "1..4", "seq": "1..40"}
    return path


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(0, 5), seq=st.integers(0, 42))
def test_each_call_goes_to_its_arm_and_equals_eager(
    bundle: Path, branches: Branches, batch: int, seq: int
) -> None:
    model = _models.setdefault(bundle, tcexport.load(bundle))
    x = np.random.default_rng(seq).standard_normal((batch, seq), dtype=np.float32)
    if not (1 <= batch <= 4 and 1 <= seq <= 40):
        with pytest.raises(GuardError, match=r"seq 1\.\.40"):
            model(x)
        return
    before = dict(model.metrics.variants)
    got = model(x)
    taken = {name for name, count in model.metrics.variants.items() if count > before[name]}
    arm = "seq=1" if seq == 1 else "seq=2..8" if seq <= 8 else "seq=9..40"
    assert taken == {"seq=16,batch=1" if (batch, seq) == (1, 16) else arm}
    with torch.no_grad():
        np.testing.assert_allclose(got, branches(torch.from_numpy(x)), rtol=1e-4, atol=1e-4)


_models: dict[Path, tcexport.Model] = {}


def test_the_arms_share_their_weights(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    weights = {each.name: set(each.entry.weights) for each in manifest.variants}
    assert weights["seq=1"] & weights["seq=2..8"] >= {"gate.bias"}
    assert not {name for each in weights.values() for name in each if "@" in name}
    assert all(each.contract is not None for each in manifest.variants)
    assert tcexport.load(bundle, serves={"seq": (1, 40)}).contract == manifest.contract


def test_what_cannot_be_traced_is_refused_with_the_line_or_left_out_when_narrow(
    tmp_path: Path,
) -> None:
    with pytest.raises(ExportError) as error:
        export(Limited(), tmp_path / "m.tcpkg", (1, 20))
    diagnostic = error.value.diagnostics[0]
    assert diagnostic.code == "TC224"
    assert "seq=17..20 of --cover seq=1..20 cannot be traced" in diagnostic.message
    assert "covered: seq=5..16" in diagnostic.notes and "covered: seq=1..4" in diagnostic.notes
    assert not list(tmp_path.iterdir())
    report = export(Limited(), tmp_path / "m.tcpkg", (1, 20), narrow=True)
    assert [note.code for note in report.notes] == ["TC224"]
    model = tcexport.load(report.path)
    with pytest.raises(GuardError, match="needs seq <= 16"):
        model(np.ones((1, 17), np.float32))


def test_more_arms_than_the_limit_are_refused(branches: Branches, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="more than 1 arms") as error:
        export(branches, tmp_path / "m.tcpkg", (1, 40), variant_limit=1)
    assert error.value.code == "TC221"


class Odd(nn.Module):
    """A hole within a range: with 5 steps there is no answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 5:
            raise ValueError("not five")
        return x * 2


def test_a_hole_is_refused_at_load_and_at_call(tmp_path: Path) -> None:
    report = export(Odd(), tmp_path / "m.tcpkg", (1, 20), narrow=True)
    assert any("seq=5 is not covered" in note.message for note in report.notes)
    model = tcexport.load(report.path, serves={"seq": (6, 20)})
    assert model(np.ones((1, 6), np.float32)).shape == (1, 6)
    with pytest.raises(GuardError) as error:
        model(np.ones((1, 5), np.float32))
    assert error.value.code in ("TC307", "TC320")
    with pytest.raises(BundleError) as refused:
        tcexport.load(report.path, serves={"seq": (1, 20)})
    assert refused.value.code == "TC406"
    served = ["check", str(report.path), "--serves"]
    assert cli.run_command([*served, "seq=6..20"]) == 0
    assert cli.run_command([*served, "seq=1..20"]) == 4, "the command says what the load says"
