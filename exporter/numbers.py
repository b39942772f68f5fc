"""Conditions on numbers that the graph computes: `torch._check` on ``.item()``, and on how many.

Nobody can check them before a call. Each becomes arithmetic on tensors in the graph, whose answer the
compiled code looks at: where the number is made, before it sizes anything, and once more where results
are given back, so that a number of which nothing else is used is looked at, too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode

from ..artifacts.contract import ComputedGuard, Guard, Origin
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import Expr, dims_of, line_of, render
from ..lowering.checks import REQUIRE
from ..lowering.locations import user_location
from .assertions import require
from .computed import ITEMS, OF_A_TENSOR, Number, number_of
from .trace import Trace

aten = torch.ops.aten

_WHERE_IT_ENDS = ("for x[:n], first torch._check(n >= 0) and torch._check(n <= x.shape[0])",)


def number_checks(
    traced: Trace,
    numbers: Mapping[str, torch.fx.Node],
    guards: Sequence[Guard],
    assertions: Sequence[tuple[torch.fx.Node, str]],
    first: int,
) -> tuple[ComputedGuard, ...]:
    """Make conditions on computed numbers checks in the compiled code: the graph is changed.

    Args:
        numbers: by the names that ``guards`` call them, the nodes that give them.
        guards: conditions over those names and the user's dims.
        assertions: those of the graph that are about floats, and what they say.
        first: the number of the first check.

    Raises:
        ExportError: TC211, a condition that the graph cannot compute; all such are listed.
    """
    made: list[ComputedGuard] = []
    refused: list[Diagnostic] = []
    for guard in guards:
        what = render(guard.expr)
        try:
            _check(traced, numbers, guard, first + len(made))
        except _NoForm as error:
            refused.append(_refusal(what, error, guard.origin))
            continue
        made.append(ComputedGuard(what, None, False, guard.origin, assertion=True))
    for node, what in assertions:
        origin = Origin("an assertion of the model", user_location(node.meta.get("stack_trace")))
        try:
            with traced.program.graph.inserting_before(node):
                arithmetic = _Arithmetic(traced, {}, node, torch.float64)
                holds = arithmetic.condition_of_graph(node.args[0])
        except _NoForm as error:
            refused.append(_refusal(what, error, origin))
            continue
        require(traced, holds, node, first + len(made))
        made.append(ComputedGuard(what, None, False, origin, assertion=True))
    if refused:
        raise ExportError(refused)
    if made:
        _sweep(traced.program.graph)
        traced.program.graph_module.recompile()
    return tuple(made)


class _NoForm(Exception):
    """Why a condition cannot be computed; ``tries`` are what to do about it."""

    def __init__(self, why: str, tries: tuple[str, ...] = OF_A_TENSOR) -> None:
        super().__init__(why)
        self.tries = tries


def _refusal(condition: str, why: _NoForm, origin: Origin) -> Diagnostic:
    return Diagnostic(
        "TC211",
        f"the trace assumes {condition}, which cannot be checked before a call",
        location=origin.location,
        notes=(str(why),),
        tries=why.tries,
    )


def _check(traced: Trace, numbers: Mapping[str, torch.fx.Node], guard: Guard, check: int) -> None:
    order = {node: place for place, node in enumerate(traced.program.graph.nodes)}
    known: dict[str, Number] = {}
    for name in sorted(dims_of(guard.expr) & numbers.keys()):
        found = number_of(numbers[name])
        if found is None:
            is_slice = numbers[name].target is aten.slice.Tensor
            tries = _WHERE_IT_ENDS if is_slice else OF_A_TENSOR
            raise _NoForm(f"{name} is computed from data", tries)
        known[name] = found
    last = max(known.values(), key=lambda each: order[each.node])
    graph = traced.program.graph
    with graph.inserting_before(last.node):
        arithmetic = _Arithmetic(traced, known, last.node, torch.int64)
        holds = arithmetic.condition(guard.expr)
        kept = graph.call_function(REQUIRE, (last.source, holds, check))
        kept.meta = {**arithmetic.said, "val": last.source.meta["val"]}
    last.replace(kept)
    require(traced, holds, last.node, check)


def _sweep(graph: torch.fx.Graph) -> None:
    """Without the assertions, which are checks now or guards, and the numbers that only they used."""
    for node in reversed(graph.nodes):
        value = node.meta.get("val")
        is_number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        unused = node.op == "call_function" and not node.users and is_number
        if unused or node.target is aten._assert_scalar.default:
            graph.erase_node(node)


# --- arithmetic -----------------------------------------------------------------------------------


_COMPARED = {
    "==": aten.eq.Tensor, "!=": aten.ne.Tensor, "<": aten.lt.Tensor, "<=": aten.le.Tensor,
    ">": aten.gt.Tensor, ">=": aten.ge.Tensor,
}  # fmt: skip
_JOINED = {"and": aten.logical_and.default, "or": aten.logical_or.default}
_COMPUTED = {
    "+": aten.add.Tensor, "-": aten.sub.Tensor, "*": aten.mul.Tensor, "min": aten.minimum.default,
    "max": aten.maximum.default, "//": aten.floor_divide.default, "%": aten.remainder.Tensor,
}  # fmt: skip
_MAY_OVERFLOW = ("+", "-", "*")

# What a trace computes of floats.
_OF_FLOATS = {
    operator.eq: aten.eq.Tensor, operator.ne: aten.ne.Tensor, operator.lt: aten.lt.Tensor,
    operator.le: aten.le.Tensor, operator.gt: aten.gt.Tensor, operator.ge: aten.ge.Tensor,
    operator.add: aten.add.Tensor, operator.sub: aten.sub.Tensor, operator.mul: aten.mul.Tensor,
    operator.and_: aten.logical_and.default, operator.or_: aten.logical_or.default,
    operator.truediv: aten.div.Tensor,
}  # fmt: skip
_CONDITIONS = (*_COMPARED.values(), *_JOINED.values())


class _Arithmetic:
    """Numbers and conditions as tensors without axes, put into the graph before ``place``."""

    def __init__(
        self,
        traced: Trace,
        numbers: Mapping[str, Number],
        place: torch.fx.Node,
        dtype: torch.dtype,
    ) -> None:
        self.traced, self.numbers, self.place, self.dtype = traced, numbers, place, dtype
        self.graph = traced.program.graph
        values = [node.meta.get("val") for node in self.graph.nodes]
        self.mode = detect_fake_mode([each for each in values if isinstance(each, torch.Tensor)])
        self.said = {
            key: place.meta[key] for key in ("stack_trace", "nn_module_stack") if key in place.meta
        }
        self.within: list[torch.fx.Node] = []  # what must hold beside, for numbers to be Python's

    # Nodes.

    def call(self, op: Any, *args: Any, dtype: torch.dtype, **options: Any) -> torch.fx.Node:
        assert self.mode is not None
        node = self.graph.call_function(op, args, options)
        with self.mode:
            node.meta = {**self.said, "val": torch.empty((), dtype=dtype)}
        return node

    def cast(self, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        value = node.meta["val"]
        if value.dtype == dtype:
            return node
        made = self.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
        assert self.mode is not None
        with self.mode:  # not `value.to`, which would ask how large the tensor is, and assume it
            made.meta = {**self.said, "val": torch.empty(value.shape, dtype=dtype)}
        return made

    def reshaped(self, node: torch.fx.Node) -> torch.fx.Node:
        value = node.meta["val"]
        if value.dim() == 0:
            return node
        return self.call(aten.reshape.default, node, [], dtype=value.dtype)

    def filled(self, number: Any, dtype: torch.dtype) -> torch.fx.Node:
        node = self.call(aten.full.default, [], number, dtype=dtype)
        node.kwargs = {"dtype": dtype}
        return node

    # Of expressions.

    def condition(self, expr: Expr) -> torch.fx.Node:
        """A bool; false, too, where a number on the way is too large to be exact."""
        return self._and_within(self._condition(expr))

    def _and_within(self, holds: torch.fx.Node) -> torch.fx.Node:
        for each in self.within:
            holds = self.call(aten.logical_and.default, holds, each, dtype=torch.bool)
        return holds

    def _condition(self, expr: Expr) -> torch.fx.Node:
        assert isinstance(expr, tuple)
        op = expr[0]
        if op in _COMPARED:
            operands = [self.number(operand) for operand in expr[1:]]
            return self.call(_COMPARED[op], *operands, dtype=torch.bool)
        made = [self._condition(operand) for operand in expr[1:]]
        if op == "not":
            return self.call(aten.logical_not.default, made[0], dtype=torch.bool)
        holds = made[0]
        for other in made[1:]:
            holds = self.call(_JOINED[op], holds, other, dtype=torch.bool)
        return holds

    def number(self, expr: Expr) -> torch.fx.Node:
        if isinstance(expr, int):
            return self.filled(expr, self.dtype)
        if isinstance(expr, str):
            known = self.numbers.get(expr)
            return self._dim(expr) if known is None else self._known(known)
        op = expr[0]
        made, *others = (self.number(operand) for operand in expr[1:])
        for other in others:
            made = self.call(_COMPUTED[op], made, other, dtype=self.dtype)
        if op in _MAY_OVERFLOW and self.dtype == torch.int64:
            self._watch(expr)
        return made

    def _known(self, number: Number) -> torch.fx.Node:
        if number.kind == "value":
            return self._value(number.source)
        kind = torch.bool if number.kind == "hits" else torch.int64
        wide = self.cast(self.cast(number.source, kind), torch.int64)
        return self.cast(self.call(aten.sum.default, wide, dtype=torch.int64), self.dtype)

    def _value(self, node: torch.fx.Node) -> torch.fx.Node:
        return self.reshaped(self.cast(node, self.dtype))

    def _watch(self, expr: Expr) -> None:
        """Let the condition hold only where ``expr``, computed in doubles, is what int64 holds."""
        wide = torch.float64
        twin = _Arithmetic(self.traced, self.numbers, self.place, wide).number(expr)
        self._below(twin, 2.0**62)  # far enough from the end of int64 for the error of a double

    def _below(self, number: torch.fx.Node, most: float) -> None:
        size = self.call(aten.abs.default, number, dtype=torch.float64)
        end = self.filled(most, torch.float64)
        self.within.append(self.call(aten.lt.Tensor, size, end, dtype=torch.bool))

    def _dim(self, name: str) -> torch.fx.Node:
        """A dim of the user's, read from an input of the graph."""
        nodes = {node.name: node for node in self.graph.find_nodes(op="placeholder")}
        inputs = [nodes[placeholder] for placeholder in self.traced.placeholders]
        for node, shape in zip(inputs, self.traced.shapes, strict=True):
            for axis, declared in enumerate(shape or ()):
                line = line_of(declared, name) if dims_of(declared) == {name} else None
                if line is not None and line[0] >= 1:
                    return self._scaled(node, axis, *line)
        for node, (path, leaf) in zip(inputs, self.traced.bound.leaves, strict=True):
            if name in (path, f"value({path})") and isinstance(leaf, torch.Tensor):
                return self._value(node)
        raise _NoForm(f"{name} is the size of no axis")

    def _scaled(self, node: torch.fx.Node, axis: int, scale: int, offset: int) -> torch.fx.Node:
        size = self.graph.call_function(aten.sym_size.int, (node, axis))
        size.meta = {**self.said, "val": node.meta["val"].shape[axis]}
        made = self.filled(size, self.dtype)
        if offset:
            away = self.filled(offset, self.dtype)
            made = self.call(aten.sub.Tensor, made, away, dtype=self.dtype)
        if scale != 1:
            by = self.filled(scale, self.dtype)
            made = self.call(aten.floor_divide.default, made, by, dtype=self.dtype)
        return made

    # Of the graph.

    def condition_of_graph(self, node: Any) -> torch.fx.Node:
        """A condition that the graph computes of Python's numbers, of tensors."""
        return self._and_within(self._of_graph(node))

    def _of_graph(self, node: Any) -> torch.fx.Node:
        if isinstance(node, (int, float)):
            return self.filled(float(node), self.dtype)
        if not isinstance(node, torch.fx.Node):
            raise _NoForm(f"{node} is no number")
        if node.target in ITEMS:
            source: Any = node.args[0]
            made = self._value(source)
            if not source.meta["val"].is_floating_point():
                self._below(made, 2.0**53)
            return made
        if node.target is aten.sym_size.int:
            return self.filled(node, self.dtype)
        if node.target is torch.sym_float:
            return self._of_graph(node.args[0])
        if node.target is operator.neg:
            return self.call(aten.neg.default, self._of_graph(node.args[0]), dtype=self.dtype)
        if node.target is torch.sym_not:
            made = self._of_graph(node.args[0])
            return self.call(aten.logical_not.default, made, dtype=torch.bool)
        op = _OF_FLOATS.get(node.target)
        if op is None:
            name = getattr(node.target, "__name__", node.target)
            raise _NoForm(f"{name} of a float that the model computes")
        operands = [self._of_graph(operand) for operand in node.args]
        if node.target is operator.truediv:  # of 0, Python raises
            zero = self.filled(0.0, self.dtype)
            self.within.append(self.call(aten.ne.Tensor, operands[1], zero, dtype=torch.bool))
        return self.call(op, *operands, dtype=torch.bool if op in _CONDITIONS else self.dtype)
