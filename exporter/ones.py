"""Sizes that a trace excludes although the same graph serves them: 0, 1, and a few others.

Torch decides about memory layouts as it traces, and a decision that hangs on strides leaves a guard
like ``seq != 1``, though the graph would be the same. Models skip there what would change nothing: a
causal mask for one token, the interpolation of positions to the size that they have. None of it is
taken on trust: the model is traced again with the dims fixed at that size, and only where both graphs
agree, node by node or in what they compute from sizes and weights alone, the guard is dropped. What
the second trace itself assumes stays a guard for that size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..artifacts.contract import Guard
from ..artifacts.errors import ExportError
from ..artifacts.expr import ExprError, dims_of
from ..artifacts.prove import failures
from .assumptions import Assumptions, extract
from .prove import Span, holds
from .ranges import Request
from .same import same_graph
from .trace import Trace
from .translate import fold, substitute

Retrace = Callable[[Mapping[str, int]], Trace]
Excluded: TypeAlias = "tuple[str, int]"  # a dim and a size of it

_MOST_TRACES = 32
_MOST_EXCEPTIONS = 8


@dataclass(frozen=True)
class Admitted:
    """``guards`` are what is left; ``untried`` those of them for which the model was not traced again:
    with so many sizes excluded, there are too many combinations of them."""

    guards: tuple[Guard, ...]
    untried: frozenset[Guard]


def admit_small_sizes(
    traced: Trace,
    assumptions: Assumptions,
    requests: Mapping[str, Request],
    retrace: Retrace,
) -> Admitted:
    """The guards of a trace without those that exclude 0 or 1 for no reason of the model's.

    Args:
        retrace: traces the model with some dims fixed at the sizes given.
    """
    halves = _halves(assumptions.guards, requests)
    general = [half for guard in assumptions.guards for half in halves.get(guard, (guard,))]
    excluded = _excluded(general, requests)
    admitted: set[Excluded] = set()
    untried: list[Guard] = []
    found: dict[frozenset[Excluded], tuple[Guard, ...]] = {}
    traces = 0
    for candidate in excluded:
        new: dict[frozenset[Excluded], tuple[Guard, ...]] = {}
        points = list(_points(candidate, admitted))
        if traces + len(points) > _MOST_TRACES:
            untried += excluded[candidate]
            continue
        for point in points:
            traces += 1
            guards = _guards_at(dict(point), traced, assumptions, requests, retrace)
            if guards is None:
                break
            new[point] = guards
        else:
            admitted.add(candidate)
            found |= new
    waived = {guard for each in admitted for guard in excluded[each]}
    differing: set[frozenset[Excluded]] = set()

    def serves(point: frozenset[Excluded]) -> bool:
        """Whether the graph is the model's at a point, too; ``found`` has its guards then."""
        if point not in found and point not in differing:
            guards = _guards_at(dict(point), traced, assumptions, requests, retrace)
            if guards is None:
                differing.add(point)
            else:
                found[point] = guards
        return point in found

    tried = {guard for each in excluded.values() for guard in each}
    for guard, points in _exceptions(general, requests):
        if guard not in tried and all(map(serves, points)):
            waived.add(guard)
    kept = []
    for guard in assumptions.guards:
        left = [half for half in halves.get(guard, (guard,)) if half not in waived]
        kept += [guard] if len(left) == 2 else left
    walked = 0
    while walked < len(found):  # what is found on the way is walked, too
        point = list(found)[walked]
        walked += 1
        others = {name: ask for name, ask in requests.items() if name not in dict(point)}
        known: set[Guard] = set()
        for each, excluding in _excluded(found[point], others).items():
            further = point | {each}
            few = len(found) < _MOST_TRACES
            if each in admitted or further in found or (few and serves(further)):
                known.update(excluding)
        for guard, places in _exceptions(found[point], others):
            all_of = [point | place for place in places]
            few = len(found) + len(all_of) <= _MOST_TRACES
            if guard not in known and few and all(map(serves, all_of)):
                known.add(guard)
        kept += _under(dict(point), [guard for guard in found[point] if guard not in known])
    distinct = tuple({guard.expr: guard for guard in reversed(kept)}.values())[::-1]
    return Admitted(distinct, frozenset(untried))


def _halves(
    guards: Sequence[Guard], requests: Mapping[str, Request]
) -> dict[Guard, tuple[Guard, Guard]]:
    """The guards that exclude both 0 and 1 and nothing else, as one guard for each."""
    found = {}
    for guard in guards:
        names = dims_of(guard.expr)
        if len(names) != 1 or not names <= requests.keys():
            continue
        (name,) = names
        span = requests[name].span
        if span.lo != 0 or span.step != 1 or 1 not in span:
            continue
        small = [holds(guard.expr, {name: Span(size, size)}).status for size in (0, 1)]
        if small == ["refuted", "refuted"] and (
            holds(guard.expr, {name: Span(2, span.hi)}).status == "proved"
        ):
            zero, one = (Guard(("!=", name, size), guard.origin) for size in (0, 1))
            found[guard] = (zero, one)
    return found


def _exceptions(
    guards: Sequence[Guard], requests: Mapping[str, Request]
) -> Iterator[tuple[Guard, list[frozenset[Excluded]]]]:
    """Guards that fail at a few points only, with the points: where not all of several dims may be 1
    at once, or ``height // 8 * (width // 8) != 16`` over ranges that hold three such sizes."""
    for guard in guards:
        names = sorted(dims_of(guard.expr))
        if not names or not set(names) <= requests.keys():
            continue
        box = {name: requests[name].span for name in names}
        if len(names) > 1 and all(1 in span for span in box.values()):
            elsewhere = ("or", guard.expr, *(("!=", name, 1) for name in names))
            at_the_corner = holds(guard.expr, {name: Span(1, 1) for name in names})
            if at_the_corner.status == "refuted" and holds(elsewhere, box).status == "proved":
                yield guard, [frozenset((name, 1) for name in names)]
                continue
        points = failures(guard.expr, box, _MOST_EXCEPTIONS)
        if points:
            yield guard, [frozenset(point.items()) for point in points]


def _points(candidate: Excluded, admitted: set[Excluded]) -> Iterator[frozenset[Excluded]]:
    """The candidate alone, and with every choice of the sizes of other dims admitted before."""
    others: dict[str, list[Excluded | None]] = {}
    for each in sorted(admitted):
        if each[0] != candidate[0]:
            others.setdefault(each[0], [None]).append(each)
    for combination in itertools.product(*others.values()):
        yield frozenset((candidate, *(each for each in combination if each is not None)))


def _guards_at(
    point: Mapping[str, int],
    traced: Trace,
    assumptions: Assumptions,
    requests: Mapping[str, Request],
    retrace: Retrace,
) -> tuple[Guard, ...] | None:
    """The guards of the trace with the dims fixed at ``point``; None where it is another graph."""
    try:
        special = retrace(point)
        found = extract(special, {name: ask for name, ask in requests.items() if name not in point})
        sides = (traced, assumptions, special, found)
        same = any(same_graph(*sides, point, requests, settle=each) for each in (False, True))
    except (ExportError, ExprError):  # the model does not run there, or a size has no value
        return None
    if not same or not _same_of_numbers(assumptions, found, point):
        return None
    halves = _halves(found.guards, requests)
    return tuple(half for guard in found.guards for half in halves.get(guard, (guard,)))


def _same_of_numbers(general: Assumptions, special: Assumptions, point: Mapping[str, int]) -> bool:
    """Whether all that must hold at ``point`` of the numbers that the graph computes is looked at by
    the general graph."""
    known = {substitute(guard.expr, point) for guard in general.computed}
    needed = {substitute(guard.expr, point) for guard in special.computed}
    return needed <= known


def _under(point: Mapping[str, int], guards: Sequence[Guard]) -> list[Guard]:
    """The guards of the trace at ``point``, as guards of calls with these sizes alone."""
    elsewhere = [fold("!=", name, size) for name, size in point.items()]
    return [Guard(("or", *elsewhere, guard.expr), guard.origin) for guard in guards]


def _excluded(
    guards: Sequence[Guard], requests: Mapping[str, Request]
) -> dict[Excluded, list[Guard]]:
    """For each (dim, size): the guards that say no more than that the dim is not this size."""
    found: dict[Excluded, list[Guard]] = {}
    for guard in guards:
        names = dims_of(guard.expr)
        if len(names) != 1 or not names <= requests.keys():
            continue
        (name,) = names
        span = requests[name].span
        for size in (0, 1):
            if size not in span:
                continue
            rest = [Span(size + span.step, span.hi, span.step)]
            if size > span.lo:
                rest.append(Span(span.lo, size - span.step, span.step))
            fails = holds(guard.expr, {name: Span(size, size)}).status == "refuted"
            if fails and all(holds(guard.expr, {name: part}).status == "proved" for part in rest):
                found.setdefault((name, size), []).append(guard)
    return found
