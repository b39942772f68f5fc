"""Indices that a kernel reads with: what torch checks inside its kernels and never writes down.

``Embedding(512)(arange(seq))`` leaves no ``seq <= 512`` in the shape environment, and a compiled
kernel reads whatever lies there. Each index tensor is followed back through the graph as an interval
of values. It ends in a guard on sizes, a guard on the values of an input, or, where there is no
bound, in a check that the compiled code makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ..artifacts.contract import ComputedGuard, Guard, IndexGuard, Origin
from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, dims_of, evaluate
from ..lowering.checks import CHECK_INDEX, UNNUMBERED
from ..lowering.locations import user_location
from .index_values import Analysis, shape_of
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold

aten = torch.ops.aten


@dataclass(frozen=True)
class _Use:
    """``index`` reads ``of`` along ``axis``, which has ``size`` elements; ``wraps``: -size..-1 count
    from the end."""

    index: torch.fx.Node
    of: torch.fx.Node
    axis: int
    size: Any
    wraps: bool


def index_guards(
    traced: Trace, symbols: Mapping[sympy.Symbol, Expr]
) -> tuple[tuple[Guard, ...], tuple[IndexGuard, ...], tuple[ComputedGuard, ...]]:
    """Guards that keep every index of the graph inside what it indexes.

    An index tensor that cannot be bounded before a call is checked by the compiled code: such checks
    are put into the graph, which changes it.

    Returns:
        Guards on sizes, guards on the values of inputs, and the guards that the graph now carries.

    Raises:
        ExportError: TC211, a constant index that is out of range; all such are listed.
    """
    analysis = Analysis(traced, symbols)
    guards: dict[Expr, Guard] = {}
    by_value: dict[tuple[Any, ...], IndexGuard] = {}
    computed: list[ComputedGuard] = []
    refused: list[Diagnostic] = []
    proved: list[torch.fx.Node] = []  # checks of a decomposition that a guard stands for
    for node in list(traced.program.graph.nodes):
        where = user_location(node.meta.get("stack_trace"))
        for use in _uses(node):
            origin = Origin(f"index of {_name(node)}", where)
            try:
                size = analysis.expr(symbol_of(use.size))
                values = analysis.values(use.index)
            except Untranslatable:
                size, values = None, None
            if values is None or size is None:
                _put_check(node, use, len(computed))
                what = f"the indices of {_name(node)}"
                computed.append(ComputedGuard(what, size, use.wraps, origin))
                continue
            if node.target is CHECK_INDEX:
                proved.append(node)
            lowest = fold("-", 0, size) if use.wraps else 0
            highest = fold("-", size, 1)
            if values.leaf is not None:
                lo, hi = fold("-", lowest, values.lo), fold("-", highest, values.hi)
                guard = IndexGuard(values.leaf, lo, hi, origin, values.parts)
                by_value.setdefault((values.leaf, lo, hi, values.parts), guard)
                continue
            for compared in ((">=", values.lo, lowest), ("<=", values.hi, highest)):
                condition: Expr = _without_one(compared)
                if dims_of(condition):
                    guards.setdefault(condition, Guard(condition, origin))
                elif not evaluate(condition, {}):
                    refused.append(_out_of_range(node, where))
    if refused:
        raise ExportError(refused)
    for node in proved:
        node.replace_all_uses_with(node.args[0])
        node.graph.erase_node(node)
    traced.program.graph_module.recompile()
    return tuple(guards.values()), tuple(by_value.values()), tuple(computed)


def require_bounded(traced: Trace, indexing: Sequence[str]) -> None:
    """Hold the nodes that lowering reads or writes with, by name, against what was bounded here.

    Raises:
        ExportError: TC507, an op that this analysis does not know to index.
    """
    nodes = {node.name: node for node in traced.program.graph.nodes}
    missed = [name for name in indexing if name not in nodes or not _uses(nodes[name])]
    if missed:
        raise ExportError([_unbounded(name, nodes.get(name)) for name in missed])


def _unbounded(name: str, node: torch.fx.Node | None) -> Diagnostic:
    op = name if node is None else _name(node)
    where = None if node is None else user_location(node.meta.get("stack_trace"))
    return Diagnostic("TC507", f"the indices of {op} have no bound", location=where)


def _put_check(node: torch.fx.Node, use: _Use, number: int) -> None:
    """Let ``node`` use a checked copy of its indices; one that is such a check gets its number."""
    if node.target is CHECK_INDEX:
        node.args = (*node.args[:3], number)
        return
    graph = node.graph
    with graph.inserting_before(node):
        size: Any = use.size
        if isinstance(size, torch.SymInt):
            size = graph.call_function(aten.sym_size.int, (use.of, use.axis))
            size.meta["val"] = use.size
        checked = graph.call_function(CHECK_INDEX, (use.index, size, use.wraps, number))
    checked.meta = {
        key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta
    }
    checked.meta["val"] = use.index.meta["val"]
    node.replace_input_with(use.index, checked)


def _without_one(condition: tuple[str, Expr, Expr]) -> Expr:
    """``seq - 1 <= 511`` as ``seq <= 512``."""
    op, left, right = condition
    if isinstance(left, tuple) and left[0] == "-" and isinstance(left[2], int):
        return (op, left[1], fold("+", right, left[2]))
    return condition


def _name(node: torch.fx.Node) -> str:
    if node.target is CHECK_INDEX:
        return "an op that was taken apart"
    return str(getattr(node.target, "_opname", None) or node.target)


def _out_of_range(node: torch.fx.Node, where: Location | None) -> Diagnostic:
    return Diagnostic("TC211", f"a constant index of {_name(node)} is out of range", location=where)


# --- which ops index ------------------------------------------------------------------------------


def _uses(node: torch.fx.Node) -> list[_Use]:
    if node.op != "call_function":
        return []
    finder = _INDEXING.get(getattr(node.target, "overloadpacket", None))
    return finder(node) if finder is not None else []


def _rows(node: torch.fx.Node) -> list[_Use]:
    table, index = node.args[0], node.args[1]
    return [_Use(index, table, 0, shape_of(table)[0], wraps=False)]


def _along(wraps: bool) -> Callable[[torch.fx.Node], list[_Use]]:
    def uses(node: torch.fx.Node) -> list[_Use]:
        source, dim, index = node.args[:3]
        shape = shape_of(source)
        if len(shape) == 0:
            return [_Use(index, source, 0, 1, wraps)]
        return [_Use(index, source, dim % len(shape), shape[dim], wraps)]

    return uses


def _advanced(node: torch.fx.Node) -> list[_Use]:
    source, indices = node.args[0], node.args[1]
    uses: list[_Use] = []
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        value = index.meta["val"]
        if value.dtype in (torch.bool, torch.uint8):
            axis += value.dim()
            continue
        uses.append(_Use(index, source, axis, shape_of(source)[axis], wraps=True))
        axis += 1
    return uses


def _marked(node: torch.fx.Node) -> list[_Use]:
    """A check that a decomposition put in, and that nobody has looked at yet."""
    index, size, wraps, number = node.args
    if number != UNNUMBERED:
        return []
    size = size.meta["val"] if isinstance(size, torch.fx.Node) else size
    return [_Use(index, index, 0, size, wraps)]


_INDEXING: dict[Any, Callable[[torch.fx.Node], list[_Use]]] = {
    aten.embedding: _rows,
    aten.embedding_bag: _rows,
    aten._embedding_bag: _rows,
    aten._embedding_bag_forward_only: _rows,
    aten.index: _advanced,
    aten._unsafe_index: _advanced,
    aten.index_put: _advanced,
    aten.index_put_: _advanced,
    aten._unsafe_index_put: _advanced,
    aten.gather: _along(wraps=False),
    aten.scatter: _along(wraps=False),
    aten.scatter_: _along(wraps=False),
    aten.scatter_add: _along(wraps=False),
    aten.scatter_add_: _along(wraps=False),
    aten.scatter_reduce: _along(wraps=False),
    aten.scatter_reduce_: _along(wraps=False),
    aten.index_select: _along(wraps=False),
    aten.index_add: _along(wraps=False),
    aten.index_add_: _along(wraps=False),
    aten.index_copy: _along(wraps=False),
    aten.index_copy_: _along(wraps=False),
    aten.index_fill: _along(wraps=True),
    aten.index_fill_: _along(wraps=True),
    CHECK_INDEX.overloadpacket: _marked,
}
