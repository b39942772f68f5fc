"""``tcexport check m.tcpkg --serves …``: what will be asked of a bundle, proved before it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tcexport.artifacts.container import write_bundle
from tcexport.artifacts.contract import (
    AxisSource,
    Contract,
    Dim,
    Guard,
    IndexGuard,
    Leaf,
    Origin,
    Parameter,
    TensorInput,
    TensorOutput,
)
from tcexport.artifacts.errors import Location
from tcexport.artifacts.manifest import Entry, Manifest, Provenance
from tcexport.tools.cli import run_command

ASKED = Origin("--dynamic seq=1..512")
SLICE = Origin("the trace", Location("model.py", 14, "return x + self.position[: x.shape[1]]"))


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    contract = Contract(
        dims=(
            Dim("batch", AxisSource(0, 0), 1, 16, ASKED, ASKED),
            Dim("seq", AxisSource(0, 1), 1, 512, ASKED, SLICE),
        ),
        parameters=(Parameter("ids", "either", Leaf(0)),),
        inputs=(TensorInput("ids", "int64", ("batch", "seq")),),
        guards=(Guard(("<=", ("*", "batch", "seq"), 4096), SLICE),),
        index_guards=(IndexGuard(0, 0, 29999, Origin("index of embedding")),),
        outputs=(TensorOutput("y", "int64", ("batch", "seq"), 0),),
        result=Leaf(0),
    )
    manifest = Manifest(
        1, "Encoder", contract, Entry("main", (0,), (), (), 1), (), (),
        Provenance("0.1.0", "model.py", "", {}, {}, "cc"), (),
    )  # fmt: skip
    path = tmp_path / "m.tcpkg"
    write_bundle(path, manifest, [("note", b"no code: nothing is run")])
    return str(path)


def test_what_is_served_is_proved(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", bundle, "--serves", "seq=1..512", "--serves", "batch=1..8"]) == 0
    out = capsys.readouterr().out
    assert "proved: seq <= 512   (return x + self.position[: x.shape[1]]  (model.py:14))" in out
    assert "proved: batch*seq <= 4096" in out
    assert "checked at each call: 0 <= ids <= 29999, each value" in out
    assert out.endswith("served: seq=1..512, batch=1..8\n")


def test_what_is_not_has_a_counterexample_a_share_and_status_4(
    bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["check", bundle, "--serves", "seq=1..1024,batch=1..8"]) == 4
    out = capsys.readouterr().out
    assert "refuted: seq <= 512" in out
    assert "fails at seq=513 (50 % of the sizes are refused)" in out
    assert "refuted: batch*seq <= 4096" in out
    assert out.endswith("not served: seq=1..1024, batch=1..8 (50 % of the sizes are refused)\n")


def test_json(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", bundle, "--serves", "batch=9..17", "--format", "json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["served"] is False and answer["serves"] == {"batch": "9..17"}
    by_needs = {each["needs"]: each for each in answer["conditions"]}
    assert by_needs["batch <= 16"]["counterexample"] == {"batch": 17}
    assert by_needs["batch <= 16"]["share"] == pytest.approx(8 / 9)
    # seq keeps the whole range of the bundle, and not all of it goes with these batches.
    assert by_needs["batch*seq <= 4096"]["status"] == "refuted"
    served = sum(b <= 16 and b * s <= 4096 for b in range(9, 18) for s in range(1, 513))
    assert answer["share"] == pytest.approx(served / (9 * 512))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say which sizes it has to serve"),
        (["--serves", "seq"], "--serves seq says no sizes"),
        (["--serves", "seq=5"], "--serves seq=1..5"),
        (["--serves", "seq=1..5", "--keep-variants"], "it takes --serves, and is not traced"),
        (["--serves", "sequence=1..5"], "dims: batch, seq"),
        (["--serves", "seq=1..5", "--dynamic", "seq"], "it takes --serves, and is not traced"),
    ],
)
def test_what_does_not_fit_is_said(
    bundle: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["check", bundle, *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_source_is_asked_with_dynamic(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", "model.py", "--serves", "seq=1..5"]) == 2
    assert "tcexport check model.py --dynamic seq=1..5" in capsys.readouterr().err
