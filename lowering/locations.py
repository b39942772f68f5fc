"""Which line of the user's own source an FX node comes from."""

from __future__ import annotations

import linecache
import re
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ..artifacts.errors import Location

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


def user_location(stack_trace: str | None) -> Location | None:
    """The innermost frame of a torch stack trace that lies in the user's code.

    Frames of installed packages and of the standard library are passed over; a trace that has no
    others (a model that is itself from a library) gives its innermost frame.

    Args:
        stack_trace: ``node.meta["stack_trace"]``, as Python prints tracebacks, or None.
    """
    frames = [(match["file"], int(match["line"])) for match in _FRAME.finditer(stack_trace or "")]
    return location_of_frames(frames)


def location_of_frames(frames: Sequence[tuple[str, int]]) -> Location | None:
    """The same for frames given as (file, line), outermost first; None where there are none."""
    if not frames:
        return None
    own = [frame for frame in frames if not is_library(frame[0])]
    own = own or [frame for frame in frames if not is_machinery(frame[0])]
    if not own:
        return None
    file, line = own[-1]
    return Location(file, line, linecache.getline(file, line).strip())


def shown_file(file: str) -> str:
    """A library's file as it is known everywhere: from where packages are installed."""
    parts = Path(file).parts
    for marker in ("site-packages", "dist-packages"):
        if marker in parts:
            return "/".join(parts[parts.index(marker) + 1 :])
    return Path(file).name


def is_machinery(file: str) -> bool:
    """All of torch but its layers, and this package, which say nothing about a model."""
    if any(Path(file).is_relative_to(folder) for folder in _own_folders()):
        return True
    parts = Path(file).parts
    if "torch" not in parts[:-1]:
        return file.startswith("<")
    return parts[parts.index("torch") + 1] not in ("nn", "distributions")


@cache
def is_library(file: str) -> bool:
    """Whether a source file is not the user's: installed, generated, of Python, or of this package."""
    if file.startswith("<"):  # generated code
        return True
    path = Path(file)
    if any(part in ("site-packages", "dist-packages") for part in path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in _library_folders())


@cache
def _library_folders() -> tuple[Path, ...]:
    standard = (Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    return (*standard, *_own_folders())


@cache
def _own_folders() -> tuple[Path, ...]:
    package = Path(__file__).parents[1]
    rooms = ("artifacts", "exporter", "lowering", "runtime", "tools")
    return tuple(package / room for room in rooms)
