"""Every failure that a user can meet, as data: a diagnostic with a stable code.

An error says what was wrong, where in the user's own file, and what to do next. The codes and
their pages live in `rules`; nothing raises a code that is not registered there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from .names import printable
from .rules import RULES


class Location(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the user's own source. ``text`` is the line as it stands there, stripped."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Diagnostic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is wrong: `message` in one line, `notes` to explain, `tries` to type next."""

    code: str
    message: str
    location: Location | None = None
    notes: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()
    severity: str = "error"

    def render(self) -> str:
        """The diagnostic as text, several lines, without colour."""
        lines = [f"{self.severity}[{self.code}] {self.message}"]
        if self.location is not None:
            text = f"   {self.location.text}" if self.location.text else ""
            lines.append(f"  {self.location}{text}")
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  try: {attempt}" for attempt in self.tries]
        return "\n".join(printable(line) for text in lines for line in text.split("\n"))


class TcexportError(Exception):
    """Base of all errors of this package. ``code`` is the first diagnostic's code."""

    exit_status = 1

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        found = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        if not found:
            raise ValueError("an error needs at least one diagnostic")
        for diagnostic in found:
            if diagnostic.code not in RULES:
                raise ValueError(f"unregistered diagnostic code {diagnostic.code}")
        super().__init__(found)
        self.diagnostics: tuple[Diagnostic, ...] = found

    @property
    def code(self) -> str:
        return self.diagnostics[0].code

    def __str__(self) -> str:
        return "\n".join(diagnostic.render() for diagnostic in self.diagnostics)

    def __reduce__(self) -> Any:
        return type(self), (self.diagnostics,)


class UsageError(TcexportError):
    """What was typed does not fit: an option, a path, a name."""

    exit_status = 2


class ExportError(TcexportError):
    """The model cannot be exported as asked. No file was written."""

    exit_status = 1


class BundleError(TcexportError):
    """The file is not a bundle that can be trusted, or cannot run on this machine."""

    exit_status = 3


class GuardError(TcexportError):
    """A call (or a promise made at load) lies outside the contract of the bundle.

    ``argument`` is the argument's path, ``axis`` the axis or None, ``got`` the value that came and
    ``needs`` the guard in the user's names. ``guard`` names the guard in the same words for every
    call, so that violations can be counted.
    """

    exit_status = 4

    def __init__(
        self,
        diagnostics: Diagnostic | Iterable[Diagnostic],
        *,
        argument: str | None = None,
        axis: int | None = None,
        got: str = "",
        needs: str = "",
        guard: str = "",
    ) -> None:
        super().__init__(diagnostics)
        self.argument = argument
        self.axis = axis
        self.got = got
        self.needs = needs
        self.guard = guard

    def __str__(self) -> str:
        return super().__str__().removeprefix("error")

    def __reduce__(self) -> Any:
        names = ("argument", "axis", "got", "needs", "guard")
        return type(self), (self.diagnostics,), {name: getattr(self, name) for name in names}


class InternalError(TcexportError):
    """A compiler or the runtime failed in a way that is nobody's input's fault."""

    exit_status = 5
