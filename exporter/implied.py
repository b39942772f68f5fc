"""Guards that others imply: a call that meets those meets these, so that looking at them is idle."""

from __future__ import annotations

from collections.abc import Sequence

from ..artifacts.contract import Guard
from ..artifacts.expr import Expr, dims_of, walk
from .prove import Box, holds


def needed(guards: Sequence[Guard], box: Box) -> tuple[Guard, ...]:
    """The guards without those that others among them imply; of two that say the same, one with a line
    of the user's, or else the first.

    Args:
        box: the ranges of all dims, which hold beside the guards.
    """
    kept = list(guards)
    last_first = list(reversed(guards))
    last_first.sort(key=lambda each: each.origin.location is not None)
    for guard in last_first:
        others = [each for each in kept if each is not guard and _about_the_same(each, guard)]
        # A division has no value everywhere in the box: such a guard may imply another by itself.
        plain = [each for each in others if not _divides(each.expr)]
        reasons = [*([each] for each in others), plain]
        if dims_of(guard.expr) <= box.keys() and any(
            _implies(reason, guard, box) for reason in reasons if reason
        ):
            kept = [each for each in kept if each is not guard]
    return tuple(kept)


def _about_the_same(one: Guard, other: Guard) -> bool:
    return bool(dims_of(one.expr) & dims_of(other.expr))


def _divides(expr: Expr) -> bool:
    return any(isinstance(part, tuple) and part[0] in ("//", "%") for part in walk(expr))


def _implies(reasons: Sequence[Guard], guard: Guard, box: Box) -> bool:
    claim: Expr = ("or", guard.expr, *(("not", each.expr) for each in reasons))
    return dims_of(claim) <= box.keys() and holds(claim, box).status == "proved"
