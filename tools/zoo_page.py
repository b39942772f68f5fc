"""docs/zoo.md: written from the outcomes of all rows, and read for what a row's outcome was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .zoo_row import Outcome

_INTRODUCTION = """\
# The zoo

Written by `make zoo`. Each row is a model of tests/zoo with random weights and a small
configuration, exported for x86-64-v3 with every dim of its inputs dynamic that users vary (batch,
sequence, height and width), compared with eager at both ends and in the middle of the promised
ranges, and called outside of them.

**ok**: eager's numbers at all of these sizes, and a guard error for every call outside. **refused**:
nothing was written; the code, the op and the line say why. **error** is the largest absolute
difference from eager, **export** the seconds an export took beside another, **file** the bundle with
its runtime.

A quarter of the rows, picked by the commit's hash, runs with the tests; there a row that is ok here
must be ok.
"""
_RECORD = re.compile(r"\| `(?P<name>\w+)` \| (?P<status>\w+).*")
_HEAD = "| Model | Status | Sizes compared, refused | Error | Export | File |"


def write_page(page: Path, outcomes: Mapping[str, Outcome], families: Mapping[str, str]) -> None:
    """Write the page, a table for each family.

    Args:
        outcomes: of the rows that ran; the others keep their lines.
        families: of every row, in the order of the page.
    """
    before = _lines(page)
    lines = {name: _line(name, outcomes[name]) for name in outcomes}
    lines = {name: lines.get(name) or before[name] for name in families if name in lines | before}
    statuses = [_status(line) for line in lines.values()]
    ok, refused = statuses.count("ok"), statuses.count("refused")
    rest = len(lines) - ok - refused
    text = [
        _INTRODUCTION,
        f"{len(lines)} rows: {ok} ok, {refused} refused, {rest} wrong or crashed.",
    ]
    for family in dict.fromkeys(families.values()):
        text += ["", f"## {family.replace('_', ' ').capitalize()}", "", _HEAD]
        text.append("| --- | --- | --- | --- | --- | --- |")
        text += [line for name, line in lines.items() if families[name] == family]
    page.write_text("\n".join(text) + "\n", encoding="utf-8")


def _line(name: str, outcome: Outcome) -> str:
    if outcome.status != "ok":
        reason = re.sub(r"([|<>*_`])", r"\\\1", outcome.reason)
        return f"| `{name}` | {outcome.status}: {reason} | | | | |"
    return (
        f"| `{name}` | ok | {outcome.sizes}, {outcome.outside} | {outcome.error:.1e} "
        f"| {outcome.seconds:.0f} s | {outcome.megabytes:.1f} MB |"
    )


def recorded(page: Path) -> dict[str, str]:
    """The status of each row on the page; none where there is no page."""
    return {name: _status(line) for name, line in _lines(page).items()}


def _lines(page: Path) -> dict[str, str]:
    text = page.read_text("utf-8") if page.is_file() else ""
    return {match["name"]: match[0] for match in _RECORD.finditer(text)}


def _status(line: str) -> str:
    match = _RECORD.match(line)
    assert match is not None
    return match["status"]
