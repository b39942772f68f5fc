"""Exports that are refused, from the first check to the last: no file is left, and the error says what
to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport
from tcexport.lowering import lower, worker
from tcexport.lowering.converters.registry import CONVERTERS


class Relu(nn.Module):
    def forward(self, x):
        return x.relu() + 1


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("no answer today")


def refused(module: nn.Module, folder: Path, **options: Any) -> tcexport.TcexportError:
    options = {"dynamic": {"n": (1, 8)}, "targets": ("cpu:x86-64-v3",)} | options
    with pytest.raises(tcexport.TcexportError) as error:
        tcexport.export(
            module,
            (torch.randn(3, 4),),
            axes={"x": ("n", None)},
            out=folder / "x.tcpkg",
            **options,
        )
    assert not list(folder.iterdir()), "a refused export leaves nothing behind"
    return error.value


def test_a_model_that_fails_in_eager_mode_is_shown_with_its_line(tmp_path: Path) -> None:
    error = refused(Fails().eval(), tmp_path)
    assert error.code == "TC009"
    assert "ValueError: no answer today" in str(error)
    assert "raise ValueError" in str(error)


def test_training_mode_is_refused(tmp_path: Path) -> None:
    error = refused(Relu().train(), tmp_path)
    assert error.code == "TC010"
    assert "model.eval()" in str(error)


def test_a_binary_with_other_numbers_than_eagers_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(request: Path, progress: Any) -> None:
        worker.main(str(request))

    monkeypatch.setattr(lower, "_run_worker", run_here)
    from tcexport.lowering import converters  # noqa: F401  (registers them)

    wrong = CONVERTERS["aten.neg.default"]
    monkeypatch.setitem(CONVERTERS, "aten.relu.default", wrong)
    error = refused(Relu().eval(), tmp_path)
    assert error.code == "TC504"
    assert "differs from eager by up to" in str(error)


def test_without_a_linker_the_export_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(request: Path, progress: Any) -> None:
        worker.main(str(request))

    monkeypatch.setattr(lower, "_run_worker", run_here)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ziglang" else found(name)
    )
    error = refused(Relu().eval(), tmp_path)
    assert error.code == "TC505"
    assert "install gcc or clang" in str(error)


def test_a_target_that_is_not_known_is_refused_before_any_work(tmp_path: Path) -> None:
    error = refused(Relu().eval(), tmp_path, targets=("cpu:x86-64-v9",))
    assert error.code == "TC506"
    assert "cpu:x86-64-v3" in str(error)


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(tcexport.UsageError) as error:
        tcexport.export(
            Fails().eval(), (torch.randn(3, 4),), axes={}, dynamic={},
            out=tmp_path / "nowhere" / "x.tcpkg",
        )  # fmt: skip
    assert error.value.code == "TC012"


def test_an_example_outside_of_its_range_is_refused(tmp_path: Path) -> None:
    error = refused(Relu().eval(), tmp_path, dynamic={"n": (4, 8)})
    assert error.code == "TC212"
    assert "n is 3 in the example inputs" in str(error)
