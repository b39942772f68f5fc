"""`check`: all that an export would say, by the same code, without compiling."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.errors import Location
from tcexport.exporter.families import FAMILIES

ROWS = torch.randn(3, 6)
AXES = {"x": ("rows", None)}


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.unit = nn.Sequential(nn.Linear(6, 6), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.unit(self.first(x))
        y = torch.fft.rfft(x).abs() + torch.fft.rfft(x + 1).abs()
        return y + torch.trapezoid(x).histc(4).sum()


def test_what_cannot_be_lowered_is_what_an_export_says_word_for_word(tmp_path: Path) -> None:
    module = Spectrum().eval()
    found = tcexport.check(module, (ROWS,), axes=AXES, dynamic={"rows": None})
    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(
            module, (ROWS,), axes=AXES, dynamic={"rows": None}, out=tmp_path / "m.tcpkg"
        )
    assert found.errors == error.value.diagnostics
    assert {each.code for each in found.errors} == {"TC501"} and len(found.errors) == 2
    assert [dim.name for dim in found.dims] == ["rows"], "the contract is there all the same"
    assert not [name for name, _ in found.stages if name.startswith(("compile for", "link for"))]
    assert "convert" in dict(found.stages)


def test_each_op_has_a_row_with_its_count_module_and_line() -> None:
    found = tcexport.check(Spectrum().eval(), (ROWS,), axes=AXES, dynamic={"rows": None})
    rows = {each.op: each for each in found.ops}
    refused = [each for each in found.ops if not each.supported]
    assert {each.op for each in refused} == {"aten._fft_r2c.default", "aten.histc.default"}
    fft = rows["aten._fft_r2c.default"]
    assert (fft.count, fft.module) == (2, "")
    assert isinstance(fft.location, Location) and "torch.fft.rfft(x)" in fft.location.text
    assert "one_hot" in rows["aten.histc.default"].tries
    linear = rows["aten.linear.default"]
    assert (linear.count, linear.fast, linear.module, linear.supported) == (2, 2, "first", True)
    # torch.utils.flop_counter: two for each of rows x 6 x 6, at the three rows of the example
    assert linear.flops == linear.fast_flops == 2 * (2 * 3 * 6 * 6)
    assert rows["aten.relu.default"].fast == 1, "it is a part of the linear's kernel"
    assert rows["aten.add.Tensor"].fast == 0


def test_what_needs_no_computing_is_told_apart() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.exp()

    rows = {each.op: each for each in tcexport.check(Folded().eval(), (ROWS,)).ops}
    assert (rows["aten.exp.default"].folded, rows["aten.mul.Tensor"].folded) == (1, 0)


def test_a_reason_is_in_the_users_dims() -> None:
    class Ordered(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.as_strided((x.shape[0], 2), (6, 1))

    found = tcexport.check(Ordered().eval(), (ROWS,), axes=AXES, dynamic={"rows": None})
    assert found.errors
    for each in found.errors:
        assert "s77" not in each.render() and "s0" not in each.render(), each.render()


def test_a_model_that_has_no_trace_is_refused_as_data() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("both")
            return x if x.sum() > 0 else -x

    found = tcexport.check(Branch().eval(), (ROWS,))
    assert [each.code for each in found.errors] == ["TC102"]
    assert [each.code for each in found.notes] == ["TC110"]
    assert found.contract is None and found.ops == () and found.dims == ()


# --- levels ---------------------------------------------------------------------------------------


class Talks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")
        return x * float(os.environ.get("SCALE", "3"))


def test_a_note_is_raised_or_silenced_by_its_code(tmp_path: Path) -> None:
    module = Talks().eval()
    found = tcexport.check(module, (ROWS,))
    assert {(each.code, each.severity) for each in found.notes} == {
        ("TC110", "note"),
        ("TC106", "warning"),
    }
    assert not found.errors
    silent = tcexport.check(module, (ROWS,), allow=["TC110"])
    assert [each.code for each in silent.notes] == ["TC106"]
    raised = tcexport.check(module, (ROWS,), error=["tc110,TC106"])
    assert {each.code for each in raised.errors} == {"TC110", "TC106"} and not raised.notes
    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(module, (ROWS,), out=tmp_path / "m.tcpkg", error=["TC106"])
    assert error.value.code == "TC106"
    assert {each.severity for each in error.value.diagnostics} == {"error", "note"}
    assert not list(tmp_path.iterdir())


def test_what_a_refusal_says_beside_it_has_its_level_too() -> None:
    class Both(Talks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum() > 0 else x

    found = tcexport.check(Both().eval(), (ROWS.abs(),), allow=["TC110"], error=["TC106"])
    assert {each.code for each in found.errors} == {"TC102", "TC106"}
    assert not found.notes


@pytest.mark.parametrize("code", ["TC106", "TC102", "TC501", "TC504", "TC105"])
def test_no_wrong_answer_can_be_silenced(code: str) -> None:
    with pytest.raises(tcexport.UsageError, match="cannot be silenced") as error:
        tcexport.check(Talks().eval(), (ROWS,), allow=[code])
    assert error.value.code == "TC013"


def test_families_and_registry_agree_on_the_level_of_a_code() -> None:
    from tcexport.artifacts.rules import RULES

    levels = {"note": "note", "warning": "warn"}
    mild = [each for each in FAMILIES.values() if each.severity != "error"]
    assert mild
    for each in mild:
        assert levels[each.severity] == RULES[each.code].level
