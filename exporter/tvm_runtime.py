"""TVM's runtime library for each machine that a bundle is for, found without importing TVM.

For the machine at hand it is the one of the installed package. For another it is taken out of that
machine's wheel, which the user puts into a folder: an export downloads nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.errors import Diagnostic, UsageError
from ..lowering.elf import oldest_glibc

WHEELS = "TCEXPORT_TVM_WHEELS"
_LIBRARY, _LICENSE = "tvm/lib/libtvm_runtime.so", "tvm/LICENSE"
_CUDA = "tvm/lib/libtvm_runtime_cuda.so"


@dataclass(frozen=True)
class TvmRuntime:
    """libtvm_runtime for one machine, its part for GPUs, and its licence: files, or their bytes.
    ``libc`` is the oldest glibc that it runs with."""

    machine: str
    library: Path | bytes
    license: Path | bytes
    cuda: Path | bytes

    @property
    def libc(self) -> str:
        data = self.library if isinstance(self.library, bytes) else self.library.read_bytes()
        return oldest_glibc(data)


def tvm_runtime(machine: str) -> TvmRuntime:
    """The runtime library for ``machine`` (as ``platform.machine()`` spells it).

    Raises:
        UsageError: TC011, TVM is not installed; TC506, there is no wheel for another machine.
    """
    if machine == platform.machine():
        spec = importlib.util.find_spec("tvm")
        if spec is None or spec.origin is None:
            raise UsageError(
                Diagnostic(
                    "TC011",
                    "apache-tvm is not installed",
                    tries=("pip install 'tcexport[export]'",),
                )
            )
        package = Path(spec.origin).parent.parent
        return TvmRuntime(machine, package / _LIBRARY, package / _LICENSE, package / _CUDA)
    version = importlib.metadata.version("apache-tvm")
    folder = os.environ.get(WHEELS, "")
    pattern = f"apache_tvm-{version}-*linux*_{machine}.whl"
    wheels = sorted(Path(folder).glob(pattern)) if folder else []
    if not wheels:
        where = f"in {WHEELS}={folder}" if folder else f"({WHEELS} is not set)"
        raise UsageError(
            Diagnostic(
                "TC506",
                f"no TVM runtime for {machine}: no {pattern} {where}",
                notes=("a bundle brings the runtime of each machine that it is for",),
                tries=(
                    f"pip download apache-tvm=={version} --no-deps --only-binary=:all: "
                    f"--platform manylinux_2_28_{machine} -d wheels",
                    f"{WHEELS}=wheels tcexport …",
                ),
            )
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        library, license, cuda = (wheel.read(name) for name in (_LIBRARY, _LICENSE, _CUDA))
        return TvmRuntime(machine, library, license, cuda)
