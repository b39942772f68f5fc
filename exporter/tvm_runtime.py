"""TVM's runtime library for each platform that a bundle is for, found without importing TVM.

For the platform at hand it is the one of the installed package. For another it is taken out of its
wheel, which the user puts into a folder: an export downloads nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.platforms import MACOS, Platform, this_platform
from ..lowering.elf import oldest_glibc
from ..lowering.macho import MachOError, read_dylib
from ..lowering.targets import MACOS_VERSION

WHEELS = "TCEXPORT_TVM_WHEELS"
_FOLDER, _LICENSE = "tvm/lib", "tvm/LICENSE"


@dataclass(frozen=True)
class TvmRuntime:
    """libtvm_runtime for one platform, its part for GPUs (None where there is none), and its licence:
    files, or their bytes. ``libc`` is the oldest glibc, or macOS, that it runs with."""

    platform: Platform
    library: Path | bytes
    license: Path | bytes
    cuda: Path | bytes | None

    @property
    def libc(self) -> str:
        data = self.library if isinstance(self.library, bytes) else self.library.read_bytes()
        return read_dylib(data).macos if self.platform.system == MACOS else oldest_glibc(data)


def library_name(platform: Platform, part: str = "") -> str:
    return f"libtvm_runtime{part}.{'dylib' if platform.system == MACOS else 'so'}"


def tvm_runtime(platform: Platform) -> TvmRuntime:
    """The runtime library for a platform.

    Raises:
        UsageError: TC011, TVM is not installed; TC506, there is no wheel for another platform, or what
            it holds cannot be used there.
    """
    library_file = f"{_FOLDER}/{library_name(platform)}"
    cuda_file = "" if platform.system == MACOS else f"{_FOLDER}/{library_name(platform, '_cuda')}"
    if platform == this_platform():
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
        files = package / library_file, package / _LICENSE
        return TvmRuntime(platform, *files, package / cuda_file if cuda_file else None)
    version = importlib.metadata.version("apache-tvm")
    folder = os.environ.get(WHEELS, "")
    tag = "macosx" if platform.system == MACOS else "linux"
    pattern = f"apache_tvm-{version}-*{tag}*_{platform.machine}.whl"
    wheels = sorted(Path(folder).glob(pattern)) if folder else []
    if not wheels:
        where = f"in {WHEELS}={folder}" if folder else f"({WHEELS} is not set)"
        raise UsageError(
            Diagnostic(
                "TC506",
                f"no TVM runtime for {platform}: no {pattern} {where}",
                notes=("a bundle brings the runtime of each machine that it is for",),
                tries=(
                    f"pip download apache-tvm=={version} --no-deps --only-binary=:all: "
                    f"--platform {_wheel_tag(platform)} -d wheels",
                    f"{WHEELS}=wheels tcexport …",
                ),
            )
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        library, license = wheel.read(library_file), wheel.read(_LICENSE)
        cuda = wheel.read(cuda_file) if cuda_file else None
    if platform.system == MACOS:
        try:
            read_dylib(library)
        except MachOError as error:
            what = f"{library_name(platform)} in {wheels[0]} cannot be used: {error}"
            raise UsageError(Diagnostic("TC506", what)) from None
    return TvmRuntime(platform, library, license, cuda)


def _wheel_tag(platform: Platform) -> str:
    if platform.system == MACOS:
        return f"macosx_{MACOS_VERSION.replace('.', '_')}_{platform.machine}"
    return f"manylinux_2_28_{platform.machine}"
