"""The partition of the sizes among variants, as `tcexport inspect` shows it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.contract import TensorInput, TensorOutput
from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.manifest import Entry, Variant
from tcexport.tools.cli import run_command

from ..runtime.bundles import contract_of, dim, pack

WHOLE = contract_of(
    {"x": TensorInput("x", "float32", ("batch", "seq"))},
    [TensorOutput("out", "float32", ("batch",), 0)],
    [dim("batch", 0, 0, 1, 16), dim("seq", 0, 1, 1, None)],
)
ENTRY = Entry("main", (0,), (), (), 1)


def narrowed(**spans: tuple[int, int]):
    dims = tuple(
        msgspec.structs.replace(each, lo=spans[each.name][0], hi=spans[each.name][1])
        if each.name in spans
        else each
        for each in WHOLE.dims
    )
    return msgspec.structs.replace(WHOLE, dims=dims)


def variants(*last: Variant) -> tuple[Variant, ...]:
    one = Variant(
        "one", msgspec.structs.replace(ENTRY, function="v1_main"), narrowed(seq=(128, 128))
    )
    few = Variant("few", msgspec.structs.replace(ENTRY, function="v2_main"), narrowed(batch=(1, 4)))
    return (one, few, *(last or (Variant("general", ENTRY),)))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return pack(tmp_path / "m.tcpkg", WHOLE, {"x86-64-v3": b"code"}, variants=variants())


def test_inspect_lists_the_variants_in_the_order_of_trial(bundle: Path, capsys) -> None:
    assert run_command(["inspect", str(bundle)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("variants, in the order of trial:")
    assert [line.split() for line in lines[start + 2 : start + 5]] == [
        ["one", "seq", "128", "v1_main"],
        ["few", "batch", "1..4", "v2_main"],
        ["general", "all", "that", "is", "left", "main"],
    ]


def test_the_picture_has_a_part_for_each_variant_the_first_on_top(
    bundle: Path, tmp_path: Path, capsys
) -> None:
    picture = tmp_path / "p.svg"
    assert run_command(["inspect", str(bundle), "--partition", str(picture)]) == 0
    capsys.readouterr()
    root = ElementTree.fromstring(picture.read_text())
    space = "{http://www.w3.org/2000/svg}"
    parts = [each for each in root.iter(f"{space}rect") if each.find(f"{space}title") is not None]
    assert [each.find(f"{space}title").text for each in parts] == ["general", "few", "one"]
    areas = [float(each.get("width")) * float(each.get("height")) for each in parts]
    assert areas[0] > areas[1] > areas[2] > 0
    texts = [each.text for each in root.iter(f"{space}text")]
    assert {"seq (without end)", "batch", "1. one: seq 128"} <= set(texts)


def test_a_picture_is_not_written_under_the_name_of_another_kind(
    bundle: Path, tmp_path: Path, capsys
) -> None:
    picture = tmp_path / "p.png"
    assert run_command(["inspect", str(bundle), "--partition", str(picture)]) == 2
    told = capsys.readouterr().err
    assert "[TC008]" in told and "pictures are written as .svg" in told
    assert f"try: --partition {tmp_path / 'p.svg'}" in told
    assert not picture.exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (variants(Variant("one", ENTRY)), "one name"),
        (variants(Variant("general", msgspec.structs.replace(ENTRY, function="x"))), "last"),
        (
            variants(Variant("general", ENTRY, contract_of({}, []))),
            "takes other calls than the bundle",
        ),
        (variants(Variant("a\x1b[2J", ENTRY)), "cannot be shown"),
        (
            variants(Variant("general", msgspec.structs.replace(ENTRY, weights=("w",)))),
            "not that of the last",
        ),
    ],
)
def test_variants_that_do_not_fit_the_bundle_are_refused(tmp_path: Path, wrong, says: str) -> None:
    path = pack(tmp_path / "m.tcpkg", WHOLE, {"x86-64-v3": b"code"}, variants=wrong)
    with pytest.raises(BundleError, match=says) as error:
        open_bundle(path)
    assert error.value.code == "TC401"
