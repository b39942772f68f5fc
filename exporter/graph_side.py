"""One graph as it is compared with another at given sizes: what changes nothing is looked through, and
what hangs on sizes and weights alone has its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..artifacts.expr import dims_of, evaluate
from ..lowering.checks import CHECK_INDEX, REQUIRE
from .assumptions import Assumptions
from .settled import adds_nothing, graphs_of, masks_nothing, passing, settled
from .trace import Trace, symbol_of
from .translate import Untranslatable, substitute, to_expr

aten = torch.ops.aten


def output_of(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def attribute(node: torch.fx.Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def has_effect(node: torch.fx.Node) -> bool:
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
class Side:
    """One graph as it is compared: ``same_as`` gives the operand that a node hands on as it is,
    ``known`` the values that hang on sizes and weights alone, ``args`` those of attentions without a
    mask, or being causal, that would change nothing, those of branches and loops without what their
    bodies do not read, and those of writes without leading axes of 1, ``unread`` the inputs of bodies
    for it, ``passed`` the checks of known values that pass, ``idle`` the assertions that are about
    sizes alone, and those of what was asserted before."""

    same_as: dict[torch.fx.Node, torch.fx.Node]
    known: dict[torch.fx.Node, torch.Tensor]
    args: dict[torch.fx.Node, list[Any]]
    unread: frozenset[torch.fx.Node]
    passed: frozenset[torch.fx.Node]
    idle: frozenset[torch.fx.Node]
    graph: torch.fx.Graph

    def effects(self, graph: torch.fx.Graph) -> list[torch.fx.Node]:
        """What a graph does beside giving its results, in order: without the checks that pass, and
        what the whole graph asserts of sizes, which is among the guards of the trace."""
        found = [each for each in graph.nodes if has_effect(each) and each not in self.passed]
        if graph is not self.graph:
            return found
        return [each for each in found if each not in self.idle]

    def place(self, node: torch.fx.Node) -> int | None:
        """Which input of a body a node is, among those that are read; None in the whole graph."""
        if node.graph is self.graph:
            return None
        inputs = node.graph.find_nodes(op="placeholder")
        return [each for each in inputs if each not in self.unread].index(node)

    def origin(self, node: torch.fx.Node) -> torch.fx.Node:
        while node in self.same_as:
            node = self.same_as[node]
        return node

    def base(self, node: torch.fx.Node) -> Any:
        """What a reshape or an expansion is taken of; of reshapes of reshapes, the first."""
        operand = self.origin(node.args[0])
        if kind_of(node) is aten.reshape.default:
            while kind_of(operand) is aten.reshape.default and operand not in self.known:
                operand = self.origin(operand.args[0])
        return operand


def side_of(
    traced: Trace, assumptions: Assumptions, point: Mapping[str, int], settle: bool
) -> Side:
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
    unread: list[torch.fx.Node] = []
    for node in nodes:
        if node.target in _WRITES:
            args[node] = _unled(node, shape)
        if node.target in _FIXED:
            args[node], more = _read(node, size)
            unread += more
    for node in traced.program.graph.find_nodes(
        op="call_function", target=aten._assert_scalar.default
    ):
        condition, message = arguments(node)
        if message.startswith(_TORCHS_OWN_MESSAGE):  # it names the symbols of its trace
            args[node] = [condition]
    passed = passing(traced.program, known, number)
    return Side(
        same_as,
        known,
        args,
        frozenset(unread),
        passed,
        frozenset(_idle(traced.program.graph, assumptions)),
        traced.program.graph,
    )


def _idle(graph: torch.fx.Graph, assumptions: Assumptions) -> Iterator[torch.fx.Node]:
    """The assertions of the whole graph that say nothing new of data."""
    asserted = set()
    for node in graph.find_nodes(op="call_function", target=aten._assert_scalar.default):
        condition = node.args[0]
        value = condition.meta["val"] if isinstance(condition, torch.fx.Node) else condition
        if not _is_of_data(value, assumptions) or value.node.expr in asserted:
            yield node
        else:
            asserted.add(value.node.expr)


def _is_of_data(condition: Any, assumptions: Assumptions) -> bool:
    """Whether something is asserted of a number that the graph computes."""
    if not isinstance(condition, torch.SymBool):
        return False
    return not condition.node.expr.free_symbols <= assumptions.symbols.keys()


def _unled(node: torch.fx.Node, shape: Callable[[torch.fx.Node], list[Any]]) -> list[Any]:
    """The arguments of a write whose values are broadcast: Python's ``x[i] = values`` has leading axes
    of 1 taken from the values beforehand."""
    args = arguments(node)
    values = args[_VALUES]
    while kind_of(values) is aten.reshape.default:
        operand = values.args[0]
        longer, shorter = shape(operand), shape(values)
        added = len(longer) - len(shorter)
        if added < 0 or longer != [1] * added + shorter:
            break
        values = operand
    args[_VALUES] = values
    return args


# Where the operands are that every step, or either side, gets as they are.
_FIXED = {
    torch.ops.higher_order.cond: 3,
    torch.ops.higher_order.scan: 3,
    torch.ops.higher_order.while_loop: 3,
    torch.ops.higher_order.map_impl: 2,
}


def _read(node: torch.fx.Node, size: Callable[[Any], Any]) -> tuple[list[Any], list[torch.fx.Node]]:
    """The arguments of a branch or loop without the operands that its bodies get and do not read, and
    the inputs of the bodies that stand for these. A number over the dims is not read from there: what
    a body does with it speaks of the dims."""
    args = arguments(node)
    position = _FIXED[node.target]
    bodies = [
        list(attribute(each).graph.find_nodes(op="placeholder"))
        for each in args
        if isinstance(each, torch.fx.Node) and each.op == "get_attr"
    ]
    fixed = list(args[position])
    inputs = [body[len(body) - len(fixed) :] for body in bodies]  # theirs are the last ones

    def is_read(operand: Any, places: Sequence[torch.fx.Node]) -> bool:
        if not any(place.users for place in places):
            return False
        if not all(is_number(each) for each in (operand, *places)):
            return True
        sizes = [size(_value(each)) for each in (operand, *places)]
        over_dims = all(isinstance(each, (int, str, tuple)) for each in sizes)
        return not over_dims or any(each != sizes[0] for each in sizes)

    found = [is_read(each, places) for each, *places in zip(fixed, *inputs, strict=True)]
    args[position] = [each for each, kept in zip(fixed, found, strict=True) if kept]
    unread = [place for body in inputs for place, kept in zip(body, found, strict=True) if not kept]
    return args, unread


def _value(number: Any) -> Any:
    return number.meta["val"] if isinstance(number, torch.fx.Node) else number


def _unmasked(
    node: torch.fx.Node,
    known: Mapping[torch.fx.Node, torch.Tensor],
    shape: Callable[[torch.fx.Node], list[Any]],
) -> list[Any]:
    """The arguments of an attention without a mask of zeros, and not causal for one query and key."""
    query, key, value, mask, dropout, causal, *rest = arguments(node)
    if isinstance(mask, torch.fx.Node) and masks_nothing(mask, known):
        # Nor does it add an axis, or repeat the results along one.
        sizes, rows, columns = shape(mask), shape(query)[:-1], shape(key)[-2]
        broadcast = zip(reversed(sizes), reversed([*rows, columns]), strict=False)
        if len(sizes) <= len(rows) + 1 and all(size in (1, full) for size, full in broadcast):
            mask = None
    causal = causal and not shape(query)[-2] == shape(key)[-2] == 1
    return [query, key, value, mask, dropout, causal, *rest]


def arguments(node: torch.fx.Node) -> list[Any]:
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
    """The nodes that make tensors, and the output, in the bodies of branches and loops, too: without
    arithmetic on sizes and assertions."""
    return [
        node
        for graph in graphs_of(traced.program)
        for node in graph.nodes
        if node.op != "call_function" or not (is_number(node) or node.meta.get("val") is None)
    ]


_TORCHS_OWN_MESSAGE = "Runtime assertion failed for expression "
_WRITES = (aten.index_put.default, aten._unsafe_index_put.default)
_VALUES = 2  # among the arguments of a write

_COPIES = (
    aten.contiguous.default,
    aten.clone.default,
    aten.alias.default,
    CHECK_INDEX,
    REQUIRE,
)
_VIEWS = (aten.view.default, aten._unsafe_view.default)
SHAPED = (aten.reshape.default, aten.expand.default)
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


def kind_of(node: torch.fx.Node) -> Any:
    """What an op computes: a view and a reshape give the same values."""
    return aten.reshape.default if node.target in _VIEWS else node.target


def is_number(value: Any) -> bool:
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
