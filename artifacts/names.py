"""Names: which known one a misspelt one was meant to be, and how to show one that a file gave."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look most like ``name``, best first; none if none is near."""
    found = sorted(set(known))
    folded = {candidate.casefold(): candidate for candidate in reversed(found)}
    wanted = name.casefold()
    close = difflib.get_close_matches(wanted, list(folded), n=3, cutoff=0.6)
    # `sequence` for `seq` is too long to be near by its letters.
    close += [each for each in folded if len(each) > 2 and wanted.startswith(each)]
    return [folded[candidate] for candidate in dict.fromkeys(close)]


def printable(text: str) -> str:
    """Text on a terminal or in a log: what would move the cursor, turn the direction or end the line
    is spelled out, ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in text
    )
