"""What a trace takes for granted, read from every place where torch keeps it, in the user's dims.

The places: the guards of the shape environment, the ranges of its symbols (which differ from those
of the program: both are read), the shapes of the graph's inputs after replacement, and the run-time
assertions on values. What torch does not keep, the preconditions of kernels, is in `indices`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import sympy
import torch
from torch.export.exported_program import _get_shape_env

from ..artifacts.contract import Guard, Origin
from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, dims_of, evaluate, render
from ..artifacts.prove import bounds
from ..lowering.locations import user_location
from .lines import location_of
from .prove import Span, holds
from .ranges import Request
from .trace import Trace, symbol_of
from .translate import Untranslatable, simplified, to_expr
from .words import Words


@dataclass(frozen=True)
class Assumptions:
    """``symbols``: torch's symbols in the user's dims. ``values``: dims that are read from the value
    of an integer input, by name, with the index of the leaf. ``guards``: all that must hold. ``words``:
    what the symbols are called in messages."""

    symbols: dict[sympy.Symbol, Expr]
    values: dict[str, int]
    guards: tuple[Guard, ...]
    words: Words


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
    for actual, declared in equations:
        guards.append(_equation(actual, declared, symbols, env, words))
    raw = [(guard.expr, Origin("the trace", location_of(guard.sloc))) for guard in env.guards]
    raw += _runtime_assertions(traced, env)
    counted = _counts(traced, requests, symbols, env)
    lows = {name: request.span.lo for name, request in requests.items()}

    def is_positive(symbol: sympy.Symbol) -> bool:
        name = symbols.get(symbol)
        return isinstance(name, str) and lows.get(name, 0) >= 1

    for condition, origin in raw:
        guard = _translated(env.replace(condition), symbols, origin, is_positive, counted, words)
        if guard is not None:
            parts = guard.expr[1:] if guard.expr[0] == "and" else (guard.expr,)
            guards += [Guard(part, guard.origin) for part in parts]
    guards += _ranges(traced, env, symbols)
    if not traced.zeros:
        origin = Origin("the trace takes no size to be 0")
        axes = {axis for shape in traced.shapes for axis in shape or () if dims_of(axis)}
        guards += [Guard((">=", axis, 1), origin) for axis in sorted(axes, key=render)]
    return Assumptions(symbols, values, _distinct(guards), words)


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
    for node in traced.program.graph.nodes:
        if node.target not in (
            torch.ops.aten.item.default,
            torch.ops.aten._local_scalar_dense.default,
        ):
            continue
        source = node.args[0]
        value = node.meta.get("val")
        if not isinstance(value, torch.SymInt) or source.name not in inputs:
            continue
        index = inputs[source.name]
        path = traced.bound.leaves[index][0]
        symbol = value.node.expr
        if isinstance(symbol, sympy.Symbol) and symbol not in symbols:
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


def _runtime_assertions(traced: Trace, env: Any) -> list[tuple[Any, Origin]]:
    """Conditions on values, from the environment and from the assertions left in the graph."""
    found: list[tuple[Any, Origin]] = []
    for assertions in env.deferred_runtime_asserts.values():
        found += [(each.expr, Origin("an assertion of the model")) for each in assertions]
    for node in traced.program.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            condition = node.args[0]
            value = condition.meta["val"] if isinstance(condition, torch.fx.Node) else condition
            where = user_location(node.meta.get("stack_trace"))
            if isinstance(value, torch.SymBool):
                found.append((value.node.expr, Origin("an assertion of the model", where)))
            elif value is False:
                raise ExportError(
                    Diagnostic("TC211", "an assertion of the model never holds", location=where)
                )
    # An assertion from the graph has the user's line; it replaces the same one without.
    return sorted(found, key=lambda item: item[1].location is None)


def _translated(
    condition: Any,
    symbols: Mapping[sympy.Symbol, Expr],
    origin: Origin,
    is_positive: Any,
    counted: Mapping[sympy.Symbol, Span],
    words: Words,
) -> Guard | None:
    if condition in (True, sympy.true):
        return None
    try:
        expr = to_expr(simplified(condition, is_positive), symbols)
    except Untranslatable as error:
        if _always_true(condition, symbols, counted):
            return None
        raise ExportError(_uncheckable(condition, error, origin, words)) from None
    if not dims_of(expr) and not evaluate(expr, {}):
        raise ExportError(_no_form(words.of(condition), "it never holds", origin.location))
    return Guard(expr, origin) if dims_of(expr) else None


def _counts(
    traced: Trace,
    requests: Mapping[str, Request],
    symbols: Mapping[sympy.Symbol, Expr],
    env: Any,
) -> dict[sympy.Symbol, Span]:
    """Sizes that the graph finds out as it runs: none is negative, and of those that count which
    elements of a tensor are not zero, none is larger than the tensor."""
    box = {name: request.span for name, request in requests.items()}
    found: dict[sympy.Symbol, Span] = {}
    for node in traced.program.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        searched = _searched(node)
        most = math.inf
        if searched is not None:
            with suppress(Untranslatable, KeyError):
                most = bounds(to_expr(symbol_of(searched.numel()), symbols), box)[1]
        sizes = {symbol_of(size) for size in value.shape}
        for bound in node.meta.get("unbacked_bindings") or {}:
            count = env.replace(bound)
            if {bound, count} & sizes:
                found[count] = Span(0, None if math.isinf(most) else int(most))
    return found


def _searched(node: torch.fx.Node) -> torch.Tensor | None:
    """The tensor whose elements an op counts those of that are not zero."""
    if node.target in (torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default):
        return node.args[-1].meta["val"]
    if node.target is torch.ops.aten.index.Tensor:
        masks = [each for each in node.args[1] if each is not None]
        masks = [each for each in masks if each.meta["val"].dtype == torch.bool]
        return masks[0].meta["val"] if len(masks) == 1 else None
    return None


def _always_true(
    condition: Any, symbols: Mapping[sympy.Symbol, Expr], counted: Mapping[sympy.Symbol, Span]
) -> bool:
    """Whether a condition holds for whatever the counts in it come out as."""
    names: dict[sympy.Symbol, Expr] = {symbol: f"count {symbol}" for symbol in counted}
    try:
        expr = to_expr(condition, {**symbols, **names})
    except Untranslatable:
        return False
    box = {f"count {symbol}": span for symbol, span in counted.items()}
    return dims_of(expr) <= box.keys() and holds(expr, box).status == "proved"


def _uncheckable(condition: Any, error: Untranslatable, origin: Origin, words: Words) -> Diagnostic:
    """A condition without a form; where numbers of the model's are in it, with their lines."""
    computed = words.lines(condition)
    where = origin.location or next((line for _, line in computed), None)
    found = _no_form(words.of(condition), words.why(error), where)
    lines = [f"{name}: {line.text}" for name, line in computed if line != where]
    return msgspec.structs.replace(found, notes=(*found.notes, *lines))


def _no_form(condition: str, why: str, where: Location | None) -> Diagnostic:
    return Diagnostic(
        "TC211",
        f"the trace assumes {condition}, which cannot be checked before a call",
        location=where,
        notes=(why,),
    )


def _ranges(traced: Trace, env: Any, symbols: Mapping[sympy.Symbol, Expr]) -> list[Guard]:
    """The ranges that torch narrowed its symbols to: both records are read, and intersected."""
    guards = []
    origin = Origin("the range of the trace")
    for symbol, expr in symbols.items():
        records = [env.var_to_range.get(symbol), traced.program.range_constraints.get(symbol)]
        for record in records:
            if record is None:
                continue
            if record.lower.is_Integer and int(record.lower) > 0:
                guards.append(Guard((">=", expr, int(record.lower)), origin))
            if record.upper.is_Integer and int(record.upper) < 2**48:
                guards.append(Guard(("<=", expr, int(record.upper)), origin))
    return [guard for guard in guards if dims_of(guard.expr)]


def _distinct(guards: list[Guard]) -> tuple[Guard, ...]:
    """Each condition once, those with a user's line first."""
    ordered = sorted(guards, key=lambda guard: guard.origin.location is None)
    found: dict[Expr, Guard] = {}
    for guard in ordered:
        found.setdefault(guard.expr, guard)
    return tuple(found.values())
