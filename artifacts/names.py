"""Names: which known one a misspelt one was meant to be, and how to show one that a file gave."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look most like ``name``, best first; none if none is near."""
    found = sorted(set(known))
    folded = {candidate.casefold(): candidate for candidate in reversed(found)}
    wanted = name.casefold()
    close = difflib.get_close_matches(wanted, list(folded), n=3, cutoff=0.6)
    # `sequence` for `seq` is too long to be near by its letters.
    close += [each for each in folded if len(each) > 2 and wanted.startswith(each)]
    return [folded[candidate] for candidate in dict.fromkeys(close)]


def clipped(value: Any, most: int) -> str:
    """The first ``most`` characters of ``repr(value)``. The rest is not made: of decoded JSON that is
    deep and long, that takes a copy for each level."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) >= most:
            break
    return text[:most]


def _pieces(value: Any) -> Iterator[str]:
    if type(value) is list:
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item)
        yield "]"
    elif type(value) is dict:
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield f"{', ' if number else ''}{key!r}: "
            yield from _pieces(item)
        yield "}"
    else:
        yield repr(value)


def printable(text: str) -> str:
    """Text on a terminal or in a log: what would move the cursor, turn the direction or end the line
    is spelled out, ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in text
    )
