"""How failures are shown: text on stderr (in colour on a terminal), or JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from ..artifacts.errors import Diagnostic

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold blue"}


def print_failure(diagnostics: Sequence[Diagnostic], *, as_json: bool) -> None:
    """Show what went wrong: ``{"error": {"diagnostics": […]}}`` on stdout, or text on stderr."""
    if as_json:
        print(json.dumps({"error": {"diagnostics": as_data(diagnostics)}}, indent=1))
    else:
        print_diagnostics(diagnostics)


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
