"""Indices that a kernel reads with: what torch checks inside its kernels and never writes down.

``Embedding(512)(arange(seq))`` leaves no ``seq <= 512`` in the shape environment, and a compiled
kernel reads whatever lies there. Each index tensor is followed back through the graph as an interval
of values. It ends in a guard on sizes, a guard on the values of an input, or, where there is no
bound, in a check that the compiled code makes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ..artifacts.contract import ComputedGuard, Guard, IndexGuard, Origin, Part
from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, dims_of, evaluate
from ..artifacts.prove import Span, bounds
from ..lowering.checks import CHECK_INDEX, UNNUMBERED
from ..lowering.locations import user_location
from ..lowering.states import states
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, to_expr

aten = torch.ops.aten


@dataclass(frozen=True)
class Values:
    """All values of an integer tensor: between ``lo`` and ``hi``, both included.

    With ``leaf``, they are the values of that input plus something between ``lo`` and ``hi``: of
    the part of the input that ``parts`` give. ``axes`` are then the input's axes that the tensor
    still has, in order, until it is reshaped (None).
    """

    lo: Expr
    hi: Expr
    leaf: int | None = None
    parts: tuple[Part, ...] = ()
    axes: tuple[int, ...] | None = None


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
    analysis = _Analysis(traced, symbols)
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


def _shape(node: Any) -> Any:
    return node.meta["val"].shape


def _rows(node: torch.fx.Node) -> list[_Use]:
    table, index = node.args[0], node.args[1]
    return [_Use(index, table, 0, _shape(table)[0], wraps=False)]


def _along(wraps: bool) -> Callable[[torch.fx.Node], list[_Use]]:
    def uses(node: torch.fx.Node) -> list[_Use]:
        source, dim, index = node.args[:3]
        shape = _shape(source)
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
        uses.append(_Use(index, source, axis, _shape(source)[axis], wraps=True))
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

# --- values of integer tensors --------------------------------------------------------------------

_SAME_VALUES = {
    aten.view, aten.reshape, aten._unsafe_view, aten.unsqueeze, aten.squeeze, aten.expand,
    aten.expand_as, aten.clone, aten.alias, aten.contiguous, aten.detach,
    aten.detach_, aten.permute, aten.transpose, aten.t, aten.flatten, aten.unflatten,
    aten.lift_fresh_copy, aten.repeat, aten.flip, aten.roll, aten.narrow,
    aten.index_select, aten.gather, aten.index, aten.diagonal, aten.movedim, aten.unfold,
    aten.broadcast_to, aten.tile, aten.view_as, aten.reshape_as, aten.swapaxes,
}  # fmt: skip
_KEEP_AXES = {
    aten.clone, aten.alias, aten.contiguous, aten.detach, aten.detach_, aten.lift_fresh_copy,
}  # fmt: skip
_CASTS = {aten.to, aten._to_copy, aten.type_as}
_BOOLEAN = {
    aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.logical_and, aten.logical_or,
    aten.logical_not, aten.logical_xor, aten.isnan, aten.isinf, aten.any, aten.all,
}  # fmt: skip


_MONOTONE = ("+", "*", "//", "%", "min", "max")
_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def _fits(values: Values, dtype: torch.dtype) -> bool:
    """Whether a type holds all values, for sizes below 2**31."""
    info = torch.iinfo(dtype)
    box = {name: Span(0, 2**31 - 1) for name in dims_of(values.lo) | dims_of(values.hi)}
    return info.min <= bounds(values.lo, box)[0] and bounds(values.hi, box)[1] <= info.max


def _cannot_wrap(values: Values, dtype: torch.dtype) -> bool:
    """Whether an op's values, as computed with integers without end, are those of its dtype.

    The values of an input plus something are looked at where they are used: those in the range of an
    index did not wrap, as types of 32 bits and more hold that range.
    """
    if dtype not in _INTEGERS:
        return False
    if values.leaf is not None:
        return torch.iinfo(dtype).bits >= 32 or (values.lo, values.hi) == (0, 0)
    return _fits(values, dtype)


class _Analysis:
    """Intervals of the integer tensors of one graph, computed where they are asked for."""

    def __init__(self, traced: Trace, symbols: Mapping[sympy.Symbol, Expr]) -> None:
        self._symbols = symbols
        self._sizes = traced.sizes.keys()
        self._leaf_of = {name: index for index, name in enumerate(traced.placeholders)}
        self._known: dict[torch.fx.Node, Values | None] = {}
        signature = traced.program.graph_signature
        state: dict[str, Any] = {**traced.program.state_dict, **traced.program.constants}
        for each in states(traced.program):
            del state[each.name]  # it changes from call to call
        self._constants = {
            node_name: state[target]
            for names in (
                signature.inputs_to_parameters,
                signature.inputs_to_buffers,
                signature.inputs_to_lifted_tensor_constants,
            )
            for node_name, target in names.items()
            if target in state
        }

    def expr(self, expression: Any) -> Expr:
        return to_expr(expression, self._symbols)

    def number(self, value: Any) -> Expr:
        """A Python number, a SymInt or the node of one as an expression."""
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
        if isinstance(value, (bool, float)) and value != int(value):
            raise Untranslatable("{} is not an integer", value)
        if isinstance(value, (bool, int, float)):
            return int(value)
        if isinstance(value, torch.SymInt):
            return self.expr(value.node.expr)
        number = value.node.expr if isinstance(value, (torch.SymFloat, torch.SymBool)) else value
        raise Untranslatable("{} is not a size", number)

    def values(self, node: Any) -> Values | None:
        """The interval of a node; None where there is none."""
        if not isinstance(node, torch.fx.Node):
            number = self.number(node)
            return Values(number, number)
        if node not in self._known:
            self._known[node] = self._values(node)
        return self._known[node]

    def _values(self, node: torch.fx.Node) -> Values | None:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)):
            number = self.number(value)
            return Values(number, number)
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
            return Values(0, 1)
        if node.op == "placeholder":
            return self._input(node)
        if node.target is operator.getitem:
            return _getitem(self, node)
        packet = getattr(node.target, "overloadpacket", None)
        if packet in (aten.slice, aten.select, aten.narrow):
            return self._part(node)
        if packet in _SAME_VALUES:
            values = self.values(node.args[0])
            keeps_axes = packet in _KEEP_AXES
            return values if values is None or keeps_axes else replace(values, axes=None)
        if packet in _CASTS:
            return self._cast(node)
        if packet in _BOOLEAN:
            return Values(0, 1)
        rule = _RULES.get(packet)
        found = rule(self, node) if rule is not None else None
        return found if found is None or _cannot_wrap(found, value.dtype) else None

    def _cast(self, node: torch.fx.Node) -> Values | None:
        """Between integer types: the same values, where the narrower type holds them all."""
        source, result = node.args[0].meta["val"].dtype, node.meta["val"].dtype
        if source.is_floating_point or source.is_complex or result not in _INTEGERS:
            return None
        values = self.values(node.args[0])
        if values is None or values.leaf is None:
            return values if values is None or _fits(values, result) else None
        if (values.lo, values.hi) != (0, 0):
            # In the type of the input the sum may have wrapped around.
            return values if (source, result) == (torch.int64, torch.int64) else None
        one, other = torch.iinfo(source), torch.iinfo(result)
        return values if other.min <= one.min and one.max <= other.max else None

    def _input(self, node: torch.fx.Node) -> Values | None:
        if node.name in self._leaf_of:
            rank = node.meta["val"].dim()
            return Values(0, 0, self._leaf_of[node.name], (), tuple(range(rank)))
        constant = self._constants.get(node.name)
        if constant is None or constant.dtype.is_floating_point or constant.numel() == 0:
            return None
        if constant.dtype.is_complex:
            return None
        return Values(int(constant.min()), int(constant.max()))

    def _never_negative(self, expr: Expr) -> bool:
        """Whether an expression is made of sizes, without a minus."""
        if isinstance(expr, int):
            return expr >= 0
        if isinstance(expr, str):
            return expr in self._sizes  # and not the value of an input
        return expr[0] in _MONOTONE and all(map(self._never_negative, expr[1:]))

    def _part(self, node: torch.fx.Node) -> Values | None:
        """A slice or one position along an axis: of an input, the part that counts."""
        values = self.values(node.args[0])
        if values is None or values.leaf is None:
            return values
        source, result = _shape(node.args[0]), _shape(node)
        packet = node.target.overloadpacket
        dim = int(_argument(node, 1, "dim", 0)) % len(source)
        length = self.expr(symbol_of(source[dim]))
        if packet is aten.select:
            start = self.number(_argument(node, 2, "index"))
            if isinstance(start, int) and start < 0:
                start = fold("+", length, start)
            elif not self._never_negative(start):
                return None
            stop = fold("+", start, 1)
        else:
            start = self.number(_argument(node, 2, "start") or 0)
            if isinstance(start, int) and start < 0:
                start = fold("max", 0, fold("+", length, start))
            elif not self._never_negative(start):
                return None
            if _argument(node, 4, "step", 1) != 1:
                return None
            stop = fold("+", start, self.expr(symbol_of(result[dim])))
        if (start, stop) == (0, length):
            return values
        if values.axes is None:
            return None
        axis = values.axes[dim]
        outer = next((part for part in values.parts if part.axis == axis), None)
        if outer is not None:
            start, stop = fold("+", outer.start, start), fold("+", outer.start, stop)
        parts = (*(part for part in values.parts if part.axis != axis), Part(axis, start, stop))
        axes = values.axes
        if packet is aten.select:
            axes = axes[:dim] + axes[dim + 1 :]
        return replace(values, parts=parts, axes=axes)


def _argument(node: torch.fx.Node, position: int, name: str, default: Any = None) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _arange(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    schema = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(schema, node.args, strict=False)), **node.kwargs}
    start = analysis.number(given.get("start", 0))
    end = analysis.number(given["end"])
    step = analysis.number(given.get("step", 1))
    if not isinstance(step, int) or step < 1:
        return None
    return Values(start, fold("-", end, 1))


def _add(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    a, b = analysis.values(node.args[0]), analysis.values(node.args[1])
    if a is None or b is None or node.kwargs.get("alpha", 1) != 1:
        return None
    if a.leaf is not None and b.leaf is not None:
        return None
    leaf = a.leaf if a.leaf is not None else b.leaf
    whole = a if a.leaf is not None else b
    return Values(fold("+", a.lo, b.lo), fold("+", a.hi, b.hi), leaf, whole.parts, None)


def _sub(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    a, b = analysis.values(node.args[0]), analysis.values(node.args[1])
    if a is None or b is None or b.leaf is not None or node.kwargs.get("alpha", 1) != 1:
        return None
    return Values(fold("-", a.lo, b.hi), fold("-", a.hi, b.lo), a.leaf, a.parts, None)


def _mul(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    a, b = analysis.values(node.args[0]), analysis.values(node.args[1])
    if a is None or b is None or a.leaf is not None or b.leaf is not None:
        return None
    corners = [fold("*", x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    if all(isinstance(corner, int) for corner in corners):
        return Values(min(corners), max(corners))
    return Values(("min", *corners), ("max", *corners))


def _clamp(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    low, high = _argument(node, 1, "min"), _argument(node, 2, "max")
    source = analysis.values(node.args[0])
    if source is not None and source.leaf is not None:
        source = None
    lo = source.lo if source is not None else None
    hi = source.hi if source is not None else None
    if low is not None:
        least = analysis.number(low)
        lo = least if lo is None else fold("max", lo, least)
        hi = None if hi is None else fold("max", hi, least)
    if high is not None:
        most = analysis.number(high)
        hi = most if hi is None else fold("min", hi, most)
        lo = None if lo is None else fold("min", lo, most)
    return Values(lo, hi) if lo is not None and hi is not None else None


def _clamp_min(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    source = analysis.values(node.args[0])
    least = analysis.number(node.args[1])
    if source is None or source.leaf is not None:
        return None
    return Values(fold("max", source.lo, least), fold("max", source.hi, least))


def _clamp_max(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    source = analysis.values(node.args[0])
    most = analysis.number(node.args[1])
    if source is None or source.leaf is not None:
        return None
    return Values(fold("min", source.lo, most), fold("min", source.hi, most))


def _where(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    return _union(analysis, node.args[1:3])


def _cat(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    return _union(analysis, node.args[0])


def _union(analysis: _Analysis, nodes: Any) -> Values | None:
    parts = [analysis.values(each) for each in nodes]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if len({(part.leaf, part.parts) for part in known}) > 1:
        return None
    lows, highs = [part.lo for part in known], [part.hi for part in known]
    if known[0].leaf is not None and (len(set(lows)) > 1 or len(set(highs)) > 1):
        return None  # which offset goes with which value is not known: all would have to fit all
    lo = lows[0] if len(set(lows)) == 1 else ("min", *lows)
    hi = highs[0] if len(set(highs)) == 1 else ("max", *highs)
    return Values(lo, hi, known[0].leaf, known[0].parts, None)


def _full(position: int) -> Callable[[_Analysis, torch.fx.Node], Values | None]:
    def rule(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
        number = analysis.number(node.args[position])
        return Values(number, number)

    return rule


def _constant(number: int) -> Callable[[_Analysis, torch.fx.Node], Values | None]:
    return lambda analysis, node: Values(number, number)


def _remainder(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    divisor = analysis.number(node.args[1])
    if isinstance(divisor, int) and divisor < 1:
        return None
    return Values(0, fold("-", divisor, 1))


def _position(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    """argmax, argmin: a position along the axis (or in the whole tensor)."""
    source = node.args[0].meta["val"]
    dim = _argument(node, 1, "dim")
    size = source.numel() if dim is None else source.shape[dim]
    return Values(0, fold("-", analysis.expr(symbol_of(size)), 1))


def _getitem(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    """The indices that sort, topk, max and min along an axis return, and parts of a split."""
    source, which = node.args
    packet = getattr(source.target, "overloadpacket", None)
    if packet in (aten.split, aten.split_with_sizes, aten.chunk, aten.unbind, aten.tensor_split):
        return analysis.values(source.args[0])
    if which == 1 and packet in _WITH_INDICES:
        operand = source.args[0].meta["val"]
        dim = _argument(source, _WITH_INDICES[packet], "dim", -1)
        size = operand.shape[dim] if operand.dim() else 1
        return Values(0, fold("-", analysis.expr(symbol_of(size)), 1))
    return None


_WITH_INDICES = {aten.sort: 1, aten.topk: 2, aten.max: 1, aten.min: 1, aten.kthvalue: 2}


def _repeated(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    """Of counts alone: each position as often as its count says; else the same values, repeated."""
    if node.target is not aten.repeat_interleave.Tensor:
        values = analysis.values(node.args[0])
        return values if values is None else replace(values, axes=None)
    (length,) = _shape(node.args[0])
    return Values(0, fold("-", analysis.expr(symbol_of(length)), 1))


def _checked(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    """What has passed a check: the values that it looked at, or as far as it lets them through."""
    index, size, wraps, _ = node.args
    values = analysis.values(index)
    if values is not None:
        return values
    length = analysis.number(size)
    return Values(fold("-", 0, length) if wraps else 0, fold("-", length, 1))


def _cumsum(analysis: _Analysis, node: torch.fx.Node) -> Values | None:
    source = analysis.values(node.args[0])
    if source is None or source.leaf is not None:
        return None
    length = analysis.expr(symbol_of(_shape(node.args[0])[node.args[1]]))
    lo = 0 if source.lo == 0 else ("min", source.lo, fold("*", source.lo, length))
    return Values(lo, ("max", source.hi, fold("*", source.hi, length)))


_RULES: dict[Any, Callable[[_Analysis, torch.fx.Node], Values | None]] = {
    aten.arange: _arange,
    aten.add: _add,
    aten.add_: _add,
    aten.sub: _sub,
    aten.sub_: _sub,
    aten.mul: _mul,
    aten.clamp: _clamp,
    aten.clamp_min: _clamp_min,
    aten.clamp_max: _clamp_max,
    aten.where: _where,
    aten.cat: _cat,
    aten.stack: _cat,
    aten.full: _full(1),
    aten.full_like: _full(1),
    aten.new_full: _full(2),
    aten.scalar_tensor: _full(0),
    aten.zeros: _constant(0),
    aten.zeros_like: _constant(0),
    aten.new_zeros: _constant(0),
    aten.ones: _constant(1),
    aten.ones_like: _constant(1),
    aten.new_ones: _constant(1),
    aten.remainder: _remainder,
    aten.argmax: _position,
    aten.argmin: _position,
    aten.cumsum: _cumsum,
    aten.repeat_interleave: _repeated,
    CHECK_INDEX.overloadpacket: _checked,
}
