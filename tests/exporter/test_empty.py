"""GPU code takes no empty tensors: a range that holds one is refused before anything is compiled. A CPU
takes them, as weights, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter.empty import require_no_empty
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory
from tcexport.exporter.stages import Stages
from tcexport.exporter.traced import traced_and_derived

GPU = "cuda:sm_80"


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Steps(nn.Module):
    """Differences of rows that follow each other: one less than there are rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:] - x[:, :-1]


def judged(module: nn.Module, **dynamic: Any) -> None:
    source = source_in_memory(
        module.eval(), (torch.randn(4, 8, 4),), {}, {"x": ("batch", "seq", None)}
    )
    requests = {name: DimRequest(*each) for name, each in dynamic.items()}
    traced, derived, _ = traced_and_derived(source, requests, False, Stages(None))
    require_no_empty(traced, derived, GPU)


@pytest.mark.parametrize(
    ("module", "ranges", "says", "tries"),
    [
        (Scaled(), {"batch": (0, 8)}, "batch may be 0", "--dynamic batch=1..8"),
        (Scaled(), {"batch": (0, 8, 4), "seq": (1, 9)}, "batch may be 0", "batch=4..8:4"),
        (Scaled(), {"batch": (0, None)}, "batch may be 0", "--dynamic batch=1.."),
        (Steps(), {"batch": (1, 8), "seq": (1, 9)}, "seq - 1 may be 0", "--dynamic seq=2..9"),
    ],
)
def test_a_size_that_may_be_0_is_refused_with_the_range_to_give(
    module: nn.Module, ranges: dict[str, Any], says: str, tries: str
) -> None:
    with pytest.raises(tcexport.ExportError, match=says) as error:
        judged(module, **ranges)
    (found,) = error.value.diagnostics
    assert found.code == "TC210" and tries in found.tries[0]
    assert found.tries[-1] == "--target cpu"
    assert (found.location is not None) == isinstance(module, Steps)


@pytest.mark.parametrize(
    ("module", "ranges"),
    [
        (Scaled(), {"batch": (1, 8)}),
        (Steps(), {"batch": (1, None), "seq": (2, None)}),
        (Steps(), {"batch": (1, 8), "seq": (4, 16, 4)}),
    ],
)
def test_sizes_from_1_are_not(module: nn.Module, ranges: dict[str, Any]) -> None:
    judged(module, **ranges)


def test_an_export_for_a_gpu_is_refused_in_front(tmp_path: Path) -> None:
    pytest.importorskip("nvidia", reason="GPU code needs tcexport[cuda]")
    with pytest.raises(tcexport.ExportError, match=r"can't be served on cuda:sm_80") as error:
        tcexport.export(
            Scaled().eval(),
            (torch.randn(4, 8, 4),),
            axes={"x": ("batch", None, None)},
            dynamic={"batch": (0, 8)},
            targets=("cpu:x86-64-v3", GPU),
            out=tmp_path / "m.tcpkg",
        )
    assert error.value.code == "TC210"
    assert not list(tmp_path.iterdir())


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.table(ids), ids[..., None].float()], -1)


def test_a_weight_without_elements_is_one(tmp_path: Path) -> None:
    out, ids, model = tmp_path / "m.tcpkg", torch.randint(0, 5, (4, 3)), Table().eval()
    axes = {"ids": ("batch", None)}
    level = ("cpu:x86-64-v3",)
    tcexport.export(model, (ids,), axes=axes, dynamic={"batch": (1, 8)}, targets=level, out=out)
    torch.testing.assert_close(tcexport.load(out)(ids[:2]), model(ids[:2]))
