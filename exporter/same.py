"""Whether two traces of one model are the same graph at given sizes.

Two graphs are walked from their results back, and from what they check and draw. Only what was seen
to be equal counts as equal: ops by their targets and arguments, inputs by what they stand for,
constants bit by bit, the bodies of branches and loops as the graphs that they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..artifacts.expr import Expr, dims_of, evaluate
from ..lowering.checks import CHECK_INDEX, REQUIRE
from .assumptions import Assumptions
from .prove import Span, holds
from .ranges import Request
from .settled import adds_nothing, masks_nothing, passing, same_bits, settled
from .trace import Trace, symbol_of
from .translate import Untranslatable, substitute, to_expr


def same_graph(
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
    makes it: the same ops of the same operands, in whatever order, back to the inputs; given back in
    the same structure, and written to the same state; with the same checks and draws on the way.
    What is not shown to be the same is not.

    Args:
        settle: compare what hangs on the sizes and weights alone by its values.
    """
    if general.program.call_spec.out_spec != special.program.call_spec.out_spec:
        return False
    if _results(general) != _results(special):
        return False
    one = _side(general, general_assumptions, point, settle)
    two = _side(special, special_assumptions, point, settle)
    box = {name: request.span for name, request in requests.items()}
    box |= {name: Span(size, size) for name, size in point.items()}
    pending: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    compared: set[tuple[torch.fx.Node, torch.fx.Node]] = set()
    partner: dict[torch.fx.Node, torch.fx.Node] = {}

    def number(value: Any, symbols: Mapping[sympy.Symbol, Expr]) -> Expr:
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
        return to_expr(symbol_of(value), symbols)

    def equal_numbers(a: Any, b: Any) -> bool:
        try:
            mine = number(a, general_assumptions.symbols)
            other = number(b, special_assumptions.symbols)
        except Untranslatable:  # of data: as it is made
            both = isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node)
            return both and equal_nodes(a, b)
        if dims_of(mine) <= point.keys() and isinstance(other, int):
            return evaluate(mine, point) == other
        return mine == other or holds(("==", mine, other), box).status == "proved"

    def equal_nodes(a: torch.fx.Node, b: torch.fx.Node) -> bool:
        """As far as is seen at once; the rest is seen later."""
        a, b = one.origin(a), two.origin(b)
        if a in one.known and b in two.known:
            return same_bits(one.known[a], two.known[b])
        if (a, b) not in compared:
            compared.add((a, b))
            pending.append((a, b))
        return True

    def equal(a: Any, b: Any) -> bool:
        """Whether two arguments are; of nodes it is seen later."""
        if _is_number(a) and _is_number(b):
            return equal_numbers(a, b)
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node):
            return equal_nodes(a, b)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
        return _same_constant(a, b)

    def alike(mine: torch.fx.Node, other: torch.fx.Node) -> bool:
        """Whether the results have the same type and, as far as it is no data, the same shape."""
        a, b = mine.meta.get("val"), other.meta.get("val")
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return isinstance(a, torch.Tensor) is isinstance(b, torch.Tensor)
        if (a.dtype, a.device, a.dim()) != (b.dtype, b.device, b.dim()):
            return False
        for x, y in zip(a.shape, b.shape, strict=True):
            open_sides = [_is_open(x, general_assumptions), _is_open(y, special_assumptions)]
            if not all(open_sides) and (any(open_sides) or not equal_numbers(x, y)):
                return False
        return True

    def same_bodies(mine: torch.fx.Graph, other: torch.fx.Graph) -> bool:
        """Of graphs with the same operands; what is used of them is seen later."""
        sides = [one.effects(mine), two.effects(other)]
        if len(sides[0]) != len(sides[1]):
            return False
        pairs = list(zip(*sides, strict=True))
        partner.update(pairs)
        pending.extend([(_output(mine), _output(other)), *pairs])
        return True

    def same(mine: torch.fx.Node, other: torch.fx.Node) -> bool:
        if mine.op != other.op or not alike(mine, other):
            return False
        if mine.op == "placeholder":
            return _same_input(mine, other, general, special)
        if mine.op == "output":
            return equal(mine.args, other.args)
        if mine.op == "get_attr":
            values, others = _attribute(mine), _attribute(other)
            if isinstance(values, torch.fx.GraphModule):
                return isinstance(others, torch.fx.GraphModule) and same_bodies(
                    values.graph, others.graph
                )
            return same_bits(values, others)
        if mine.op != "call_function" or _kind(mine) != _kind(other):
            return False
        if (_has_effect(mine) or _has_effect(other)) and partner.get(mine) is not other:
            return False
        if _kind(mine) in _SHAPED:
            # Said by the shape of the result: an argument may be -1.
            shapes = [tuple(each.meta["val"].shape) for each in (mine, other)]
            return equal(one.base(mine), two.base(other)) and equal(*shapes)
        mine_args = one.args.get(mine) or _arguments(mine)
        return equal(mine_args, two.args.get(other) or _arguments(other))

    if not same_bodies(general.program.graph, special.program.graph):
        return False
    while pending:
        if not same(*pending.pop()):
            return False
    return True


def _results(traced: Trace) -> list[tuple[Any, ...]]:
    """What becomes of each output of the graph: given back, or written, and to which state or input."""
    places = {name: place for place, name in enumerate(traced.placeholders)}
    return [
        (spec.kind, type(spec.arg), places.get(str(spec.target), spec.target))
        if spec.kind is OutputKind.USER_INPUT_MUTATION
        else (spec.kind, type(spec.arg), spec.target)
        for spec in traced.program.graph_signature.output_specs
    ]


def _same_input(mine: torch.fx.Node, other: torch.fx.Node, general: Trace, special: Trace) -> bool:
    """Whether two inputs are: the same argument of the call, the same state, or a constant of the
    same value (its name says only in which order it was met). In a body, those at the same place."""
    if mine.graph is not general.program.graph or other.graph is not special.program.graph:
        bodies = mine.graph is not general.program.graph
        both = bodies and other.graph is not special.program.graph
        places = [
            list(each.graph.find_nodes(op="placeholder")).index(each) for each in (mine, other)
        ]
        return both and places[0] == places[1]
    names = [traced.placeholders for traced in (general, special)]
    if mine.name in names[0] or other.name in names[1]:
        return (
            mine.name in names[0]
            and other.name in names[1]
            and names[0].index(mine.name) == names[1].index(other.name)
        )
    specs = [
        next(each for each in traced.program.graph_signature.input_specs if each.arg.name == name)
        for traced, name in ((general, mine.name), (special, other.name))
    ]
    if specs[0].kind is not specs[1].kind:
        return False
    values = [
        traced.program.state_dict.get(spec.target, traced.program.constants.get(spec.target))
        for traced, spec in zip((general, special), specs, strict=True)
    ]
    named = specs[0].kind is InputKind.CONSTANT_TENSOR or specs[0].target == specs[1].target
    return named and same_bits(*values)


def _is_open(size: Any, assumptions: Assumptions) -> bool:
    """Whether a size is found out from data."""
    try:
        to_expr(symbol_of(size), assumptions.symbols)
    except Untranslatable:
        return True
    return False


def _same_constant(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return _same_constant(a.real, b.real) and _same_constant(a.imag, b.imag)
    return a is b or (isinstance(a, _PLAIN) and bool(a == b))


_PLAIN = (bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _output(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def _attribute(node: torch.fx.Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _has_effect(node: torch.fx.Node) -> bool:
    """Whether a node does more than give a value that hangs on its operands alone, or may: it checks,
    draws or writes, or is no op of torch's."""
    op = node.target
    if node.op != "call_function":
        return False
    if isinstance(op, torch._ops.OpOverload):
        pure = op.namespace in ("aten", "prims") and not op._schema.is_mutable
        drawn = torch.Tag.nondeterministic_seeded in op.tags
        return not pure or drawn or node.meta.get("val") is None
    module, name = getattr(op, "__module__", None), getattr(op, "__name__", "")
    if module == "torch":
        return not name.startswith("sym_")
    return module not in _PURE or name in ("setitem", "delitem")


_PURE = ("_operator", "math", "torch.utils._sympy.functions")


@dataclass(frozen=True)
class _Side:
    """One graph as it is compared: ``same_as`` gives the operand that a node hands on as it is,
    ``known`` the values that hang on sizes and weights alone, ``args`` those of attentions without a
    mask, or being causal, that would change nothing, ``passed`` the checks of known values that
    pass."""

    same_as: dict[torch.fx.Node, torch.fx.Node]
    known: dict[torch.fx.Node, torch.Tensor]
    args: dict[torch.fx.Node, list[Any]]
    passed: frozenset[torch.fx.Node]
    graph: torch.fx.Graph

    def effects(self, graph: torch.fx.Graph) -> list[torch.fx.Node]:
        """What a graph does beside giving its results, in order: without the checks that pass, and
        what the whole graph asserts of sizes, which is among the guards of the trace."""
        found = [each for each in graph.nodes if _has_effect(each) and each not in self.passed]
        if graph is not self.graph:
            return found
        return [each for each in found if each.target is not aten._assert_scalar.default]

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
    passed = passing(traced.program, known, number)
    return _Side(same_as, known, args, passed, traced.program.graph)


def _unmasked(
    node: torch.fx.Node,
    known: Mapping[torch.fx.Node, torch.Tensor],
    shape: Callable[[torch.fx.Node], list[Any]],
) -> list[Any]:
    """The arguments of an attention without a mask of zeros, and not causal for one query and key."""
    query, key, value, mask, dropout, causal, *rest = _arguments(node)
    if isinstance(mask, torch.fx.Node) and masks_nothing(mask, known):
        # Nor does it add an axis, or repeat the results along one.
        sizes, rows, columns = shape(mask), shape(query)[:-1], shape(key)[-2]
        broadcast = zip(reversed(sizes), reversed([*rows, columns]), strict=False)
        if len(sizes) <= len(rows) + 1 and all(size in (1, full) for size, full in broadcast):
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
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
