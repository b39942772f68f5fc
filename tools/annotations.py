"""Diagnostics as workflow commands of GitHub Actions, which it shows at the lines of a change.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Callable

from ..artifacts.errors import Diagnostic, Location

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def annotation(each: Diagnostic, file_of: Callable[[Location], str | None]) -> str:
    """One command, on one line: ``::error file=model.py,line=5,title=TC102::a branch …``.

    Args:
        file_of: the file of a location from the root of the checkout; None where it is not in it:
            the location then stands in the message.
    """
    properties = {"title": each.code}
    lines = [each.message]
    if each.location is not None:
        file = file_of(each.location)
        if file is not None:
            properties = {"file": file, "line": str(each.location.line), **properties}
        else:
            lines.append(str(each.location))
    lines += [*each.notes, *(f"try: {attempt}" for attempt in each.tries)]
    typed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[each.severity]} {typed}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
