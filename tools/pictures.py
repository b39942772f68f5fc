"""Where pictures go: what draws one writes SVG, and refuses a file whose name says something else."""

from __future__ import annotations

from pathlib import Path

from ..artifacts.errors import Diagnostic, UsageError

SUFFIX = ".svg"


def require_svg(option: str, path: Path) -> None:
    """Refuse a name that would make a viewer read the picture as something else.

    Raises:
        UsageError: TC008, the name does not end in ``.svg``.
    """
    if path.suffix.lower() != SUFFIX:
        raise UsageError(
            Diagnostic(
                "TC008",
                f"{option} {path}: pictures are written as {SUFFIX}",
                tries=(f"{option} {path.with_suffix(SUFFIX)}",),
            )
        )
