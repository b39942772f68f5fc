"""``tcexport inspect`` on a real file: what a person and a program read from it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.contract import (
    AxisSource,
    Contract,
    Dim,
    Fixed,
    Guard,
    IndexGuard,
    Leaf,
    Origin,
    Parameter,
    SizeOutput,
    TensorInput,
    TensorOutput,
    TupleNode,
)
from tcexport.artifacts.errors import Location
from tcexport.artifacts.manifest import Entry, Manifest, Provenance, Target
from tcexport.tools.cli import run_command

ASKED = Origin("--dynamic seq=1..512")
SLICE = Origin("the trace", Location("model.py", 14, "return x + self.position[: x.shape[1]]"))


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    contract = Contract(
        dims=(Dim("seq", AxisSource(0, 1), 2, 512, ASKED, SLICE, 2, ASKED),),
        parameters=(
            Parameter("input_ids", "either", Leaf(0)),
            Parameter("k", "keyword", Leaf(1), optional=True),
        ),
        inputs=(TensorInput("input_ids", "int64", (4, "seq")), Fixed.of("k", 3)),
        guards=(Guard(("==", ("%", "seq", 2), 0), SLICE),),
        index_guards=(IndexGuard(0, 0, 29999, Origin("index of embedding")),),
        outputs=(
            TensorOutput("[0]", "float32", (4, ("*", 2, "seq"), 512), 0),
            SizeOutput("[1]", ("+", "seq", 1)),
            TensorOutput("[2]", "int64", (None, 2), 1),
        ),
        result=TupleNode((Leaf(0), Leaf(1), Leaf(2))),
    )
    manifest = Manifest(
        format_version=1,
        model="Encoder",
        contract=contract,
        entry=Entry("main", (0,), ("seq",), (), 2),
        targets=(Target("cpu:x86-64-v3", "linux", "x86_64", "x86-64-v3", "2.27", "model.so"),),
        runtimes=(),
        provenance=Provenance("0.1.0", "model.py", "ab" * 32, {"dynamic": "seq"}, {}, "gcc 12"),
        members=(),
    )
    path = tmp_path / "m.tcpkg"
    write_bundle(path, manifest, [("model.so", b"not code, and nobody runs it")])
    return str(path)


def test_everything_is_shown_in_the_users_names(
    bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["inspect", bundle]) == 0
    shown = capsys.readouterr().out
    for line in (
        f"{bundle}: Encoder, format 1",
        "  input_ids  int64  [4, seq]",
        "  k          int    fixed: 3",
        "  seq   2..512:2  <= 512: return x + self.position[: x.shape[1]]  (model.py:14); "
        ">= 2 and steps of 2: --dynamic seq=1..512",
        "  seq % 2 == 0                       return x + self.position[: x.shape[1]]  "
        "(model.py:14)",
        "  0 <= input_ids <= 29999, each value  index of embedding",
        "  [0]   float32  [4, 2*seq, 512]",
        "  [1]   int      seq + 1",
        "  [2]   int64    [?, 2]",
        "  cpu:x86-64-v3  linux-x86_64  x86-64-v3  glibc 2.27  model.so",
        "  option    dynamic=seq",
        f"  source    model.py  sha256 {'ab' * 32}",
        "  linker    gcc 12",
    ):
        assert line.split() in [each.split() for each in shown.splitlines()], line
    assert "  model.so  28 B" in shown


def test_the_file_of_exchanged_weights_is_named_by_its_digest(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    made = msgspec.structs.replace(manifest.provenance, weights_sha256="cd" * 32)
    manifest = msgspec.structs.replace(manifest, provenance=made, members=())
    write_bundle(tmp_path / "n.tcpkg", manifest, [("model.so", b"not code")])
    assert run_command(["inspect", str(tmp_path / "n.tcpkg")]) == 0
    assert f"weights   sha256 {'cd' * 32}" in capsys.readouterr().out


def test_guards_alone(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", bundle, "--guards"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "guards:"
    assert [line.split("  ")[1] for line in lines[2:]] == [
        "seq % 2 == 0",
        "0 <= input_ids <= 29999, each value",
    ]


def test_json_is_the_manifest(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", bundle, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["contract"]["dims"][0]["name"] == "seq"
    assert data["members"][0]["size"] == 28
    assert data["contract"]["outputs"][2]["shape"] == [None, 2]
    assert run_command(["inspect", bundle, "--guards", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [guard["expr"] for guard in data["guards"]] == [["==", ["%", "seq", 2], 0]]
    assert data["index_guards"][0]["hi"] == 29999


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), (b"", "the file is empty"), (b"PK\x03\x04" + b"x" * 99, "")],
)
def test_what_is_no_bundle_has_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    path = tmp_path / "m.tcpkg"
    if content is not None:
        path.write_bytes(content)
    assert run_command(["inspect", str(path)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error[TC401] {path} is not a bundle: {said}")
