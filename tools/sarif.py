"""Diagnostics as SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for code scanning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from ..artifacts.errors import Diagnostic, Location
from ..artifacts.rules import RULES, Rule

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
_OF_RULES = {"refuse": "error", "warn": "warning", "note": "note"}


def sarif(
    diagnostics: Sequence[Diagnostic], file_of: Callable[[Location], str | None]
) -> dict[str, Any]:
    """A log with one run: a rule for each code met, a result for each diagnostic.

    Args:
        file_of: the file of a location as a path that a reader of the log can open; None where it is
            not a file of the user's, which then stands as it was named.
    """
    codes = sorted({each.code for each in diagnostics})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tcexport",
                        "version": version("tcexport"),
                        "rules": [_rule(RULES[code]) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(each, codes.index(each.code), file_of) for each in diagnostics],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.what} {rule.why}"},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _OF_RULES[rule.level]},
    }


def _result(
    each: Diagnostic, index: int, file_of: Callable[[Location], str | None]
) -> dict[str, Any]:
    tries = [f"try: {attempt}" for attempt in each.tries]
    result: dict[str, Any] = {
        "ruleId": each.code,
        "ruleIndex": index,
        "level": _LEVELS[each.severity],
        "message": {"text": "\n".join([each.message, *each.notes, *tries])},
    }
    location = each.location
    if location is not None:
        region: dict[str, Any] = {"startLine": location.line}
        if location.text:
            region["snippet"] = {"text": location.text}
        uri = quote(file_of(location) or location.file)
        physical = {"artifactLocation": {"uri": uri}, "region": region}
        result["locations"] = [{"physicalLocation": physical}]
    return result
