"""Every runtime of a benchmark held to the instructions of an older processor.

The bundle's runtime can be told which of its binaries to take; the peers choose by what the CPUID
instruction says, each in its own way and most without a setting. So CPUID itself is answered for them,
by a small library that is loaded before all else: `benchmarks/cpuid.c` says how.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.platforms import CPU_LEVELS
from ..runtime.machine import LEVEL_ENVIRONMENT, this_machine

LEVELS = ("x86-64-v2", "x86-64-v3")
_SOURCE = Path(__file__).parent / "benchmarks" / "cpuid.c"
_COMPILERS = ("cc", "gcc", "clang")


def environment_of(level: str, folder: Path) -> dict[str, str]:
    """What is added to the environment of a process so that all in it sees a machine of ``level``.

    Args:
        level: one of `LEVELS`.
        folder: where the library is built.

    Raises:
        UsageError: TC008, it cannot be done on this machine.
    """
    if sys.platform != "linux" or this_machine().machine != "x86_64":
        raise _refused(level, "it is done on Linux and x86-64 only")
    if "cpuid_fault" not in this_machine().flags:
        raise _refused(level, "this processor cannot hide instructions (cpuid_fault)")
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _refused(level, "it needs a C compiler", "install gcc or clang")
    library = folder / f"cpuid-{level}.so"
    number = f"-DLEVEL={CPU_LEVELS[level].rank}"
    command = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        number,
        str(_SOURCE),
        "-o",
        str(library),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(level, f"{_SOURCE.name} does not compile: {done.stderr.strip()}")
    others = os.environ.get("LD_PRELOAD")
    preload = f"{library}:{others}" if others else str(library)
    environment = {"LD_PRELOAD": preload, LEVEL_ENVIRONMENT: level}
    # Seen to work before anything is measured with it.
    trial = subprocess.run(
        [sys.executable, "-c", ""], env=environment, capture_output=True, text=True, check=False
    )
    if trial.returncode:
        raise _refused(level, trial.stderr.strip() or f"exit status {trial.returncode}")
    return environment


def _refused(level: str, reason: str, *tries: str) -> UsageError:
    return UsageError(Diagnostic("TC008", f"--level {level}: {reason}", tries=tries))
