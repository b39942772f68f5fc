"""What an export tells of a bundle that this machine cannot run."""

from pathlib import Path

import pytest
import torch

import tcexport
from tcexport.artifacts.errors import ExportError
from tcexport.lowering.cuda.toolchain import find_toolchain


class Fails(torch.nn.Module):
    """At sizes that no trace sees."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and x.shape[0] == 64:
            raise ValueError("that is too many")
        return x * 2


def test_a_size_at_which_the_model_fails_is_told_of_a_bundle_for_gpus_alone(tmp_path: Path) -> None:
    try:
        find_toolchain()
    except ExportError as error:
        pytest.skip(f"{error.diagnostics[0].message}; pip install 'tcexport[cuda]'")
    report = tcexport.export(
        Fails().eval(),
        (torch.randn(4, 8),),
        axes={"x": ("batch", None)},
        dynamic={"batch": (1, 64)},
        targets=("cuda:sm_90",),
        out=tmp_path / "m.tcpkg",
    )
    failing = [each for each in report.verified if "that is too many" in each.skipped]
    assert [each.sizes for each in failing] == [{"batch": 64}]
    assert [each.target for each in report.verified if each not in failing] == ["cuda:sm_90"]
