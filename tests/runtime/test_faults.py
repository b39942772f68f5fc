"""Files that are damaged, replaced, gone or oddly placed: a clear error, or it works."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.manifest import Manifest
from tcexport.artifacts.weights import write_weights
from tcexport.runtime import load

from .bundles import pack
from .conftest import WEIGHT
from .test_library import python

X = np.ones((2, 4), np.float32)


def test_a_loaded_bundle_may_be_deleted_or_replaced(
    added: Path, gathered: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.tcpkg"
    shutil.copy(added, path)
    model = load(path)
    os.replace(shutil.copy(gathered, tmp_path / "new"), path)
    np.testing.assert_array_equal(model(X), X + WEIGHT)
    path.unlink()
    np.testing.assert_array_equal(model(X), X + WEIGHT)


def test_odd_and_relative_paths(
    added: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mödell 模型"
    folder.mkdir()
    shutil.copy(added, folder / "a b.tcpkg")
    monkeypatch.chdir(folder)
    model = load("a b.tcpkg")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(model(X), X + WEIGHT)
    assert model.path == folder / "a b.tcpkg"


@pytest.mark.parametrize("path", ["", ".", "/dev/null", "/nowhere/m.tcpkg", "a\0b"])
def test_paths_that_hold_no_bundle(path: str) -> None:
    with pytest.raises(BundleError, match="TC401"):
        load(path)


def test_weights_that_are_not_there_or_damaged_are_refused(added: Path, tmp_path: Path) -> None:
    with open_bundle(added) as bundle:
        contents = {entry.name: bytes(bundle.view(entry.name)) for entry in bundle.manifest.members}
        manifest = bundle.manifest
    write_weights(tmp_path / "w", {"other": WEIGHT})
    for damaged in ((tmp_path / "w").read_bytes(), b"", contents["weights.safetensors"][:-1]):
        changed = {**contents, "weights.safetensors": damaged}
        write_bundle(tmp_path / "m.tcpkg", _bare(manifest), list(changed.items()))
        with pytest.raises(BundleError, match="TC401"):
            load(tmp_path / "m.tcpkg")


def _bare(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, members=())


def test_the_file_is_mapped_not_read(tmp_path: Path, added: Path, code: bytes) -> None:
    """A weight of 64 MB costs no private memory beyond what runs."""

    with open_bundle(added) as bundle:
        contract = bundle.manifest.contract
    weights = {"w": WEIGHT, "unused": np.ones(16 << 20, np.float32)}
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": code}, {"w": WEIGHT})
    with open_bundle(path) as bundle:
        contents = {entry.name: bytes(bundle.view(entry.name)) for entry in bundle.manifest.members}
        manifest = bundle.manifest
    write_weights(tmp_path / "w", weights)
    contents["weights.safetensors"] = (tmp_path / "w").read_bytes()
    write_bundle(path, _bare(manifest), list(contents.items()))
    script = """
import re
def anonymous():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"Anonymous:\\s+(\\d+)", text).group(1))
import tcexport.runtime.model
before = anonymous()
check(path)
print(anonymous() - before < 16_000)
"""
    assert python(script, path) == "True"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_bundle_with_one_byte_changed_is_refused(
    added: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Any byte of a member; the rest of the file is the container's own test."""
    with open_bundle(added) as bundle:
        places = {member.name: bundle.offsets[member.name] for member in bundle.manifest.members}
        sizes = {member.name: member.size for member in bundle.manifest.members}
    name = data.draw(st.sampled_from(sorted(places)))
    at = places[name] + data.draw(st.integers(0, sizes[name] - 1))
    content = bytearray(added.read_bytes())
    content[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "m.tcpkg").write_bytes(content)
    with pytest.raises(BundleError, match=f"TC402.*{name}"):
        load(tmp_path / "m.tcpkg")
