"""What a binary in a bundle needs of the machine it runs on.

A CPU level is one of the x86-64 psABI micro-architecture levels (or the aarch64 baseline). Its
flags are spelled as the operating system reports them (``/proc/cpuinfo``), so that a machine is
checked flag by flag and the missing one can be named.
Source: https://gitlab.com/x86-psABIs/x86-64-ABI, section 3.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass

_V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class CpuLevel:
    """A set of instructions that code was compiled for.

    ``machine`` is what ``platform.machine()`` answers; ``flags`` are the CPU flags that the code
    needs; ``rank`` orders the levels of one machine: the highest that a CPU has is chosen.
    """

    name: str
    machine: str
    rank: int
    flags: tuple[str, ...]


CPU_LEVELS: dict[str, CpuLevel] = {
    level.name: level
    for level in (
        CpuLevel("x86-64-v2", "x86_64", 2, _V2),
        CpuLevel("x86-64-v3", "x86_64", 3, _V3),
        CpuLevel("x86-64-v4", "x86_64", 4, _V4),
        CpuLevel("aarch64", "aarch64", 1, ("asimd", "fp")),
    )
}
