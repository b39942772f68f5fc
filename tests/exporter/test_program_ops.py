"""Saved programs with ops that torch registers only once somebody imports what does so."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn

from tcexport.artifacts.errors import UsageError
from tcexport.exporter import program_ops
from tcexport.exporter.program_ops import register_ops

_ELSEWHERE = """
import sys, torch
from pathlib import Path
from tcexport.artifacts.errors import UsageError
from tcexport.exporter.programs import load_program
print(load_program(Path(sys.argv[1])).module(torch.tensor([0.26])))
try:
    load_program(Path(sys.argv[2]))
except UsageError as error:
    print(error)
"""


class Steps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 1, 0, 255, torch.uint8)


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.tcexport_test.half_of(x)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    @torch.library.custom_op("tcexport_test::half_of", mutates_args=())
    def half_of(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    half_of.register_fake(torch.empty_like)
    files = (tmp_path / "steps.pt2", tmp_path / "own.pt2")
    for file, module in zip(files, (Steps(), Own()), strict=True):
        torch.export.save(torch.export.export(module, (torch.randn(1),)), file)
    return files


def test_ops_of_quantized_models_are_there_and_others_are_named(saved: tuple[Path, Path]) -> None:
    command = [sys.executable, "-c", _ELSEWHERE, *map(str, saved)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tensor([4], dtype=torch.uint8)" in done.stdout
    assert "TC001" in done.stdout and "tcexport_test::half_of" in done.stdout
    assert "half_of" not in done.stderr  # torch's own page about it


def test_a_library_that_is_not_there_is_named(
    saved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(program_ops._REGISTERS, "tcexport_test", "no_such_library.ops")
    with pytest.raises(UsageError, match=r"TC001.*ops of tcexport_test[\s\S]*pip install no_such"):
        register_ops(saved[1])


def test_what_is_no_archive_is_left_to_torch(tmp_path: Path) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"no archive")
    register_ops(tmp_path / "bad.pt2")
