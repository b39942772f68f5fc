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
from typing import Any, TypeAlias

import sympy
import torch

from ..artifacts.contract import Guard
from ..artifacts.errors import ExportError
from ..artifacts.expr import Expr, ExprError, dims_of, evaluate
from ..artifacts.prove import failures
from ..lowering.checks import CHECK_INDEX, REQUIRE
from .assumptions import Assumptions, extract
from .prove import Span, holds
from .ranges import Request
from .settled import adds_nothing, settled
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, substitute, to_expr

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
    tried = {guard for each in excluded.values() for guard in each}
    for guard, points in _exceptions(general, requests):
        if guard in tried:
            continue
        for point in points:
            if point not in found and point not in differing:
                guards = _guards_at(dict(point), traced, assumptions, requests, retrace)
                if guards is None:
                    differing.add(point)
                else:
                    found[point] = guards
            if point in differing:
                break
        else:
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
        same = any(_same_graph(*sides, point, requests, settle=each) for each in (False, True))
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
    *,
    settle: bool,
) -> bool:
    """Whether what the general graph gives, at the sizes of ``point``, is made as the special one
    makes it: the same ops of the same operands, in whatever order, back to the inputs.

    Args:
        settle: compare what hangs on the sizes and weights alone by its values.
    """
    one = _side(general, general_assumptions, point, settle)
    two = _side(special, special_assumptions, point, settle)
    box = {name: request.span for name, request in requests.items()}
    box |= {name: Span(size, size) for name, size in point.items()}
    pending = [(_output(general.program.graph), _output(special.program.graph))]
    compared = set(pending)
    drawn: dict[torch.fx.Node, torch.fx.Node] = {}

    def number(value: Any, symbols: Mapping[sympy.Symbol, Expr]) -> Expr:
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
        return to_expr(symbol_of(value), symbols)

    def equal_numbers(a: Any, b: Any) -> bool:
        try:
            mine = number(a, general_assumptions.symbols)
            other = number(b, special_assumptions.symbols)
        except Untranslatable:
            return False
        if dims_of(mine) <= point.keys() and isinstance(other, int):
            return evaluate(mine, point) == other
        return mine == other or holds(("==", mine, other), box).status == "proved"

    def equal(a: Any, b: Any) -> bool:
        """Whether two arguments are; of nodes it is seen later."""
        if _is_number(a) and _is_number(b):
            return equal_numbers(a, b)
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node):
            a, b = one.origin(a), two.origin(b)
            if a in one.known and b in two.known:
                values, others = one.known[a], two.known[b]
                return values.dtype == others.dtype and torch.equal(values, others)
            if (a, b) not in compared:
                compared.add((a, b))
                pending.append((a, b))
            return True
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
        return type(a) is type(b) and a == b

    def same(mine: torch.fx.Node, other: torch.fx.Node) -> bool:
        if mine.op != other.op:
            return False
        if mine.op == "placeholder":
            return mine.name == other.name
        if mine.op == "output":
            return equal(mine.args, other.args)
        if mine.op == "get_attr":
            values, others = _attribute(mine), _attribute(other)
            if isinstance(values, torch.fx.GraphModule):
                return equal(_output(values.graph), _output(others.graph))
            return isinstance(values, torch.Tensor) and torch.equal(values, others)
        if _kind(mine) != _kind(other):
            return False
        if _is_drawn(mine) and drawn.setdefault(mine, other) is not other:
            return False
        if _kind(mine) in _SHAPED:
            # Said by the shape of the result: an argument may be -1.
            shapes = [tuple(each.meta["val"].shape) for each in (mine, other)]
            return equal(one.base(mine), two.base(other)) and equal(*shapes)
        mine_args = one.args.get(mine) or _arguments(mine)
        return equal(mine_args, two.args.get(other) or _arguments(other))

    while pending:
        if not same(*pending.pop()):
            return False
    return len(set(drawn.values())) == len(drawn)


def _output(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def _attribute(node: torch.fx.Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _is_drawn(node: torch.fx.Node) -> bool:
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


@dataclass(frozen=True)
class _Side:
    """One graph as it is compared: ``same_as`` gives the operand that a node hands on as it is,
    ``known`` the values that hang on sizes and weights alone, ``args`` those of attentions without a
    mask, or being causal, that would change nothing."""

    same_as: dict[torch.fx.Node, torch.fx.Node]
    known: dict[torch.fx.Node, torch.Tensor]
    args: dict[torch.fx.Node, list[Any]]

    def origin(self, node: torch.fx.Node) -> torch.fx.Node:
        while node in self.same_as:
            node = self.same_as[node]
        return node

    def base(self, node: torch.fx.Node) -> Any:
        """What a reshape or an expansion is taken of; of reshapes of reshapes, the first."""
        operand = self.origin(node.args[0])
        if _kind(node) is aten.reshape.default:
            while _kind(operand) is aten.reshape.default and operand not in self.known:
                operand = self.origin(operand.args[0])
        return operand


def _side(traced: Trace, assumptions: Assumptions, point: Mapping[str, int], settle: bool) -> _Side:
    """The graphs are functional: where a value lies is no part of what it is."""

    def size(value: Any) -> Any:
        expression = symbol_of(value)
        try:
            return substitute(to_expr(expression, assumptions.symbols), point)
        except Untranslatable:  # of data: equal to itself
            return expression

    def shape(node: torch.fx.Node) -> list[Any]:
        return [size(each) for each in node.meta["val"].shape]

    def number(value: Any) -> int | None:
        value = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
        if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
            return None
        try:
            expr = to_expr(symbol_of(value), assumptions.symbols)
        except Untranslatable:
            return None
        return evaluate(expr, point) if dims_of(expr) <= point.keys() else None

    known = settled(traced.program, number) if settle else {}
    nodes = _tensor_nodes(traced)
    same_as = {}
    for node in nodes:
        source = None if node in known else _same_as(node, known, shape)
        if source is not None:
            same_as[node] = source
    args = {
        node: _unmasked(node, known, shape)
        for node in nodes
        if settle and node.target is aten.scaled_dot_product_attention.default
    }
    return _Side(same_as, known, args)


def _unmasked(
    node: torch.fx.Node,
    known: Mapping[torch.fx.Node, torch.Tensor],
    shape: Callable[[torch.fx.Node], list[Any]],
) -> list[Any]:
    """The arguments of an attention without a mask of zeros, and not causal for one query and key."""
    query, key, value, mask, dropout, causal, *rest = _arguments(node)
    if isinstance(mask, torch.fx.Node) and adds_nothing(mask, known):
        mask = None
    causal = causal and not shape(query)[-2] == shape(key)[-2] == 1
    return [query, key, value, mask, dropout, causal, *rest]


def _arguments(node: torch.fx.Node) -> list[Any]:
    """The arguments of an op, those that were left out too, in the order of its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [*node.args, *sorted(node.kwargs.items())]
    given = zip(node.target._schema.arguments, node.args, strict=False)
    values = {**{each.name: value for each, value in given}, **node.kwargs}
    return [
        values.get(each.name, each.default_value if each.has_default_value() else None)
        for each in node.target._schema.arguments
    ]


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


def _same_as(
    node: torch.fx.Node,
    known: Mapping[torch.fx.Node, torch.Tensor],
    shape: Callable[[torch.fx.Node], list[Any]],
) -> torch.fx.Node | None:
    """The operand that a node gives as it is: of a copy or a check; of a slice, expansion or reshape
    that, at these sizes, changes nothing; of the sum with zeros; of values written over all there was.
    """
    if node.target in (*_COPIES, *_RESHAPING):
        operands = node.args[:1]
    elif node.target is aten.add.Tensor and not node.kwargs:
        pair = [each for each in node.args[:2] if isinstance(each, torch.fx.Node)]
        zero = [adds_nothing(each, known) for each in pair]
        operands = tuple(
            pair[1 - index] for index, found in enumerate(zero) if found and len(pair) == 2
        )
    elif node.target is aten.slice_scatter.default and len(node.args) <= 5:
        operands = node.args[1:2]
    else:
        return None
    for operand in operands:
        if not isinstance(operand, torch.fx.Node):
            continue
        if node.target in _COPIES or (
            operand.meta["val"].dtype == node.meta["val"].dtype and shape(operand) == shape(node)
        ):
            return operand
    return None


def _kind(node: torch.fx.Node) -> Any:
    """What an op computes: a view and a reshape give the same values."""
    return aten.reshape.default if node.target in _VIEWS else node.target


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    return isinstance(value, (int, torch.SymInt, torch.SymBool)) and not isinstance(value, bool)
