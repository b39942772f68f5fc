"""Findings in the user's view of the files: relative to the source, or to where packages live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..artifacts.errors import Diagnostic, ExportError, Location, UsageError
from ..artifacts.levels import Levels
from .source import Source


def raised(found: Sequence[Diagnostic]) -> None:
    """Refuse the export where some of what was found is an error, which is then told first."""
    if any(each.severity == "error" for each in found):
        raise ExportError(sorted(found, key=lambda each: each.severity != "error"))


@contextmanager
def in_the_users_words(source: Source, levels: Levels) -> Iterator[None]:
    """Lets errors of an export name files as the user knows them, and have the levels asked for."""
    try:
        yield
    except (ExportError, UsageError) as error:
        found = relocated(error.diagnostics, displayer(source))
        raise type(error)(levels.applied(found)) from error.__cause__


def displayer(source: Source) -> Callable[[str], str]:
    """Files as the user knows them: relative to the source's folder, or to where packages live."""
    home = Path(source.file).resolve().parent if source.file else Path.cwd()

    def display(file: str) -> str:
        path = Path(file)
        for marker in ("site-packages", "dist-packages"):
            if marker in path.parts:
                return "/".join(path.parts[path.parts.index(marker) + 1 :])
        with suppress(ValueError, OSError):
            return path.resolve().relative_to(home).as_posix()
        return path.name

    return display


def relocated(value: Any, display: Callable[[str], str]) -> Any:
    """A contract (or anything in it) with the file of every location as ``display`` gives it."""
    if isinstance(value, Location):
        return msgspec.structs.replace(value, file=display(value.file))
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return type(value)(**{name: relocated(part, display) for name, part in fields.items()})
    if isinstance(value, tuple):
        return tuple(relocated(part, display) for part in value)
    return value
