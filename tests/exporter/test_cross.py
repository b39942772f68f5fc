"""Exports for machines that this is not: the file is whole, honest about what was not run, and refused
here with what to do. Linked by zig; the TVM runtime comes from a wheel in a folder."""

from __future__ import annotations

import importlib.metadata
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import BundleError, UsageError
from tcexport.artifacts.manifest import Target
from tcexport.artifacts.platforms import CPU_LEVELS
from tcexport.exporter.tvm_runtime import WHEELS, tvm_runtime
from tcexport.lowering.macho import read_dylib

TINY = lzma.decompress((Path(__file__).parent.parent / "lowering/tiny.dylib.xz").read_bytes())
MAC = CPU_LEVELS["arm64-macos"].platform


def put_wheel(folder: Path, library: bytes) -> None:
    """A wheel of TVM for macOS, with another library in the place of libtvm_runtime."""
    version = importlib.metadata.version("apache-tvm")
    folder.mkdir(exist_ok=True)
    name = f"apache_tvm-{version}-py3-none-macosx_11_0_arm64.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("tvm/lib/libtvm_runtime.dylib", library)
        wheel.writestr("tvm/LICENSE", "Apache License")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.gelu(self.first(x))).softmax(1)


def test_a_bundle_for_a_mac_is_whole_and_says_that_nothing_ran_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ziglang", reason="pip install 'tcexport[cross]'")
    put_wheel(tmp_path / "wheels", TINY)
    monkeypatch.setenv(WHEELS, str(tmp_path / "wheels"))
    files = [tmp_path / "one.tcpkg", tmp_path / "two.tcpkg"]
    for path in files:
        torch.manual_seed(0)
        report = tcexport.export(
            Net().eval(),
            (torch.randn(4, 8),),
            axes={"x": ("batch", None)},
            dynamic={"batch": (1, 64)},
            targets=("cpu:arm64-macos",),
            out=path,
        )
    assert files[0].read_bytes() == files[1].read_bytes()
    (untested,) = report.verified
    assert (
        "this machine is a linux x86_64; such code was not run on any machine" in untested.skipped
    )
    with open_bundle(files[0]) as bundle:
        library = "targets/cpu-arm64-macos/model.dylib"
        built = Target("cpu:arm64-macos", *MAC, "arm64-macos", "11.0", library)
        assert bundle.manifest.targets == (built,)
        (runtime,) = bundle.manifest.runtimes
        assert (runtime.system, runtime.machine) == MAC
        assert runtime.library == "runtime/darwin-arm64/libtvm_runtime.dylib"
        assert bytes(bundle.view(runtime.library)) == TINY
        code = read_dylib(bytes(bundle.view(library)))
    assert "__tvm_ffi__library_bin" in code.exported
    assert code.libraries == ("@rpath/libtvm_ffi.dylib", "/usr/lib/libSystem.B.dylib")
    with pytest.raises(BundleError) as caught:
        tcexport.load(files[0])
    assert caught.value.code == "TC404"
    assert "was built for cpu:arm64-macos; this machine is linux x86_64" in str(caught.value)
    assert "cpu:arm64-macos: needs darwin arm64" in str(caught.value)
    command = [sys.executable, "-m", "tcexport", "inspect", str(files[0])]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = ["cpu:arm64-macos", "darwin-arm64", "arm64-macos", "macOS", "11.0", library]
    assert row in [line.split() for line in shown.splitlines()]
    assert "  cpu:arm64-macos  not run on any machine" in shown


def test_without_the_wheel_the_command_that_fetches_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHEELS, str(tmp_path))
    with pytest.raises(UsageError, match="no TVM runtime for darwin arm64") as caught:
        tvm_runtime(MAC)
    assert caught.value.code == "TC506"
    assert "--platform macosx_11_0_arm64 -d wheels" in caught.value.diagnostics[0].tries[0]
    with pytest.raises(UsageError, match="no TVM runtime for linux aarch64") as caught:
        tvm_runtime(CPU_LEVELS["aarch64"].platform)
    assert "--platform manylinux_2_28_aarch64 -d wheels" in caught.value.diagnostics[0].tries[0]


def test_a_runtime_whose_signature_does_not_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHEELS, str(tmp_path / "wheels"))
    put_wheel(tmp_path / "wheels", TINY.replace(b"tiny", b"tine"))
    with pytest.raises(UsageError, match="signature does not hold") as caught:
        tvm_runtime(MAC)
    assert caught.value.code == "TC506"
    put_wheel(tmp_path / "wheels", TINY)
    assert tvm_runtime(MAC).libc == "11.0"
