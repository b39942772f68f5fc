"""How failures are shown: text on stderr (in colour on a terminal), or, on stdout, JSON, SARIF, or
annotations of GitHub Actions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..artifacts.errors import Diagnostic, Location

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold blue"}


FORMS = ("text", "json", "sarif", "github")


@dataclass
class Place:
    """Where a command looks for the user's files: ``folder`` is that of the source."""

    folder: Path = field(default_factory=Path)

    def file(self, location: Location) -> str | None:
        """The file of a location as it is reached from the current folder; None if it is not there:
        a library's, one that is gone, or another file of the same name."""
        path = self.folder / location.file
        if not path.is_file() or not _holds(path, location):
            return None
        try:
            return path.resolve().relative_to(Path.cwd().resolve()).as_posix()
        except ValueError:
            return path.resolve().as_posix()


def _holds(path: Path, location: Location) -> bool:
    """Whether a file has the line that a location quotes."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not 0 < location.line <= len(lines):
        return False
    return location.text in ("", lines[location.line - 1].strip())


def print_failure(diagnostics: Sequence[Diagnostic], form: str, place: Place) -> None:
    """Show what went wrong: ``{"error": {"diagnostics": […]}}``, or what else ``form`` asks for."""
    if form == "json":
        print(json.dumps({"error": {"diagnostics": as_data(diagnostics)}}, indent=1))
    elif form == "text":
        print_diagnostics(diagnostics)
    else:
        print(machine_text(diagnostics, form, place.file))


def machine_text(
    diagnostics: Sequence[Diagnostic], form: str, file_of: Callable[[Location], str | None]
) -> str:
    """Diagnostics as ``sarif`` or ``github``."""
    if form == "sarif":
        from .sarif import sarif

        return json.dumps(sarif(diagnostics, file_of), indent=1)
    from .annotations import annotation

    return "\n".join(annotation(each, file_of) for each in diagnostics)


def as_data(diagnostics: Sequence[Diagnostic]) -> list[Any]:
    """Diagnostics as plain data for JSON."""
    data: list[Any] = msgspec.to_builtins(diagnostics)
    return data


def print_diagnostics(diagnostics: Sequence[Diagnostic]) -> None:
    """Print diagnostics on stderr, one below the other."""
    if not in_colour(sys.stderr):
        for diagnostic in diagnostics:
            print(diagnostic.render(), file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for diagnostic in diagnostics:
        lines = diagnostic.render().splitlines()
        head, _, message = lines[0].partition(" ")
        style = _STYLES.get(diagnostic.severity, "bold")
        console.print(Text.assemble((head, style), " ", (message, "bold")))
        for line in lines[1:]:
            if line.startswith("  try: "):
                console.print(Text(line, "green"))
            elif diagnostic.location is not None and line.startswith(f"  {diagnostic.location}"):
                console.print(Text(line, "cyan"))
            else:
                console.print(Text(line))


def in_colour(stream: Any) -> bool:
    """Whether a stream is a terminal that takes colours (https://no-color.org)."""
    return (
        bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "")
    )
