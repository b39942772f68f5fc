"""The targets that code is generated for: how LLVM is told, and what kernels may count on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..artifacts.platforms import CPU_LEVELS, MACOS, CpuLevel, capability

DEFAULT_CPU_LEVELS = ("x86-64-v3", "x86-64-v4")

# LLVM's late hoisting takes the constants of an epilogue (a polynomial has twenty) out of all loops
# around it, into registers that the multiply-adds within then lack: they spill, at a third of their
# speed. Where a constant is used, it is an operand in memory and costs nothing.
_LLVM_OPTIONS = ("cl-opt", ("-disable-machine-licm:bool=true",))


@dataclass(frozen=True)
class CpuTarget:
    """One CPU level as the code generator sees it.

    ``lanes`` is the number of float32 values in one of its vector ``registers``, and ``tile_rows``
    the rows of a GEMM register tile that is two vectors wide: with what it multiplies, it fills the
    register file.
    """

    level: CpuLevel
    llvm: tuple[tuple[str, Any], ...]
    lanes: int
    registers: int
    tile_rows: int

    @property
    def name(self) -> str:
        return self.level.name

    @property
    def label(self) -> str:
        """As a user names it."""
        return f"cpu:{self.name}"

    @property
    def folder(self) -> str:
        """Where its library lies in a bundle."""
        return f"cpu-{self.name}"

    @property
    def library(self) -> str:
        """The name of its library there."""
        return "model.dylib" if self.level.platform.system == MACOS else "model.so"

    @property
    def triple(self) -> str:
        return dict(self.llvm)["mtriple"]


def _x86(name: str, lanes: int, registers: int, tile_rows: int) -> CpuTarget:
    llvm = (
        ("kind", "llvm"),
        ("mtriple", "x86_64-unknown-linux-gnu"),
        ("mcpu", name),
        _LLVM_OPTIONS,
    )
    return CpuTarget(CPU_LEVELS[name], llvm, lanes, registers, tile_rows)


def _neon(name: str, triple: str) -> CpuTarget:
    llvm = (("kind", "llvm"), ("mtriple", triple), ("mattr", ("+neon",)), _LLVM_OPTIONS)
    return CpuTarget(CPU_LEVELS[name], llvm, 4, 32, 12)


MACOS_VERSION = "11.0"  # the oldest that runs on arm64, and the one that TVM's wheels are built for

CPU_TARGETS: dict[str, CpuTarget] = {
    target.name: target
    for target in (
        _x86("x86-64-v2", 4, 16, 6),
        _x86("x86-64-v3", 8, 16, 6),
        _x86("x86-64-v4", 16, 32, 14),
        _neon("aarch64", "aarch64-unknown-linux-gnu"),
        # The instructions of aarch64, so that what is known of its numbers holds for these, too.
        _neon("arm64-macos", f"arm64-apple-macosx{MACOS_VERSION}.0"),
    )
}


@dataclass(frozen=True)
class GpuTarget:
    """NVIDIA GPUs: machine code for ``architectures`` (``sm_80``), the lowest first, and PTX for the
    architecture ``ptx`` (``compute_90``, or ""). ``host`` is what the code around the kernels is
    compiled for.

    The kernels are the same for all: what differs is what the CUDA compiler makes of them.
    """

    architectures: tuple[str, ...]
    ptx: str
    host: CpuTarget

    @property
    def name(self) -> str:
        return "cuda:" + "+".join([*self.architectures, *(["ptx"] if self.ptx else [])])

    @property
    def label(self) -> str:
        return self.name

    @property
    def folder(self) -> str:
        return "cuda"

    @property
    def library(self) -> str:
        return self.host.library

    @property
    def level(self) -> CpuLevel:
        return self.host.level

    @property
    def binaries(self) -> tuple[str, ...]:
        """All that the compiler is to make, such as ``("sm_80", "sm_90", "compute_90")``."""
        return (*self.architectures, *([self.ptx] if self.ptx else []))


Target = CpuTarget | GpuTarget

PTX_BASELINE = "compute_75"  # of a bundle with PTX alone: every GPU that CUDA 13 knows takes it


def gpu_target(names: Iterable[str]) -> GpuTarget:
    """The target of architectures by name (``sm_80``) and, for PTX, ``ptx``: of the highest
    architecture among them, for it has the most to offer to devices to come.

    Raises:
        ValueError: a name is neither.
    """
    wanted = set(names)
    architectures = tuple(sorted(wanted - {"ptx"}, key=capability))
    ptx = ""
    if "ptx" in wanted:
        ptx = architectures[-1].replace("sm_", "compute_") if architectures else PTX_BASELINE
    return GpuTarget(architectures, ptx, CPU_TARGETS["x86-64-v2"])


def target_named(name: str) -> Target:
    """The target that says this name.

    Raises:
        ValueError: there is none.
    """
    if name in CPU_TARGETS:
        return CPU_TARGETS[name]
    kind, _, names = name.partition(":")
    if kind != "cuda" or not names:
        raise ValueError(f"unknown target {name!r}")
    return gpu_target(names.split("+"))
