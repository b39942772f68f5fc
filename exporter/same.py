"""Whether two traces of one model are the same graph at given sizes.

Two graphs are walked from their results back, and from what they check and draw. Only what was seen
to be equal counts as equal: ops by their targets and arguments, inputs by what they stand for,
constants bit by bit, the bodies of branches and loops as the graphs that they are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..artifacts.expr import Expr, dims_of, evaluate
from .assumptions import Assumptions
from .graph_side import (
    SHAPED,
    arguments,
    attribute,
    has_effect,
    is_number,
    kind_of,
    output_of,
    side_of,
)
from .prove import Span, holds
from .ranges import Request
from .settled import same_bits
from .signs import sign_shows, without_signs
from .trace import Trace, symbol_of
from .translate import Untranslatable, to_expr


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
    one = side_of(general, general_assumptions, point, settle)
    two = side_of(special, special_assumptions, point, settle)
    box = {name: request.span for name, request in requests.items()}
    box |= {name: Span(size, size) for name, size in point.items()}
    # Pairs of nodes, and whether the signs of zeros in them count.
    pending: list[tuple[torch.fx.Node, torch.fx.Node, bool]] = []
    compared: dict[tuple[torch.fx.Node, torch.fx.Node], bool] = {}
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
            return both and equal_nodes(a, b, True)
        if dims_of(mine) <= point.keys() and isinstance(other, int):
            return evaluate(mine, point) == other
        return mine == other or holds(("==", mine, other), box).status == "proved"

    def equal_nodes(a: torch.fx.Node, b: torch.fx.Node, signs: bool) -> bool:
        """As far as is seen at once; the rest is seen later."""
        a, b = one.origin(a), two.origin(b)
        if a in one.known and b in two.known:
            return _same_values(one.known[a], two.known[b], signs)
        if (a, b) not in compared or (signs and not compared[a, b]):
            compared[a, b] = signs
            pending.append((a, b, signs))
        return True

    def equal(a: Any, b: Any, signs: bool = True) -> bool:
        """Whether two arguments are; of nodes it is seen later."""
        if is_number(a) and is_number(b):
            return equal_numbers(a, b)
        if isinstance(a, torch.fx.Node) and isinstance(b, torch.fx.Node):
            return equal_nodes(a, b, signs)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(equal(x, y, signs) for x, y in zip(a, b, strict=True))
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
        pending.extend((*each, True) for each in [(output_of(mine), output_of(other)), *pairs])
        return True

    def same(mine: torch.fx.Node, other: torch.fx.Node, signs: bool) -> bool:
        if mine.op != other.op or not alike(mine, other):
            return False
        if mine.op == "placeholder":
            if mine.graph is one.graph and other.graph is two.graph:
                return _same_input(mine, other, general, special)
            return one.place(mine) == two.place(other)
        if mine.op == "output":
            return equal(mine.args, other.args)
        if mine.op == "get_attr":
            values, others = attribute(mine), attribute(other)
            if isinstance(values, torch.fx.GraphModule):
                return isinstance(others, torch.fx.GraphModule) and same_bodies(
                    values.graph, others.graph
                )
            return _same_values(values, others, signs)
        if mine.op != "call_function" or kind_of(mine) != kind_of(other):
            return False
        if (has_effect(mine) or has_effect(other)) and partner.get(mine) is not other:
            return False
        if kind_of(mine) in SHAPED:
            # Said by the shape of the result: an argument may be -1.
            shapes = [tuple(each.meta["val"].shape) for each in (mine, other)]
            return equal(one.base(mine), two.base(other), signs) and equal(shapes[0], shapes[1])
        args = [one.args.get(mine) or arguments(mine), two.args.get(other) or arguments(other)]
        return len(args[0]) == len(args[1]) and all(
            equal(a, b, sign_shows(mine, position, signs))
            for position, (a, b) in enumerate(zip(*args, strict=True))
        )

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
    same value (its name says only in which order it was met)."""
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


def _same_values(one: Any, two: Any, signs: bool) -> bool:
    """Whether two tensors hold the same bits, or the same but for signs of zeros."""
    return same_bits(one, two) or (not signs and same_bits(without_signs(one), without_signs(two)))


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
