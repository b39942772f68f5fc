"""A host without Python for aarch64, cross-built and run under qemu-user: `Emulated`.

Needed are qemu-aarch64 and the libraries of aarch64 (``apt-get install qemu-user libc6-arm64-cross
libstdc++6-arm64-cross libgcc-s1-arm64-cross``), ziglang, and a folder TCEXPORT_TVM_WHEELS with the
wheels of apache-tvm and apache-tvm-ffi for aarch64.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tcexport.exporter.tvm_runtime import WHEELS

from .hosts import CPP

_LIBRARIES = Path("/usr/aarch64-linux-gnu/lib")
_PACKAGES = ("libc6-arm64-cross", "libstdc++6-arm64-cross", "libgcc-s1-arm64-cross")


def missing() -> str:
    """What is not there that emulation needs; "" where all is."""
    if shutil.which("qemu-aarch64") is None:
        return "no qemu-aarch64: apt-get install qemu-user"
    for name in ("libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"):
        if not (_LIBRARIES / name).exists():
            return f"no {_LIBRARIES / name}: apt-get install {' '.join(_PACKAGES)}"
    if importlib.util.find_spec("ziglang") is None:
        return "no ziglang: pip install 'tcexport[cross]'"
    for package in ("apache-tvm", "apache-tvm-ffi"):
        if _wheel(package) is None:
            return f"no wheel of {package} for aarch64 in {WHEELS}: see docs/compatibility.md"
    return ""


def _wheel(package: str) -> Path | None:
    folder = os.environ.get(WHEELS)
    if not folder:
        return None
    name = f"{package.replace('-', '_')}-{importlib.metadata.version(package)}"
    return next(iter(sorted(Path(folder).glob(f"{name}-*linux*_aarch64.whl"))), None)


@dataclass(frozen=True)
class Emulated:
    """``tcexport_run`` for aarch64 in ``folder``, and the root of the system that it sees."""

    folder: Path

    @staticmethod
    def built(folder: Path) -> Emulated:
        wheel = _wheel("apache-tvm-ffi")
        assert wheel is not None
        with zipfile.ZipFile(wheel) as opened:
            opened.extract("tvm_ffi/lib/libtvm_ffi.so", folder)

        def ask(option: str) -> str:
            asked = [sys.executable, "-m", "tvm_ffi.config", option]
            return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()

        version = importlib.metadata.version("apache-tvm-ffi")
        command = [
            *(sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28"),
            *("-std=c++17", "-O1", "-fno-sanitize=undefined", f"-I{CPP}"),
            *(f'-DTCEXPORT_FFI_VERSION="{version}"', "-isystem", ask("--includedir")),
            *("-isystem", ask("--dlpack-includedir"), f"{CPP / 'run.cc'}"),
            *(
                "-o",
                f"{folder / 'tcexport_run'}",
                f"{folder / 'tvm_ffi/lib/libtvm_ffi.so'}",
                "-ldl",
            ),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        # qemu-user takes files from here first. Of /proc/cpuinfo it would show the host's, which says
        # nothing of the CPU that it emulates.
        system = folder / "system"
        (system / "proc").mkdir(parents=True)
        (system / "lib").symlink_to(_LIBRARIES)
        (system / "proc" / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd\n")
        return Emulated(folder)

    def run(
        self, bundle: Path, inputs: dict[str, np.ndarray], outputs: Path
    ) -> dict[str, np.ndarray]:
        """A call in a process of its own: the outputs by their paths."""
        outputs.mkdir()
        for name, value in inputs.items():
            np.save(outputs / f"in.{name}.npy", value)
        done = self.started(
            bundle,
            *(f"{name}={outputs / f'in.{name}.npy'}" for name in inputs),
            *("-o", f"{outputs}"),
        )
        assert done.returncode == 0, done.stderr
        found = [path for path in outputs.glob("*.npy") if not path.name.startswith("in.")]
        return {path.stem: np.load(path) for path in found}

    def started(self, bundle: Path, *typed: str) -> subprocess.CompletedProcess[str]:
        libraries = self.folder / "tvm_ffi" / "lib"
        command = [
            *("qemu-aarch64", "-L", f"{self.folder / 'system'}"),
            *("-E", f"LD_LIBRARY_PATH={libraries}"),
            *(f"{self.folder / 'tcexport_run'}", f"{bundle}", *typed),
        ]
        return subprocess.run(command, capture_output=True, text=True)
