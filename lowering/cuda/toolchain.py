"""The CUDA compiler, from the package index alone: NVRTC for machine code and PTX, ``fatbinary`` to
put them into one file. NVRTC is a library, so no host compiler and no installed CUDA is needed.

Every package is pinned, because the version decides the bytes, and which drivers take them.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from ...artifacts.errors import Diagnostic, ExportError

PACKAGES = {
    "nvidia-cuda-nvrtc": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cuda-cccl": "13.0.85",
    "nvidia-cuda-nvcc": "13.0.88",
}
DRIVER = (
    "13.0"  # the oldest that takes machine code of this compiler: that of its own major version
)
PTX_ISA = "9.0"
PTX_DRIVER = "13.0"  # the oldest that knows this version of PTX; PTX ISA, "Release Notes"
VERSION = f"nvrtc {PACKAGES['nvidia-cuda-nvrtc']}"

_INSTALL = "pip install 'tcexport[cuda]'"


@dataclass(frozen=True)
class Toolchain:
    """Where its parts lie. ``builtins`` is a library that NVRTC opens by name."""

    nvrtc: Path
    builtins: Path
    include: tuple[Path, ...]
    fatbinary: Path


def find_toolchain() -> Toolchain:
    """The installed packages, in the versions that are pinned.

    Raises:
        ExportError: TC530, a package is missing or has another version.
    """
    roots = {name: _root(name, version) for name, version in PACKAGES.items()}
    libraries = roots["nvidia-cuda-nvrtc"] / "lib"
    headers = (roots["nvidia-cuda-runtime"] / "include", roots["nvidia-cuda-cccl"] / "include")
    found = Toolchain(
        nvrtc=libraries / "libnvrtc.so.13",
        builtins=libraries / "libnvrtc-builtins.so.13.0",
        include=tuple(dict.fromkeys((*headers, headers[1] / "cccl"))),
        fatbinary=roots["nvidia-cuda-nvcc"] / "bin" / "fatbinary",
    )
    for path in (found.nvrtc, found.builtins, found.fatbinary, *found.include):
        if not path.exists():
            raise _missing(f"{path.name} is not where its package has it")
    return found


def _root(package: str, version: str) -> Path:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise _missing(f"{package} is not installed") from None
    if distribution.version != version:
        raise _missing(f"{package} is {distribution.version}, and {version} is needed")
    return Path(str(distribution.locate_file("nvidia/cu13")))


def _missing(why: str) -> ExportError:
    return ExportError(
        Diagnostic(
            "TC530",
            f"no CUDA compiler: {why}",
            notes=("GPU code is compiled at export, with packages of the index alone",),
            tries=(_INSTALL,),
        )
    )
