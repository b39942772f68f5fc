"""Sizes of 0 and 1 that torch excludes although the model does not.

Torch decides about memory layouts as it traces, and a decision that hangs on strides leaves a guard
like ``seq != 1``, though the graph would be the same. That is not taken on trust: the model is traced
again with the dim fixed at that size, and only where both graphs agree, node by node, the guard is
dropped. What the second trace itself assumes stays a guard for that size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..artifacts.contract import Guard
from ..artifacts.errors import ExportError
from ..artifacts.expr import Expr, dims_of, evaluate
from .assumptions import Assumptions, extract
from .prove import Span, holds
from .ranges import Request
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, to_expr

Retrace = Callable[[Mapping[str, int]], Trace]

_MOST_TRACES = 15


def admit_small_sizes(
    traced: Trace,
    assumptions: Assumptions,
    requests: Mapping[str, Request],
    retrace: Retrace,
) -> tuple[Guard, ...]:
    """The guards of a trace without those that exclude 0 or 1 for no reason of the model's.

    Args:
        retrace: traces the model with some dims fixed at the sizes given.
    """
    excluded = _excluded(assumptions.guards, requests)
    if not excluded:
        return assumptions.guards
    points = list(_points(excluded))
    if len(points) > _MOST_TRACES:
        return assumptions.guards
    conditional: list[Guard] = []
    for point in points:
        try:
            special = retrace(point)
            others = {name: ask for name, ask in requests.items() if name not in point}
            found = extract(special, others)
        except ExportError:
            return assumptions.guards
        if not _same_graph(traced, assumptions, special, found, point, requests):
            return assumptions.guards
        # Sizes that the special trace excludes in turn have a point, and a trace, of their own.
        inner = _excluded(found.guards, others)
        if not inner.keys() <= excluded.keys():
            return assumptions.guards
        conditional += _under(point, found.guards, _all(inner))
    waived = _all(excluded)
    kept = [guard for guard in assumptions.guards if guard not in waived]
    return (*kept, *(guard for guard in conditional if guard.expr not in {k.expr for k in kept}))


def _excluded(
    guards: Sequence[Guard], requests: Mapping[str, Request]
) -> dict[tuple[str, int], list[Guard]]:
    """For each (dim, size): the guards that say no more than that the dim is not this size."""
    found: dict[tuple[str, int], list[Guard]] = {}
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


def _points(excluded: Mapping[tuple[str, int], list[Guard]]) -> Iterator[dict[str, int]]:
    """Every way in which one dim or more have an excluded size."""
    sizes: dict[str, list[int | None]] = {}
    for name, size in excluded:
        sizes.setdefault(name, [None]).append(size)
    for combination in itertools.product(*sizes.values()):
        point = {
            name: size for name, size in zip(sizes, combination, strict=True) if size is not None
        }
        if point:
            yield point


def _all(excluded: Mapping[tuple[str, int], list[Guard]]) -> set[Guard]:
    return {guard for guards in excluded.values() for guard in guards}


def _under(point: Mapping[str, int], guards: Sequence[Guard], waived: set[Guard]) -> list[Guard]:
    """The guards of the trace at ``point``, as guards of calls with these sizes alone."""
    elsewhere = [fold("!=", name, size) for name, size in point.items()]
    return [
        Guard(("or", *elsewhere, guard.expr), guard.origin)
        for guard in guards
        if guard not in waived
    ]


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
    if not (_writes(left) or _writes(right)):
        # Without writes, where a value lies is no part of what it is.
        left, right = [[node for node in side if not _is_copy(node)] for side in (left, right)]
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
        while node not in known and _is_copy(node):
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
        if one.op == "call_function" and not (
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


_COPIES = (torch.ops.aten.contiguous.default, torch.ops.aten.clone.default)
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def _is_copy(node: torch.fx.Node) -> bool:
    return node.target in _COPIES


def _kind(node: torch.fx.Node) -> Any:
    """What an op computes: a view and a reshape give the same values."""
    return torch.ops.aten.reshape.default if node.target in _VIEWS else node.target


def _writes(nodes: Sequence[torch.fx.Node]) -> bool:
    return any(
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        for node in nodes
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    return isinstance(value, (int, torch.SymInt, torch.SymBool)) and not isinstance(value, bool)
