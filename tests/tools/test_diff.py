"""``tcexport diff``: nothing for equal files; each difference once, in the user's names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.manifest import (
    WEIGHTS_NAME,
    CudaCode,
    Manifest,
    Parameters,
    SourceTensor,
)
from tcexport.artifacts.weights import write_weights
from tcexport.tools import cli
from tcexport.tools.differences import _ORDER, _SECTIONS

RICH = Path(__file__).parents[1] / "attacks" / "corpus" / "rich.tcpkg"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return Path(shutil.copy(RICH, tmp_path / "one.tcpkg"))


def changed(
    source: Path,
    edit: Callable[[Manifest], Manifest],
    members: dict[str, bytes | None] | None = None,
) -> Path:
    with open_bundle(source) as bundle:
        held: dict[str, Any] = {
            each.name: bytes(bundle.view(each.name)) for each in bundle.manifest.members
        }
        manifest = bundle.manifest
    held |= members or {}
    path = source.with_name("two.tcpkg")
    parts = [(name, content) for name, content in held.items() if content is not None]
    write_bundle(path, edit(msgspec.structs.replace(manifest, members=())), parts)
    return path


def diff(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[int, list[dict[str, Any]], str]:
    typed = [str(path) for path in paths]
    status = cli.run_command(["diff", *typed])
    text = capsys.readouterr().out
    assert cli.run_command(["diff", *typed, "--format", "json"]) == status
    return status, json.loads(capsys.readouterr().out)["differences"], text


def test_a_file_and_its_copy_are_the_same(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = changed(one, lambda manifest: manifest)
    assert diff(capsys, one, copy) == (0, [], "the same: every byte\n")
    assert copy.read_bytes() == one.read_bytes()


def test_entries_in_another_order_are_a_difference(
    one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_bundle(one) as bundle:
        dims = bundle.manifest.contract.dims
    assert len(dims) > 1
    two = changed(one, contract(dims=dims[::-1]))
    status, found, _ = diff(capsys, one, two)
    assert status == 1 and [each["what"] for each in found] == [
        "the order of entries in the manifest"
    ]


def contract(**fields: Any) -> Callable[[Manifest], Manifest]:
    return lambda manifest: msgspec.structs.replace(
        manifest, contract=msgspec.structs.replace(manifest.contract, **fields)
    )


def test_a_range_and_a_guard_that_is_gone(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_bundle(one) as bundle:
        before = bundle.manifest.contract
    narrower = msgspec.structs.replace(before.dims[0], hi=32)
    two = changed(one, contract(dims=(narrower, *before.dims[1:]), guards=before.guards[1:]))
    status, found, text = diff(capsys, one, two)
    assert status == 1
    assert {each["section"] for each in found} == {"contract"}
    assert {"section": "contract", "what": "dims[n].hi", "first": "64", "second": "32"} in found
    gone = [each for each in found if each["second"] is None]
    assert gone and all("guards[n != 1 or m // 2 <= 8]" in each["what"] for each in gone)
    assert "dims[n].hi: 64 -> 32" in text
    assert "- guards[n != 1 or m // 2 <= 8].expr" in text


def test_code_versions_and_members(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def newer(manifest: Manifest) -> Manifest:
        made = msgspec.structs.replace(manifest.provenance, versions={"torch": "2.14.0"})
        return msgspec.structs.replace(manifest, provenance=made, model="Other")

    more: dict[str, bytes | None] = {"targets/cpu/model.so": b"\x7fELF other", "notes": b"n"}
    _, found, _ = diff(capsys, one, changed(one, newer, more))
    told = {(each["section"], each["what"]) for each in found}
    assert told == {
        ("bundle", "model"),
        ("versions", "versions.torch"),
        ("code", "targets/cpu/model.so"),
        ("members", "notes"),
    }


def test_each_part_of_a_manifest_has_a_section() -> None:
    assert {*_SECTIONS, "members"} == set(Manifest.__struct_fields__)
    assert set(_SECTIONS.values()) <= set(_ORDER)


def test_names_that_are_an_operators_are_told_as_names(
    one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only fields that hold expressions are shown as such: a list of names may begin with `max`."""

    def renamed(names: tuple[str, ...]) -> Callable[[Manifest], Manifest]:
        made = CudaCode(("sm_80",), "", "13.0", "", "none", names)
        return lambda manifest: msgspec.structs.replace(
            manifest,
            targets=(*manifest.targets, msgspec.structs.replace(manifest.targets[0], cuda=made)),
            memory=(("max", "n", 4),),
        )

    two = changed(one, renamed(("max", "n", "x")))
    kept = two.rename(two.with_name("kept.tcpkg"))
    _, found, _ = diff(capsys, kept, changed(one, renamed(("min", "n", "x"))))
    assert [(each["section"], each["first"], each["second"]) for each in found] == [
        ("code", '"max"', '"min"')
    ]
    _, found, _ = diff(capsys, one, kept)
    assert ("memory[0]", "max(n, 4)") in [(each["what"], each["second"]) for each in found]


def test_what_is_known_of_parameters_is_told_with_the_weights(
    one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = (SourceTensor("max", "float32", (5,)),)
    parameters = Parameters(sources, {"w": ["reshape", "max", [5]]})
    two = changed(one, lambda each: msgspec.structs.replace(each, parameters=parameters))
    _, found, _ = diff(capsys, one, two)
    assert {each["section"] for each in found} == {"weights"}


def test_weights_tensor_by_tensor(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w = np.arange(5, dtype=np.float32)
    w[2] = 2.5
    write_weights(tmp_path / "w", {"w": w, "half": np.ones((2, 3), np.float32)})
    two = changed(one, lambda manifest: manifest, {WEIGHTS_NAME: (tmp_path / "w").read_bytes()})
    _, found, _ = diff(capsys, one, two)
    assert found == [
        {
            "section": "weights",
            "what": "w",
            "first": "float32 [5]",
            "second": "the same, 1 of 5 elements differ, by 0.5 at most",
        },
        {
            "section": "weights",
            "what": "half",
            "first": "bfloat16 [2, 3]",
            "second": "float32 [2, 3]",
        },
    ]


def test_a_damaged_file_is_refused_not_compared(
    one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(one.read_bytes())
    data[data.index(b"\x7fELF model") + 2] ^= 1
    two = one.with_name("two.tcpkg")
    two.write_bytes(data)
    assert cli.run_command(["diff", str(one), str(two)]) == 3
    assert "TC402" in capsys.readouterr().err
