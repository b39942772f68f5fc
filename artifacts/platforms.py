"""What a binary in a bundle needs of the machine it runs on.

A CPU level is one of the x86-64 psABI micro-architecture levels (or the baseline of 64-bit ARM, for
Linux or for macOS). Its flags are spelled as the operating system reports them (``/proc/cpuinfo``),
so that a machine is checked flag by flag and the missing one can be named.
Source: https://gitlab.com/x86-psABIs/x86-64-ABI, section 3.1.1.

A GPU architecture is a compute capability of NVIDIA's, spelled as its compilers spell it: ``sm_90``
is machine code for 9.0, ``compute_90`` is PTX that a driver compiles for 9.0 and all later ones.
Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

_V2 = ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


class Platform(NamedTuple):
    """An operating system and a machine: ``uname -s`` in lower case, and ``uname -m``."""

    system: str
    machine: str

    def __str__(self) -> str:
        return f"{self.system} {self.machine}"


LINUX, MACOS = "linux", "darwin"


def this_platform() -> Platform:
    """That of this process."""
    names = os.uname()
    return Platform(names.sysname.lower(), names.machine)


@dataclass(frozen=True)
class CpuLevel:
    """A set of instructions that code was compiled for.

    ``flags`` are the CPU flags that the code needs; ``rank`` orders the levels of one platform: the
    highest that a CPU has is chosen. ``untested`` says how little the code of a level was run; "" where
    every test runs it.
    """

    name: str
    platform: Platform
    rank: int
    flags: tuple[str, ...]
    untested: str = ""


_X86 = Platform(LINUX, "x86_64")


CPU_LEVELS: dict[str, CpuLevel] = {
    level.name: level
    for level in (
        CpuLevel("x86-64-v2", _X86, 2, _V2),
        CpuLevel("x86-64-v3", _X86, 3, _V3),
        CpuLevel("x86-64-v4", _X86, 4, _V4),
        CpuLevel(
            "aarch64",
            Platform(LINUX, "aarch64"),
            1,
            ("asimd", "fp"),
            "run under an emulator (qemu-user) alone",
        ),
        # Apple's ABI has NEON on every arm64 Mac, and there is no /proc/cpuinfo that would say so.
        CpuLevel("arm64-macos", Platform(MACOS, "arm64"), 1, (), "not run on any machine"),
    )
}


# --- CUDA -----------------------------------------------------------------------------------------

CUDA_ARCHITECTURES = (
    "sm_75",
    "sm_80",
    "sm_86",
    "sm_87",
    "sm_88",
    "sm_89",
    "sm_90",
    "sm_100",
    "sm_103",
    "sm_110",
    "sm_120",
    "sm_121",
)
"""Those that the pinned compiler makes machine code for, the lowest first."""

_TEGRA = frozenset({(8, 7), (8, 8), (11, 0)})  # their machine code runs on the very same chip alone


def capability(architecture: str) -> tuple[int, int]:
    """``sm_90`` or ``compute_90`` → ``(9, 0)``.

    Raises:
        ValueError: it is no architecture.
    """
    match = re.fullmatch(r"(?:sm|compute)_([1-9][0-9]?)([0-9])", architecture)
    if match is None:
        raise ValueError(f"{architecture!r} is no CUDA architecture")
    return int(match[1]), int(match[2])


def runs_on(architecture: str, device: tuple[int, int]) -> bool:
    """Whether machine code for ``sm_…`` runs on a device of the compute capability ``device``, or
    PTX for ``compute_…`` can be compiled for it by its driver."""
    own = capability(architecture)
    if architecture.startswith("compute_"):
        return device >= own
    if own in _TEGRA or device in _TEGRA:
        return device == own
    return device[0] == own[0] and device[1] >= own[1]
