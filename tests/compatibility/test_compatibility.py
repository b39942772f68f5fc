"""Bundles of earlier versions: read by every later one, run by those that have their apache-tvm-ffi.

A folder for each version of the writer, named after the day. They are never written again: a change
that breaks one of these tests breaks files that people have.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import BundleError, GuardError
from tcexport.artifacts.platforms import Platform
from tcexport.exporter.tvm_runtime import tvm_runtime
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import examine

HERE = Path(__file__).parent
KEPT = sorted(HERE.glob("*/*.tcpkg.xz"))


@pytest.fixture(params=KEPT, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A bundle with its runtime library put back from the wheel, and its numbers."""
    packed: Path = request.param
    name = packed.name.removesuffix(".tcpkg.xz")
    path = tmp_path / f"{name}.tcpkg"
    data = bytearray(lzma.decompress(packed.read_bytes()))
    path.write_bytes(data)
    with open_bundle(path) as bundle:
        for runtime in bundle.manifest.runtimes:
            library = tvm_runtime(Platform(runtime.system, runtime.machine)).library.read_bytes()
            start, size = bundle.offsets[runtime.library], len(bundle.view(runtime.library))
            if len(library) == size:  # else the pin has moved, and it is read only
                data[start : start + size] = library
    path.write_bytes(data)
    return path, packed.with_name(f"{name}.npz")


def test_there_are_some() -> None:
    assert len(KEPT) >= 3
    assert sum(path.stat().st_size for path in HERE.rglob("*")) < 300_000


def test_a_bundle_of_an_earlier_version_is_read(kept: tuple[Path, Path]) -> None:
    path, _ = kept
    with open_bundle(path) as bundle:
        manifest = bundle.manifest
        bundle.verify({each.name for each in manifest.members} - _runtimes(manifest))
    assert manifest.format_version == 1
    assert manifest.contract.inputs and manifest.contract.outputs
    if _ours(path):
        assert examine(path).startswith("read")


def _runtimes(manifest: object) -> set[str]:
    return {each.library for each in manifest.runtimes}  # type: ignore[attr-defined]


def _ours(path: Path) -> bool:
    """Whether this environment has what the bundle asks for."""
    with open_bundle(path) as bundle:
        (runtime,) = bundle.manifest.runtimes
    return runtime.ffi == tvm_ffi.__version__


def test_a_bundle_of_an_earlier_version_runs_or_says_what_it_needs(
    kept: tuple[Path, Path],
) -> None:
    path, numbers = kept
    if not _ours(path):
        with pytest.raises(BundleError, match=r"TC405(.|\n)*pip install 'apache-tvm-ffi=="):
            load(path)
        return
    model = load(path)
    with np.load(numbers) as arrays:
        inputs = [arrays[name] for name in arrays.files if name.startswith("in")]
        wanted = [arrays[name] for name in arrays.files if name.startswith("out")]
    result = model(*inputs)
    found = (
        list(result.values())
        if isinstance(result, dict)
        else list(result)
        if isinstance(result, tuple)
        else [result]
    )
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(GuardError):
        model(*(each.astype(np.float64) for each in inputs))
