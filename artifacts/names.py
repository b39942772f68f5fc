"""Which known name a misspelt one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look most like ``name``, best first; none if none is near."""
    found = sorted(set(known))
    folded = {candidate.casefold(): candidate for candidate in reversed(found)}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.6)
    return [folded[candidate] for candidate in close]
