"""Linking object files to the library of a bundle, with whatever compiler driver there is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.platforms import MACOS, Platform, this_platform
from . import macos
from .elf import oldest_glibc
from .targets import MACOS_VERSION, Target

GLIBC = "2.27"  # the oldest that zig is told to link for


@dataclass(frozen=True)
class Linker:
    """A compiler driver: the command that it is called by, its name and version, and the system that
    it links for."""

    command: tuple[str, ...]
    version: str
    system: str


def find_linker(target: Target) -> Linker:
    """The system's C compiler for this machine's own targets, else ziglang.

    Raises:
        ExportError: there is neither (TC505).
    """
    wanted = target.level.platform
    native = wanted == this_platform()
    if native:
        for name in ("cc", "gcc", "clang"):
            path = shutil.which(name)
            if path is not None:
                return Linker((path,), _compiler_version(path, name), wanted.system)
    if importlib.util.find_spec("ziglang") is not None:
        command = (sys.executable, "-m", "ziglang", "cc", "-target", _triple(wanted))
        version = f"ziglang {importlib.metadata.version('ziglang')}"
        return Linker(command, version, wanted.system)
    tries = ["pip install 'tcexport[cross]'"]
    if native:
        tries.insert(0, "install gcc or clang")
    what = "no C compiler (cc, gcc, clang) on the PATH" if native else "no cross linker"
    raise ExportError(
        Diagnostic("TC505", f"{what}, and no ziglang, to link {target.name}", tries=tuple(tries))
    )


def _triple(wanted: Platform) -> str:
    """As zig spells it, with the oldest system that the library is to run with."""
    if wanted.system == MACOS:
        return f"aarch64-macos.{MACOS_VERSION}"
    return f"{wanted.machine}-linux-gnu.{GLIBC}"


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
    flags = ["-shared", "-fPIC", "-s"]
    if linker.system == MACOS:
        stub = output.with_name("libtvm_ffi.tbd")
        macos.write_ffi_stub(stub)
        # Unoptimised, zig would put its own checks of undefined behaviour into the library.
        flags += ["-O2", "-Wl,-dead_strip", f"-Wl,-install_name,{macos.NAME}"]
        libraries = [str(stub)]
    else:
        flags += ["-Wl,--build-id=none", "-Wl,-soname,model.so"]
        libraries = ["-lm"]
    command = [*linker.command, *flags, "-o", str(output), *map(str, objects), *libraries]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExportError(
            Diagnostic(
                "TC503",
                f"the linker ({linker.version}) failed with status {done.returncode}",
                notes=tuple(done.stderr.splitlines()[-20:]),
            )
        )


def oldest_system(library: bytes, system: str) -> str:
    """The oldest C library that a finished library runs with: a version of glibc, such as ``2.27``, or
    of macOS, whose C library has none of its own, such as ``11.0``.

    Raises:
        ExportError: one for macOS cannot be used (TC503).
    """
    return macos.look_again(library).macos if system == MACOS else oldest_glibc(library)
