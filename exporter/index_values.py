"""The values that integer tensors of a graph may have: intervals over the dims, or over an input."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ..artifacts.contract import Part
from ..artifacts.expr import Expr, dims_of
from ..artifacts.prove import Span, bounds
from ..lowering.checks import CHECK_INDEX
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


def shape_of(node: Any) -> Any:
    """The sizes of a node's tensor, as torch has them."""
    return node.meta["val"].shape


class Analysis:
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
        joined = _joined_there(node)
        if joined is not None:
            return _union(self, joined)
        values = self.values(node.args[0])
        if values is None or values.leaf is None:
            return values
        source, result = shape_of(node.args[0]), shape_of(node)
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


def _joined_there(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Of what a concatenation joins, the tensors that a slice or position along its axis takes of;
    None where the node takes of none, or where that depends on sizes."""
    source, dim = node.args[0], int(_argument(node, 1, "dim", 0))
    packet = getattr(source.target, "overloadpacket", None)
    if packet not in (aten.cat, aten.stack):
        return None
    rank, length = len(shape_of(source)), shape_of(source)[dim]
    parts = source.args[0]
    if packet is aten.stack:
        sizes = [1] * len(parts)
    else:  # of one axis and no elements: torch leaves such a one out
        sizes = [shape_of(each)[dim] if len(shape_of(each)) == rank else 0 for each in parts]
    along = int(_argument(source, 1, "dim", 0))
    if along % rank != dim % rank or not all(isinstance(each, int) for each in sizes):
        return None
    if node.target.overloadpacket is aten.select:
        start = _argument(node, 2, "index")
        taken = range(length)[start : start + 1 or None] if isinstance(start, int) else None
    elif node.target.overloadpacket is aten.slice:
        bounds_of = [_argument(node, at, name) for at, name in ((2, "start"), (3, "end"))]
        plain = all(each is None or isinstance(each, int) for each in bounds_of)
        taken = range(length)[slice(*bounds_of)] if plain else None
    else:
        taken = None
    if not taken:
        return None
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    return [
        each
        for each, size, end in zip(parts, sizes, ends, strict=True)
        if end > taken[0] and end - size <= taken[-1]
    ]


def _argument(node: torch.fx.Node, position: int, name: str, default: Any = None) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _arange(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    schema = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(schema, node.args, strict=False)), **node.kwargs}
    start = analysis.number(given.get("start", 0))
    end = analysis.number(given["end"])
    step = analysis.number(given.get("step", 1))
    if not isinstance(step, int) or step < 1:
        return None
    return Values(start, fold("-", end, 1))


def _add(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    a, b = analysis.values(node.args[0]), analysis.values(node.args[1])
    if a is None or b is None or node.kwargs.get("alpha", 1) != 1:
        return None
    if a.leaf is not None and b.leaf is not None:
        return None
    leaf = a.leaf if a.leaf is not None else b.leaf
    whole = a if a.leaf is not None else b
    return Values(fold("+", a.lo, b.lo), fold("+", a.hi, b.hi), leaf, whole.parts, None)


def _sub(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    a, b = analysis.values(node.args[0]), analysis.values(node.args[1])
    if a is None or b is None or b.leaf is not None or node.kwargs.get("alpha", 1) != 1:
        return None
    return Values(fold("-", a.lo, b.hi), fold("-", a.hi, b.lo), a.leaf, a.parts, None)


def _mul(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    a, b = analysis.values(node.args[0]), analysis.values(node.args[1])
    if a is None or b is None or a.leaf is not None or b.leaf is not None:
        return None
    corners = [fold("*", x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    if all(isinstance(corner, int) for corner in corners):
        return Values(min(corners), max(corners))
    return Values(("min", *corners), ("max", *corners))


def _clamp(analysis: Analysis, node: torch.fx.Node) -> Values | None:
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


def _limited(op: str) -> Callable[[Analysis, torch.fx.Node], Values | None]:
    """Of clamp_min ("max") and clamp_max ("min")."""

    def rule(analysis: Analysis, node: torch.fx.Node) -> Values | None:
        source = analysis.values(node.args[0])
        limit = analysis.number(node.args[1])
        if source is None or source.leaf is not None:
            return None
        return Values(fold(op, source.lo, limit), fold(op, source.hi, limit))

    return rule


def _where(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    return _union(analysis, node.args[1:3])


def _cat(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    return _union(analysis, node.args[0])


def _union(analysis: Analysis, nodes: Any) -> Values | None:
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


def _full(position: int) -> Callable[[Analysis, torch.fx.Node], Values | None]:
    def rule(analysis: Analysis, node: torch.fx.Node) -> Values | None:
        number = analysis.number(node.args[position])
        return Values(number, number)

    return rule


def _constant(number: int) -> Callable[[Analysis, torch.fx.Node], Values | None]:
    return lambda analysis, node: Values(number, number)


def _remainder(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    divisor = analysis.number(node.args[1])
    if isinstance(divisor, int) and divisor < 1:
        return None
    return Values(0, fold("-", divisor, 1))


def _position(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    """argmax, argmin: a position along the axis (or in the whole tensor)."""
    source = node.args[0].meta["val"]
    dim = _argument(node, 1, "dim")
    size = source.numel() if dim is None else source.shape[dim]
    return Values(0, fold("-", analysis.expr(symbol_of(size)), 1))


def _getitem(analysis: Analysis, node: torch.fx.Node) -> Values | None:
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


def _repeated(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    """Of counts alone: each position as often as its count says; else the same values, repeated."""
    if node.target is not aten.repeat_interleave.Tensor:
        values = analysis.values(node.args[0])
        return values if values is None else replace(values, axes=None)
    (length,) = shape_of(node.args[0])
    return Values(0, fold("-", analysis.expr(symbol_of(length)), 1))


def _checked(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    """What has passed a check: the values that it looked at, or as far as it lets them through."""
    index, size, wraps, _ = node.args
    values = analysis.values(index)
    if values is not None:
        return values
    length = analysis.number(size)
    return Values(fold("-", 0, length) if wraps else 0, fold("-", length, 1))


def _cumsum(analysis: Analysis, node: torch.fx.Node) -> Values | None:
    source = analysis.values(node.args[0])
    if source is None or source.leaf is not None:
        return None
    length = analysis.expr(symbol_of(shape_of(node.args[0])[node.args[1]]))
    lo = 0 if source.lo == 0 else ("min", source.lo, fold("*", source.lo, length))
    return Values(lo, ("max", source.hi, fold("*", source.hi, length)))


_RULES: dict[Any, Callable[[Analysis, torch.fx.Node], Values | None]] = {
    aten.arange: _arange,
    aten.add: _add,
    aten.add_: _add,
    aten.sub: _sub,
    aten.sub_: _sub,
    aten.mul: _mul,
    aten.clamp: _clamp,
    aten.clamp_min: _limited("max"),
    aten.clamp_max: _limited("min"),
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
