"""Sizes of 0 and 1 that torch excludes although the model does not.

Torch decides about memory layouts as it traces, and a decision that hangs on strides leaves a guard
like ``seq != 1``, though the graph would be the same. That is not taken on trust: the model is traced
again with the dim fixed at that size, and only where both graphs agree, node by node, the guard is
dropped. What the second trace itself assumes stays a guard for that size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch

from ..artifacts.contract import Guard
from ..artifacts.errors import ExportError
from ..artifacts.expr import Expr, ExprError, dims_of, evaluate
from ..lowering.checks import CHECK_INDEX, REQUIRE
from .assumptions import Assumptions, extract
from .prove import Span, holds
from .ranges import Request
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, substitute, to_expr

Retrace = Callable[[Mapping[str, int]], Trace]
Excluded: TypeAlias = "tuple[str, int]"  # a dim and a size of it

_MOST_TRACES = 32


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
    for guard, corner in _corners(general, requests):
        guards = found.get(corner) or _guards_at(
            dict(corner), traced, assumptions, requests, retrace
        )
        if guards is not None:
            found[corner] = guards
            waived.add(guard)
    kept = []
    for guard in assumptions.guards:
        left = [half for half in halves.get(guard, (guard,)) if half not in waived]
        kept += [guard] if len(left) == 2 else left
    queue = list(found)
    for point in queue:  # grows while it is walked
        others = {name: ask for name, ask in requests.items() if name not in dict(point)}
        inner = _excluded(found[point], others)
        known: set[Guard] = set()
        for each, excluding in inner.items():
            further = point | {each}
            if each not in admitted and further not in found and len(found) < _MOST_TRACES:
                guards = _guards_at(dict(further), traced, assumptions, requests, retrace)
                if guards is not None:
                    found[further] = guards
                    queue.append(further)
            if each in admitted or further in found:
                known.update(excluding)
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


def _corners(
    guards: Sequence[Guard], requests: Mapping[str, Request]
) -> Iterator[tuple[Guard, frozenset[Excluded]]]:
    """Guards over several dims that say no more than that not all of them are 1 at once."""
    for guard in guards:
        names = sorted(dims_of(guard.expr))
        if len(names) < 2 or not set(names) <= requests.keys():
            continue
        box = {name: requests[name].span for name in names}
        if not all(1 in span for span in box.values()):
            continue
        elsewhere = ("or", guard.expr, *(("!=", name, 1) for name in names))
        at_the_corner = holds(guard.expr, {name: Span(1, 1) for name in names})
        if at_the_corner.status == "refuted" and holds(elsewhere, box).status == "proved":
            yield guard, frozenset((name, 1) for name in names)


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
        same = _same_graph(traced, assumptions, special, found, point, requests)
    except (ExportError, ExprError):  # the model does not run there, or a size has no value
        return None
    if not same:
        return None
    halves = _halves(found.guards, requests)
    return tuple(half for guard in found.guards for half in halves.get(guard, (guard,)))


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


# --- comparing graphs -----------------------------------------------------------------------------


def _same_graph(
    general: Trace,
    general_assumptions: Assumptions,
    special: Trace,
    special_assumptions: Assumptions,
    point: Mapping[str, int],
    requests: Mapping[str, Request],
) -> bool:
    """Whether the general graph, at the sizes of ``point``, is the special one, node by node."""
    left, right = _tensor_nodes(general), _tensor_nodes(special)
    # The graphs are functional: where a value lies is no part of what it is.
    same_as_input = {
        node
        for side, known in ((left, general_assumptions), (right, special_assumptions))
        for node in side
        if _is_identity(node, known.symbols, point)
    }
    left, right = [[node for node in side if node not in same_as_input] for side in (left, right)]
    if len(left) != len(right):
        return False
    box = {name: request.span for name, request in requests.items()}
    box |= {name: Span(size, size) for name, size in point.items()}
    partner: dict[torch.fx.Node, torch.fx.Node] = {}
    matched: set[torch.fx.Node] = set()

    def number(value: Any, symbols: Mapping[sympy.Symbol, Expr]) -> Expr:
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
        return to_expr(symbol_of(value), symbols)

    def equal_numbers(a: Any, b: Any) -> bool:
        try:
            one = number(a, general_assumptions.symbols)
            two = number(b, special_assumptions.symbols)
        except Untranslatable:
            return False
        if dims_of(one) <= point.keys() and isinstance(two, int):
            return evaluate(one, point) == two
        return one == two or holds(("==", one, two), box).status == "proved"

    def origin(node: torch.fx.Node, known: Any) -> torch.fx.Node:
        while node not in known and node in same_as_input:
            node = node.args[0]
        return node

    def equal(a: Any, b: Any) -> bool:
        if _is_number(a) and _is_number(b):
            return equal_numbers(a, b)
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node):
            return partner.get(origin(a, partner)) is origin(b, matched)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
        return type(a) is type(b) and a == b

    for one, two in zip(left, right, strict=True):
        if one.op != two.op or (one.op == "call_function" and _kind(one) != _kind(two)):
            return False
        if one.op in ("placeholder", "get_attr") and one.name != two.name:
            return False
        if _kind(one) in _SHAPED:
            # Said by the shape of the result: an argument may be -1.
            if not (
                equal(one.args[0], two.args[0])
                and equal(tuple(one.meta["val"].shape), tuple(two.meta["val"].shape))
            ):
                return False
        elif one.op == "call_function" and not (
            equal(one.args, two.args)
            and one.kwargs.keys() == two.kwargs.keys()
            and all(equal(one.kwargs[key], two.kwargs[key]) for key in one.kwargs)
        ):
            return False
        if one.op == "output" and not equal(one.args, two.args):
            return False
        partner[one] = two
        matched.add(two)
    return True


def _tensor_nodes(traced: Trace) -> list[torch.fx.Node]:
    """The nodes that make tensors, and the output: without arithmetic on sizes and assertions."""
    return [
        node
        for node in traced.program.graph.nodes
        if node.op != "call_function" or not (_is_number(node) or node.meta.get("val") is None)
    ]


aten = torch.ops.aten
_COPIES = (
    aten.contiguous.default,
    aten.clone.default,
    aten.alias.default,
    CHECK_INDEX,
    REQUIRE,
)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_SHAPED = (aten.reshape.default, aten.expand.default)
_RESHAPING = (*_VIEWS, aten.reshape.default, aten.slice.Tensor, aten.expand.default)


def _is_identity(
    node: torch.fx.Node, symbols: Mapping[sympy.Symbol, Expr], point: Mapping[str, int]
) -> bool:
    """Whether a node gives its input as it is: a copy, a check, or a slice, expansion or reshape
    that, at these sizes, changes nothing."""
    if node.target in _COPIES:
        return True
    if node.target not in _RESHAPING or not isinstance(node.args[0], torch.fx.Node):
        return False
    shapes = [
        [substitute(to_expr(symbol_of(size), symbols), point) for size in each.meta["val"].shape]
        for each in (node, node.args[0])
    ]
    return shapes[0] == shapes[1]


def _kind(node: torch.fx.Node) -> Any:
    """What an op computes: a view and a reshape give the same values."""
    return aten.reshape.default if node.target in _VIEWS else node.target


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    return isinstance(value, (int, torch.SymInt, torch.SymBool)) and not isinstance(value, bool)
