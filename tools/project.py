"""``[tool.tcexport]`` of the pyproject.toml that is nearest to a source: levels of its findings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.levels import Levels, parse_levels
from ..artifacts.names import suggestions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = ("allow", "error")


def levels_for(source: Path, error: Sequence[str], allow: Sequence[str]) -> Levels:
    """What was typed, over what the project says.

    Raises:
        UsageError: TC006, TC008, TC013, as `parse_levels`; what the project's file says is read first.
    """
    project = project_levels(source)
    return parse_levels(error, allow).over(project)


def project_levels(source: Path) -> Levels:
    """The levels in the first pyproject.toml from the source's folder upwards."""
    for folder in source.resolve().parents:
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Levels()


def _read(file: Path) -> Levels:
    shown = f"{file.parent.name}/{file.name}"
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(Diagnostic("TC008", f"cannot read {shown}: {error}")) from None
    tool = data.get("tool", {})
    table: Any = tool.get("tcexport", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(Diagnostic("TC008", f"{shown}: tool.tcexport is no table"))
    for key, value in table.items():
        if key not in _KEYS:
            close = suggestions(key, _KEYS)
            raise UsageError(
                Diagnostic(
                    "TC006",
                    f"{shown}: [tool.tcexport] has no key {key}",
                    notes=(f"keys: {', '.join(_KEYS)}",),
                    tries=tuple(f"{name} = […]" for name in close[:1]),
                )
            )
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"{shown}: {key} in [tool.tcexport] is no list of codes",
                    tries=(f'{key} = ["TC110"]',),
                )
            )
    return parse_levels(table.get("error", []), table.get("allow", []), f"{shown} {{}} =")
