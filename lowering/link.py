"""Linking object files to the library of a bundle, with whatever compiler driver there is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.errors import Diagnostic, ExportError
from .targets import Target

GLIBC = "2.27"  # the oldest that zig is told to link for


@dataclass(frozen=True)
class Linker:
    """A compiler driver: the command that it is called by, and its name and version."""

    command: tuple[str, ...]
    version: str


def find_linker(target: Target) -> Linker:
    """The system's C compiler for this machine's own targets, else ziglang.

    Raises:
        ExportError: there is neither (TC505).
    """
    native = target.level.machine == platform.machine()
    if native:
        for name in ("cc", "gcc", "clang"):
            path = shutil.which(name)
            if path is not None:
                return Linker((path,), _compiler_version(path, name))
    if importlib.util.find_spec("ziglang") is not None:
        machine = target.level.machine
        command = (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC}")
        return Linker(command, f"ziglang {importlib.metadata.version('ziglang')}")
    tries = ["pip install 'tcexport[cross]'"]
    if native:
        tries.insert(0, "install gcc or clang")
    what = "no C compiler (cc, gcc, clang) on the PATH" if native else "no cross linker"
    raise ExportError(
        Diagnostic("TC505", f"{what}, and no ziglang, to link {target.name}", tries=tuple(tries))
    )


def _compiler_version(path: str, name: str) -> str:
    """Such as ``gcc 12.2.0``; cc is called by the name it gives itself."""
    text = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=True
    ).stdout.split("\n")[0]
    if "clang" in text:
        name = "clang"
    elif name == "cc":
        name = "gcc"
    numbers = [word for word in text.split() if word[:1].isdigit() and "." in word]
    return f"{name} {numbers[-1].split('-')[0]}" if numbers else f"{name} {text}"


def link(linker: Linker, objects: Sequence[Path], output: Path) -> None:
    """Link a shared library whose bytes depend on the objects and the linker alone.

    Raises:
        ExportError: the linker failed (TC503).
    """
    flags = ["-shared", "-fPIC", "-Wl,--build-id=none", "-Wl,-soname,model.so", "-s"]
    command = [*linker.command, *flags, "-o", str(output), *map(str, objects), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExportError(
            Diagnostic(
                "TC503",
                f"the linker ({linker.version}) failed with status {done.returncode}",
                notes=tuple(done.stderr.splitlines()[-20:]),
            )
        )
