"""The targets that code is generated for: how LLVM is told, and what kernels may count on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..artifacts.platforms import CPU_LEVELS, CpuLevel

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


CPU_TARGETS: dict[str, CpuTarget] = {
    target.name: target
    for target in (
        _x86("x86-64-v2", 4, 16, 6),
        _x86("x86-64-v3", 8, 16, 6),
        _x86("x86-64-v4", 16, 32, 14),
        CpuTarget(
            CPU_LEVELS["aarch64"],
            (
                ("kind", "llvm"),
                ("mtriple", "aarch64-unknown-linux-gnu"),
                ("mattr", ("+neon",)),
                _LLVM_OPTIONS,
            ),
            4,
            32,
            12,
        ),
    )
}
