"""The machine that this process runs on, and which of a bundle's binaries it can run."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.errors import BundleError, Diagnostic
from ..artifacts.manifest import Target
from ..artifacts.platforms import CPU_LEVELS, MACOS, Platform

LEVEL_ENVIRONMENT = "TCEXPORT_CPU_LEVEL"


@dataclass(frozen=True)
class Machine:
    """``system`` as ``uname -s`` in lower case, ``machine`` as ``uname -m``, the version of glibc, or
    of macOS ("" where there is neither), and the flags that every one of its CPUs has, where the
    system tells them."""

    system: str
    machine: str
    libc: str
    flags: frozenset[str]

    @property
    def platform(self) -> Platform:
        return Platform(self.system, self.machine)

    def __str__(self) -> str:
        name = libc_name(self.system)
        return f"{self.platform}, {f'{name} {self.libc}' if self.libc else f'no {name}'}"


def libc_name(system: str) -> str:
    """Whose version ``libc`` is."""
    return "macOS" if system == MACOS else "glibc"


@functools.cache
def this_machine() -> Machine:
    """What the operating system says of this machine."""
    names = os.uname()
    system = names.sysname.lower()
    libc = _macos() if system == MACOS else _glibc()
    return Machine(system, names.machine, libc, _cpu_flags())


def _glibc() -> str:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""  # another libc does not know the name
    return text.removeprefix("glibc ") if text.startswith("glibc ") else ""


def _macos() -> str:
    import platform  # which is slow to import

    return platform.mac_ver()[0]


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()  # no level that asks for one will fit, and the error lists all of them
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset.intersection(*(frozenset(line.split()) for line in set(lines) or {""}))


def choose_target(targets: Sequence[Target], machine: Machine, path: Path) -> Target:
    """The binary of the highest CPU level that ``machine`` has.

    The environment variable TCEXPORT_CPU_LEVEL asks for a lower one.

    Raises:
        BundleError: TC404 with what the bundle was built for, what is here, and what is missing.
    """
    targets = [target for target in targets if target.cuda is None]
    reasons = {target: unfit(target, machine) for target in targets}
    asked = os.environ.get(LEVEL_ENVIRONMENT)
    if asked:
        candidates = [target for target in targets if target.level == asked]
        if not candidates:
            levels = ", ".join(sorted({target.level for target in targets})) or "none"
            raise BundleError(
                Diagnostic(
                    "TC404",
                    f"{LEVEL_ENVIRONMENT}={asked}: {path} holds the levels {levels}",
                    tries=(f"unset {LEVEL_ENVIRONMENT}",),
                )
            )
    else:
        candidates = list(targets)
    fitting = [target for target in candidates if not reasons[target]]
    if not fitting:
        built = ", ".join(f"{target.name}" for target in candidates) or "nothing"
        raise BundleError(
            Diagnostic(
                "TC404",
                f"{path} was built for {built}; this machine is {machine}",
                notes=tuple(f"{target.name}: {reasons[target]}" for target in candidates),
                tries=(f"unset {LEVEL_ENVIRONMENT}",) if asked else _tries(machine),
            )
        )
    return max(fitting, key=lambda target: CPU_LEVELS[target.level].rank)


def unfit(target: Target, machine: Machine) -> str:
    """Why a binary cannot run here; "" when it can."""
    if (target.system, target.machine) != (machine.system, machine.machine):
        return f"needs {target.system} {target.machine}"
    libc = f"{libc_name(target.system)} {target.libc}"
    if target.libc and not machine.libc:
        return f"needs {libc} or later"
    if _version(target.libc) > _version(machine.libc):
        return f"needs {libc} or later, found {machine.libc}"
    if target.level not in CPU_LEVELS:
        return f"needs the CPU level {target.level}, which this tcexport does not know"
    level = CPU_LEVELS[target.level]
    if level.platform != machine.platform:
        return f"needs a {level.platform.machine} CPU"
    missing = [flag for flag in level.flags if flag not in machine.flags]
    return f"the CPU lacks {' '.join(missing)}" if missing else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall("[0-9]+", text))


def _tries(machine: Machine) -> tuple[str, ...]:
    fitting = [
        level.name
        for level in CPU_LEVELS.values()
        if level.platform == machine.platform and machine.flags.issuperset(level.flags)
    ]
    return tuple(f"export with --target cpu:{name}" for name in fitting[-1:])
