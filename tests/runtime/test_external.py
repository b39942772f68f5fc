"""Weights beside the bundle, by digest; and weights that processes share."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.external import move_inside, move_outside, moved_outside
from tcexport.artifacts.sbom import SBOM_NAME
from tcexport.artifacts.signature import make_key, sign
from tcexport.artifacts.weights import write_weights
from tcexport.runtime import load
from tcexport.tools import cli

from .bundles import pack
from .conftest import WEIGHT
from .test_faults import _bare
from .test_library import python

X = np.ones((2, 4), np.float32)
RICH = Path(__file__).parents[1] / "attacks" / "corpus" / "rich.tcpkg"


@pytest.fixture
def outside(added: Path, tmp_path: Path) -> tuple[Path, Path]:
    path = tmp_path / "m.tcpkg"
    beside = move_outside(added, path)
    assert beside is not None
    return path, beside


def test_they_are_in_a_file_named_by_its_digest(outside: tuple[Path, Path], added: Path) -> None:
    path, beside = outside
    digest = hashlib.sha256(beside.read_bytes()).hexdigest()
    assert beside.name == f"weights-{digest[:16]}.safetensors" and beside.parent == path.parent
    with open_bundle(path) as bundle:
        assert "weights.safetensors" not in bundle.offsets
    np.testing.assert_array_equal(load(path)(X), X + WEIGHT)


def test_inside_again_it_has_the_same_bytes(tmp_path: Path) -> None:
    with open_bundle(RICH) as bundle:
        held = [(each.name, bytes(bundle.view(each.name))) for each in bundle.manifest.members]
        manifest = _bare(bundle.manifest)
    write_bundle(tmp_path / "billed.tcpkg", manifest, held, bill=True)
    for source in (RICH, tmp_path / "billed.tcpkg"):
        beside = move_outside(source, tmp_path / "out.tcpkg")
        assert beside is not None
        with open_bundle(tmp_path / "out.tcpkg") as bundle:
            if SBOM_NAME in bundle.offsets:
                assert beside.name.encode() in bytes(bundle.view(SBOM_NAME))
        move_inside(tmp_path / "out.tcpkg", tmp_path / "in.tcpkg")
        assert (tmp_path / "in.tcpkg").read_bytes() == source.read_bytes()


def test_where_an_export_fails_its_weights_go_and_those_of_others_stay(
    added: Path, tmp_path: Path
) -> None:
    draft = Path(shutil.copy(added, tmp_path / "draft"))
    with pytest.raises(OSError, match="verify"), moved_outside(draft):
        assert list(tmp_path.glob("weights-*.safetensors"))
        np.testing.assert_array_equal(load(draft)(X), X + WEIGHT)
        raise OSError("verify")
    assert not list(tmp_path.glob("weights-*.safetensors"))
    beside = move_outside(added, tmp_path / "m.tcpkg")
    shutil.copy(added, draft)
    with pytest.raises(OSError, match="verify"), moved_outside(draft):
        raise OSError("verify")
    assert beside is not None and beside.is_file()


def test_a_file_that_is_gone_or_another_is_refused(outside: tuple[Path, Path]) -> None:
    path, beside = outside
    whole = beside.read_bytes()
    beside.write_bytes(whole[:-1])
    with pytest.raises(BundleError, match=r"TC410.*are needed"):
        load(path)
    beside.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BundleError, match=r"TC402.*weights.safetensors"):
        load(path)
    beside.unlink()
    with pytest.raises(BundleError, match=rf"TC410.*needs {beside.name} beside it: no such file"):
        load(path)
    os.mkfifo(beside)
    with pytest.raises(BundleError, match=r"TC410.*not a regular file"):
        load(path)


def test_a_bundle_that_is_reached_by_a_link_finds_them(
    outside: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "current").symlink_to(outside[0])
    np.testing.assert_array_equal(load(tmp_path / "links" / "current")(X), X + WEIGHT)


def test_two_bundles_share_them(outside: tuple[Path, Path], added: Path, tmp_path: Path) -> None:
    before = outside[1].stat().st_ino
    assert move_outside(added, tmp_path / "other.tcpkg") == outside[1]
    assert outside[1].stat().st_ino == before


def test_a_signature_of_the_bundle_is_one_of_them(
    outside: tuple[Path, Path], tmp_path: Path
) -> None:
    """The bundle holds their digest; both are read once, and what was read is what runs."""
    path, beside = outside
    (tmp_path / "k.key").write_bytes(make_key()[0])
    private, public = make_key()
    (tmp_path / "k.key").write_bytes(private)
    (tmp_path / "k.pub").write_bytes(public)
    sign(path, hashlib.sha256(path.read_bytes()).digest(), tmp_path / "k.key")
    script = """
from tcexport.runtime import load
model = load(path, require_signature=more[1])
for each in (path, more[0]):
    open(each, "r+b").truncate(0)
print(model(np.ones((2, 4), np.float32)).tolist())
"""
    assert python(script, path, beside, tmp_path / "k.pub") == str((X + WEIGHT).tolist())
    with pytest.raises(BundleError, match=r"TC40[18]|TC410"):
        load(path, require_signature=public)


def test_the_commands(
    added: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(added, "m.tcpkg")
    assert cli.run_command(["weights", "external", "m.tcpkg", "-o", "e.tcpkg"]) == 0
    path, beside = capsys.readouterr().out.split()
    assert path == "e.tcpkg" and Path(beside).is_file()
    assert cli.run_command(["inspect", "e.tcpkg"]) == 0
    assert f"{Path(beside).name}, beside it" in capsys.readouterr().out
    assert cli.run_command(["diff", "m.tcpkg", "e.tcpkg"]) == 1
    told = capsys.readouterr().out
    assert "external_weights" in told and "differ" not in told and "contract" not in told
    assert cli.run_command(["weights", "inside", "e.tcpkg", "-o", "i.tcpkg"]) == 0
    assert Path("i.tcpkg").read_bytes() == added.read_bytes()


@pytest.mark.parametrize("external", [False, True])
def test_processes_share_the_weights(
    tmp_path: Path, added: Path, code: bytes, external: bool
) -> None:
    """64 MB of weights, read in two processes, are in memory once: by Pss, about half for each."""
    with open_bundle(added) as bundle:
        contract = bundle.manifest.contract
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": code}, {"w": WEIGHT})
    with open_bundle(path) as bundle:
        held = {each.name: bytes(bundle.view(each.name)) for each in bundle.manifest.members}
        manifest = bundle.manifest
    write_weights(tmp_path / "w", {"w": WEIGHT, "large": np.ones(16 << 20, np.float32)})
    held["weights.safetensors"] = (tmp_path / "w").read_bytes()
    write_bundle(path, _bare(manifest), list(held.items()))
    if external:
        move_outside(path, path)
    script = """
import re, subprocess
model = check(path)
def shares():
    found = [0, 0]
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read()):
        name = block.partition("\\n")[0]
        if "m.tcpkg" in name or "weights-" in name:
            for number, field in enumerate(("Rss", "Pss")):
                found[number] += int(re.search(rf"{field}:\\s+(\\d+)", block).group(1))
    return found
if more:
    print(*shares())
else:
    print(subprocess.run([sys.executable, "-c", SELF, path, "x"], capture_output=True,
                         text=True, check=True).stdout)
"""
    from .test_library import PRELUDE

    whole = PRELUDE + script
    answer = python(f"SELF = {whole!r}\n{script}", path)
    rss, pss = map(int, answer.split())
    assert rss > 60_000 and pss < 0.6 * rss
