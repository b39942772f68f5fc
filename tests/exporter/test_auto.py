"""`--dynamic auto`: what the examples differ in is dynamic, and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.errors import ExportError, GuardError, UsageError
from tcexport.exporter.auto import with_auto
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import load_source, source_in_memory


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return (x * mask[:, :, None]).sum(1) * scale


LEVEL = "cpu:x86-64-v3"


def example(batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, seq, 4), torch.ones(batch, seq)


def found(*examples, axes=None, dynamic=None):
    source = source_in_memory(Pair().eval(), examples[0], axes=axes or {}, examples=examples[1:])
    return with_auto(source, {"auto": None, **(dynamic or {})})


def test_axes_that_differ_alike_are_one_dim_and_the_rest_is_fixed() -> None:
    source, dynamic = found(example(2, 5), example(2, 9), example(2, 7))
    assert dynamic == {"x_1": None}
    assert source.axes == {"x": (None, "x_1", None), "mask": (None, "x_1")}
    (note,) = source.notes
    assert note.code == "TC225" and note.message == "--dynamic auto: x_1 is dynamic"
    assert note.notes == ("x_1: x axis 1, mask axis 1 (5, 7, 9 in the examples)",)
    assert note.tries[0].startswith("--dynamic x_1 ")


def test_names_and_ranges_that_are_given_are_kept() -> None:
    source, dynamic = found(
        example(2, 5),
        example(3, 9),
        axes={"x": ("batch", "seq", "width"), "mask": ("batch", None)},
        dynamic={"seq": DimRequest(1, 64)},
    )
    assert dynamic == {"batch": None, "seq": DimRequest(1, 64)}
    assert source.axes["mask"] == ("batch", "seq")
    assert "width: the same in all examples, and fixed" in source.notes[0].notes
    assert source.notes[0].tries[0].startswith("--dynamic batch,seq=1..64 ")


@pytest.mark.parametrize(
    ("examples", "code", "says"),
    [
        ([example(2, 5)], "TC004", "there is one"),
        ([example(2, 5), example(2, 5)], "TC004", "no axis differs in the 2 examples"),
        ([example(2, 5), (*example(2, 6), 3.0)], "TC005", "scale is 2.0 in the first example, 3.0"),
        ([example(2, 5), (torch.ones(2, 6), torch.ones(2, 6))], "TC005", "only sizes may differ"),
    ],
)
def test_examples_that_cannot_be_compared_are_refused(examples, code: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        found(*examples)
    assert error.value.code == code


def test_a_list_of_examples_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\nfrom torch import nn\nmodel = nn.Linear(4, 4)\n"
        "example_inputs = [(torch.randn(2, 4),), {'input': torch.randn(3, 4)}]\n"
    )
    _, dynamic = with_auto(load_source(str(tmp_path / "m.py")), {"auto": None})
    assert dynamic == {"input_0": None}


def test_an_export_serves_all_examples_and_more(tmp_path: Path) -> None:
    report = tcexport.export(
        Pair().eval(),
        example(2, 5),
        examples=[example(2, 9)],
        dynamic="auto",
        out=tmp_path / "m.tcpkg",
        targets=("cpu:x86-64-v3",),
    )
    assert [note.code for note in report.notes] == ["TC225"]
    model = tcexport.load(report.path)
    x, mask = np.ones((2, 13, 4), np.float32), np.ones((2, 13), np.float32)
    np.testing.assert_allclose(model(x, mask), 26.0)
    with pytest.raises(GuardError):
        model(x[:1], mask[:1])


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table[: x.shape[1]] if x.shape[1] < 9 else x


def test_an_example_that_the_trace_does_not_serve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is 12 in example 2, and the bundle serves") as error:
        tcexport.export(
            Table().eval(),
            (torch.randn(2, 5),),
            examples=[(torch.randn(2, 12),)],
            dynamic="auto",
            out=tmp_path / "m.tcpkg",
        )
    assert error.value.code == "TC212"
    assert not list(tmp_path.iterdir())


def test_an_example_that_differs_in_a_fixed_axis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="x axis 1 is 9 in example 2, and the bundle serves 5"):
        tcexport.export(
            Pair().eval(), example(2, 5), examples=[example(2, 9)], out=tmp_path / "m.tcpkg"
        )


class Halves(nn.Module):
    """Needs an even number of rows, and indices of a table of five."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, -1, 4).sum(0) + self.table(ids)


def halves(rows: int, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(rows // 2, dtype=torch.int64)
    ids[-1:] = largest
    return torch.randn(rows, 4), ids


def export_halves(path: Path, *examples: tuple[torch.Tensor, torch.Tensor]) -> None:
    tcexport.export(
        Halves().eval(),
        halves(8, 4),
        examples=examples,
        axes={"x": ("rows", None), "ids": ("half",)},
        dynamic={"rows": None, "half": None},
        out=path / "m.tcpkg",
        targets=(LEVEL,),
    )


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (halves(6, 5), "ids holds 0 to 5 in example 3, and the bundle serves -?[05] to 4"),
        (
            (torch.randn(6, 4), torch.zeros(2, dtype=torch.int64)),
            "half is 2, rows is 6 in example 3",
        ),
        (
            (torch.randn(6, 4), torch.zeros(3)),
            r"ids is float32\[3\] in example 3, and .* int64 of 1",
        ),
        ((torch.randn(6, 4, 1), torch.zeros(3, dtype=torch.int64)), "float32 of 2 axes"),
    ],
)
def test_an_example_that_a_guard_refuses_is_refused_at_export(
    tmp_path: Path, other: tuple[torch.Tensor, torch.Tensor], says: str
) -> None:
    with pytest.raises(ExportError, match=says) as error:
        export_halves(tmp_path, halves(4, 0), other)
    assert error.value.code == "TC212"
    assert not list(tmp_path.iterdir())


def test_examples_that_meet_the_guards_are_served(tmp_path: Path) -> None:
    export_halves(tmp_path, halves(4, 0), halves(12, 4))
    assert tcexport.load(tmp_path / "m.tcpkg")(*halves(12, 4)).shape == (6, 4)
