"""`tcexport advise`: which sizes it looks at, and what it makes of the times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.tools.advise import Seen, _row, advice
from tcexport.tools.cli import run_command


def test_only_what_holds_in_three_quarters_of_the_rounds_pays() -> None:
    noise = [(1.0, 0.7), (1.0, 1.3), (1.0, 0.8), (1.0, 1.2)] * 3
    faster = [(1.0, 0.8), (2.0, 1.6), (1.0, 0.9), (1.0, 0.75)] * 3
    slower = [(1.0, 1.1), (1.0, 1.2)] * 6
    assert not _row("a", Seen({"n": 1}, 1), noise).pays
    row = _row("b", Seen({"n": 2}, 30), faster)
    assert row.pays and row.ratio == pytest.approx(0.8)
    assert advice([_row("a", Seen({"n": 1}, 10), noise)]) == [
        "no variant pays: at these sizes the general code is as fast, within noise"
    ]
    found = advice([row, _row("c", Seen({"n": 3}, 10), slower)])
    assert found[0] == "n=3: slower than the general code, leave the variant out"
    assert found[1].endswith("--profile v0:n=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    tcexport.export(
        nn.Linear(4, 4).eval(),
        (torch.randn(3, 4),),
        axes={"input": ("n", None)},
        dynamic={"n": (1, 64)},
        specialize={"n": [1, 8]},
        keep_variants=True,
        out=folder / "m.tcpkg",
        targets=("cpu:x86-64-v3",),
    )
    return folder


def test_the_sizes_that_a_model_counted_are_measured(folder: Path, capsys) -> None:
    model = tcexport.load(folder / "m.tcpkg", count_sizes=True)
    for n, times in ((8, 3), (1, 2)):
        for _ in range(times):
            model(np.ones((n, 4), np.float32))
    assert model.seen == [{"n": 8, "calls": 3}, {"n": 1, "calls": 2}]
    (folder / "seen.json").write_text(json.dumps(model.seen))
    command = ["advise", str(folder / "m.tcpkg"), "--shapes", str(folder / "seen.json"), "-q"]
    assert run_command([*command, "--rounds", "4", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["variant"], row["calls"]) for row in found["rows"]] == [("n=8", 3), ("n=1", 2)]
    assert all(row["general"] > 0 and row["specialized"] > 0 for row in found["rows"])
    assert found["advice"]


SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(16, 4))

    def forward(self, x, *, k: int):
        return x * self.table[: x.shape[1]] * (2 if self.training else k)
"""


def test_another_export_has_all_options_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(SOURCE)
    given = ["--input", "x=float32[b=2,s=5,4]", "--input", "k=3", "--axes", "x=b,s,_", "--train"]
    options = [*given, "--dynamic", "b=1..4,s=1..64", "--narrow", "--target", "cpu:x86-64-v3"]
    assert run_command(["export", "model.py:Net", "-q", *options, "-o", "m.tcpkg"]) == 0
    Path("shapes.csv").write_text("b,s,calls\n1,3,5\n2,16,1\n")
    advised = ["advise", "m.tcpkg", "--shapes", "shapes.csv", "-q", "--rounds", "4"]
    capsys.readouterr()
    assert run_command([*advised, "--against", "model.py:Net", *given, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["sizes"] for row in found["rows"]] == [{"b": 1, "s": 3}, {"b": 2, "s": 16}]
    assert not found["notes"]
    assert run_command([*advised, "--against", "model.py:Nut"]) == 2
    assert "error[TC0" in capsys.readouterr().err, "what the export says is told as its own"
    assert run_command([*advised, "--axes", "x=b,s,_"]) == 2
    assert "--against model.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("m\n3\n", "TC006", "no dim 'm'"),
        ("n\nx\n", "TC008", "row 1"),
        ("n\n", "TC008", "holds no sizes"),
        ("n,calls\n5,2\n", "TC008", "have no variant in the bundle: n=5"),
    ],
)
def test_sizes_that_cannot_be_looked_at_are_refused(
    folder: Path, capsys, text: str, code: str, says: str
) -> None:
    shapes = folder / "shapes.csv"
    shapes.write_text(text)
    assert run_command(["advise", str(folder / "m.tcpkg"), "--shapes", str(shapes), "-q"]) == 2
    told = capsys.readouterr().err
    assert code in told and says in told
