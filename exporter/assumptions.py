"""What a trace takes for granted, read from every place where torch keeps it, in the user's dims.

The places: the guards of the shape environment, the ranges of its symbols (which differ from those
of the program: both are read), the shapes of the graph's inputs after replacement, and the run-time
assertions on values. What torch does not keep, the preconditions of kernels, is in `indices`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any

import msgspec
import sympy
import torch
from torch.export.exported_program import _get_shape_env
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ..artifacts.contract import Guard, Origin
from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, dims_of, evaluate, render
from ..artifacts.prove import bounds
from ..lowering.locations import user_location
from .computed import ITEMS, bound_numbers, is_float, searched, tries_for
from .lines import location_of
from .prove import Span, holds
from .ranges import Request
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, simplified, to_expr
from .words import Words


@dataclass(frozen=True)
class Assumptions:
    """``symbols``: torch's symbols in the user's dims. ``values``: dims that are read from the value
    of an integer input, by name, with the index of the leaf. ``guards``: all that must hold before a
    call. ``words``: what the symbols are called in messages.

    ``numbers``: symbols that the graph finds values for as it runs, by the names that ``computed``
    calls them: what must hold of them, beside the ``assertions`` of the graph that are about floats,
    each in words. ``nodes`` gives, by these names, the node that computes each number."""

    symbols: dict[sympy.Symbol, Expr]
    values: dict[str, int]
    guards: tuple[Guard, ...]
    words: Words
    numbers: dict[sympy.Symbol, Expr] = field(default_factory=dict)
    computed: tuple[Guard, ...] = ()
    assertions: tuple[tuple[torch.fx.Node, str], ...] = ()
    nodes: dict[str, torch.fx.Node] = field(default_factory=dict)


def extract(traced: Trace, requests: Mapping[str, Request]) -> Assumptions:
    """Read the assumptions of a fresh trace (never of a program that was saved and loaded).

    Raises:
        ExportError: TC211, an assumption without a form.
    """
    env = _get_shape_env(traced.program.graph_module)
    if env is None:
        return Assumptions({}, {}, (), Words(traced, {}))
    symbols, equations = _bind_axes(traced, env)
    values = _bind_values(traced, symbols)
    guards: list[Guard] = []
    words = Words(traced, symbols, env)
    numbers, nodes = _numbers(traced, symbols, words)
    for actual, declared in equations:
        guards.append(_equation(actual, declared, symbols, env, words))
    raw = [(guard.expr, Origin("the trace", location_of(guard.sloc))) for guard in env.guards]
    found, floats = _runtime_assertions(traced, env, words)
    raw += found
    lows = {name: request.span.lo for name, request in requests.items()}

    def is_positive(symbol: sympy.Symbol) -> bool:
        name = symbols.get(symbol)
        return isinstance(name, str) and lows.get(name, 0) >= 1

    named = {**symbols, **numbers}
    for condition, origin in raw:
        guard = _translated(env.replace(condition), named, origin, is_positive, words)
        if guard is not None:
            parts = guard.expr[1:] if guard.expr[0] == "and" else (guard.expr,)
            guards += [Guard(part, guard.origin) for part in parts]
    guards += _replaced(traced, env, named, words)
    guards += _ranges(traced, env, named)
    if not traced.zeros:
        origin = Origin("the trace takes no size to be 0")
        axes = {axis for shape in traced.shapes for axis in shape or () if dims_of(axis)}
        guards += [Guard((">=", axis, 1), origin) for axis in sorted(axes, key=render)]
    computed = [guard for guard in guards if dims_of(guard.expr) & nodes.keys()]
    spans = _counts(traced, requests, named, numbers)
    return Assumptions(
        symbols,
        values,
        distinct([guard for guard in guards if guard not in computed]),
        words,
        numbers,
        tuple(guard for guard in distinct(computed) if not _always_true(guard.expr, spans)),
        floats,
        nodes,
    )


def _bind_axes(traced: Trace, env: Any) -> tuple[dict[sympy.Symbol, Expr], list[tuple[Any, Expr]]]:
    """Which dim each symbol is, and the axes that torch expressed through other symbols."""
    nodes = {node.name: node for node in traced.program.graph.nodes if node.op == "placeholder"}
    symbols: dict[sympy.Symbol, Expr] = {}
    equations: list[tuple[Any, Expr]] = []
    for axes, name in zip(traced.shapes, traced.placeholders, strict=True):
        if axes is None:
            continue
        for size, declared in zip(nodes[name].meta["val"].shape, axes, strict=True):
            actual = env.replace(symbol_of(size))
            if isinstance(actual, sympy.Symbol) and actual not in symbols:
                symbols[actual] = declared
            elif dims_of(declared):
                equations.append((actual, declared))
    return symbols, equations


def _bind_values(traced: Trace, symbols: dict[sympy.Symbol, Expr]) -> dict[str, int]:
    """``.item()`` of an integer input with one element: its symbol is the input's value."""
    inputs = {name: index for index, name in enumerate(traced.placeholders)}
    values: dict[str, int] = {}
    for symbol, node in bound_numbers(traced.program):
        value = node.meta.get("val")
        if node.target not in ITEMS or not isinstance(value, torch.SymInt):
            continue
        source: Any = node.args[0]
        if source.name in inputs:
            index = inputs[source.name]
            path = traced.bound.leaves[index][0]
            name = f"value({path})" if path in traced.sizes else path
            symbols[symbol] = name
            values[name] = index
    return values


def _equation(
    actual: Any, declared: Expr, symbols: Mapping[sympy.Symbol, Expr], env: Any, words: Words
) -> Guard:
    """An axis that torch knows as ``actual`` (a number, where the trace fixed it) must be what the
    user declared."""
    where = _equation_location(actual, env)
    try:
        return Guard(("==", declared, to_expr(actual, symbols)), Origin("equal sizes", where))
    except Untranslatable as error:
        condition = f"{render(declared)} == {words.of(actual)}"
        raise ExportError(_no_form(condition, words.why(error), where)) from None


def _equation_location(actual: Any, env: Any) -> Location | None:
    """The user's line that made torch express a size through ``actual``."""
    for guard in env.guards:
        if not isinstance(guard.expr, sympy.Eq):
            continue
        shared = actual.free_symbols & guard.expr.free_symbols
        if shared or (actual.is_Integer and actual in guard.expr.args):
            location = location_of(guard.sloc)
            if location is not None:
                return location
    return None


def _runtime_assertions(
    traced: Trace, env: Any, words: Words
) -> tuple[list[tuple[Any, Origin]], tuple[tuple[torch.fx.Node, str], ...]]:
    """Conditions on values, from the environment and from the assertions left in the graph; and of
    those about floats the nodes, with the user's words for them.

    Raises:
        ExportError: TC211, an assertion that never holds, or one about floats that is in no graph.
    """
    found: list[tuple[Any, Origin]] = []
    floats: dict[Any, torch.fx.Node] = {}
    for node in traced.program.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            condition = node.args[0]
            value = condition.meta["val"] if isinstance(condition, torch.fx.Node) else condition
            where = user_location(node.meta.get("stack_trace"))
            if isinstance(value, torch.SymBool) and _about_floats(value.node.expr):
                floats.setdefault(_canonical(value.node.expr), node)
            elif isinstance(value, torch.SymBool):
                found.append((value.node.expr, Origin("an assertion of the model", where)))
            elif value is False:
                raise ExportError(
                    Diagnostic("TC211", "an assertion of the model never holds", location=where)
                )
    origin = Origin("an assertion of the model")
    for assertions in env.deferred_runtime_asserts.values():
        for each in assertions:
            if not _about_floats(each.expr):
                found.append((each.expr, origin))
            elif _canonical(env.replace(each.expr)) not in floats:
                raise ExportError(_uncheckable(each.expr, "no line of it is left", origin, words))
    # An assertion from the graph has the user's line; it replaces the same one without.
    ordered = sorted(found, key=lambda item: item[1].location is None)
    return ordered, tuple((node, words.of(condition)) for condition, node in floats.items())


def _about_floats(condition: Any) -> bool:
    return any(is_float(symbol) for symbol in condition.free_symbols)


def _canonical(condition: Any) -> Any:
    """The same of two ways to write a condition: ``0 < x`` is ``x > 0.0``."""
    whole = {each: sympy.Integer(int(each)) for each in condition.atoms(sympy.Float)
             if float(each).is_integer()}  # fmt: skip
    condition = condition.xreplace(whole)
    return (
        condition.canonical
        if isinstance(condition, sympy.core.relational.Relational)
        else condition
    )


def _numbers(
    traced: Trace, symbols: Mapping[sympy.Symbol, Expr], words: Words
) -> tuple[dict[sympy.Symbol, Expr], dict[str, torch.fx.Node]]:
    """What the integers are called that the graph finds out as it runs, and where it does."""
    names: dict[sympy.Symbol, Expr] = {}
    nodes: dict[str, torch.fx.Node] = {}
    for symbol, node in bound_numbers(traced.program):
        if symbol not in symbols and not is_float(symbol):
            name = words.called(symbol.name)
            names[symbol] = name
            nodes[name] = node
    return names, nodes


def _replaced(
    traced: Trace,
    env: Any,
    named: Mapping[sympy.Symbol, Expr],
    words: Words,
) -> list[Guard]:
    """Numbers that torch has replaced by what the model says that they are equal to."""
    guards = []
    for symbol, node in bound_numbers(traced.program):
        name, equal = named.get(symbol), env.replace(symbol)
        if name is None or equal == symbol:
            continue
        origin = Origin("an assertion of the model", user_location(node.meta.get("stack_trace")))
        try:
            guards.append(Guard(fold("==", name, to_expr(equal, named)), origin))
        except Untranslatable as error:
            raise ExportError(
                _uncheckable(sympy.Eq(symbol, equal), words.why(error), origin, words)
            ) from None
    return guards


def _translated(
    condition: Any,
    symbols: Mapping[sympy.Symbol, Expr],
    origin: Origin,
    is_positive: Any,
    words: Words,
) -> Guard | None:
    if condition in (True, sympy.true):
        return None
    try:
        expr = to_expr(simplified(condition, is_positive), symbols)
    except Untranslatable as error:
        why = words.why(error)
        raise ExportError(_uncheckable(condition, why, origin, words)) from None
    if not dims_of(expr) and not evaluate(expr, {}):
        raise ExportError(_no_form(words.of(condition), "it never holds", origin.location))
    return Guard(expr, origin) if dims_of(expr) else None


def _counts(
    traced: Trace,
    requests: Mapping[str, Request],
    named: Mapping[sympy.Symbol, Expr],
    numbers: Mapping[sympy.Symbol, Expr],
) -> dict[str, Span]:
    """Sizes that the graph finds out as it runs: none is negative, and of those that count which
    elements of a tensor are not zero, none is larger than the tensor."""
    box = {name: request.span for name, request in requests.items()}
    found: dict[str, Span] = {}
    for symbol, node in bound_numbers(traced.program):
        value, name = node.meta.get("val"), numbers.get(symbol)
        if not isinstance(value, (torch.Tensor, tuple, list)) or not isinstance(name, str):
            continue
        most, shapes = math.inf, searched(node)
        if shapes:
            with suppress(Untranslatable, KeyError):
                most = bounds(_elements(shapes, named), box)[1]
        found[name] = Span(0, None if math.isinf(most) else int(most))
    return found


def _elements(shapes: Sequence[torch.Size], named: Mapping[sympy.Symbol, Expr]) -> Expr:
    """How many elements there are at most in what shapes are broadcast to."""
    sizes = []
    for axis in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        exprs = dict.fromkeys(to_expr(symbol_of(size), named) for size in axis)
        sizes.append(reduce(lambda one, other: fold("max", one, other), exprs))
    return fold("*", *sizes)


def _always_true(condition: Expr, counted: Mapping[str, Span]) -> bool:
    """Whether a condition holds for whatever the counts in it come out as."""
    names = dims_of(condition)
    return names <= counted.keys() and holds(condition, counted).status == "proved"


def _uncheckable(condition: Any, why: str, origin: Origin, words: Words) -> Diagnostic:
    """A condition without a form; where numbers of the model's are in it, with their lines."""
    computed = words.lines(condition)
    where = origin.location or next((line for _, line in computed), None)
    found = _no_form(words.of(condition), why, where)
    lines = [f"{name}: {line.text}" for name, line in computed if line != where]
    return msgspec.structs.replace(found, notes=(*found.notes, *lines), tries=tries_for(condition))


def _no_form(condition: str, why: str, where: Location | None) -> Diagnostic:
    return Diagnostic(
        "TC211",
        f"the trace assumes {condition}, which cannot be checked before a call",
        location=where,
        notes=(why,),
    )


def _ranges(
    traced: Trace,
    env: Any,
    symbols: Mapping[sympy.Symbol, Expr],
) -> list[Guard]:
    """The ranges that torch narrowed its symbols to: both records are read, and intersected."""
    guards = []
    origin = Origin("the range of the trace")
    for symbol, expr in symbols.items():
        records = [env.var_to_range.get(symbol), traced.program.range_constraints.get(symbol)]
        for record in records:
            if record is None:
                continue
            # No size is negative; a value may be.
            least = 1 if symbol_is_type(symbol, SymT.SIZE) else -(2**48)
            if record.lower.is_Integer and int(record.lower) >= least:
                guards.append(Guard((">=", expr, int(record.lower)), origin))
            if record.upper.is_Integer and int(record.upper) < 2**48:
                guards.append(Guard(("<=", expr, int(record.upper)), origin))
    return [guard for guard in guards if dims_of(guard.expr)]


def distinct(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Each condition once, those with a user's line first."""
    ordered = sorted(guards, key=lambda guard: guard.origin.location is None)
    found: dict[Expr, Guard] = {}
    for guard in ordered:
        found.setdefault(guard.expr, guard)
    return tuple(found.values())
