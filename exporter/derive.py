"""Trace → contract: the ranges that can be promised, and everything a call is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sympy

from ..artifacts.contract import (
    MAX_SIZE,
    AxisSource,
    Contract,
    Dim,
    Fixed,
    Guard,
    IndexGuard,
    Origin,
    TensorInput,
    ValueSource,
)
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import Expr, ExprError, dims_of, from_data, line_of, render
from ..artifacts.logs import log
from ..lowering.asserted import Asserted
from ..lowering.assumed import Assumed
from .assertions import asserted_guards, data_assertions
from .assumptions import Assumptions, distinct, extract
from .conditions import size_conditions
from .implied import needed
from .indices import index_guards
from .numbers import number_checks
from .ones import Retrace, admit_small_sizes
from .promises import judge
from .prove import Span
from .ranges import Fit, Request, fit
from .results import dtype_name, outputs, result_structure
from .trace import Trace
from .translate import fold
from .words import Words


@dataclass(frozen=True)
class Derived:
    """A contract, what torch's symbols read in its dims, and how the ranges were found."""

    contract: Contract
    symbols: dict[str, Expr]
    fit: Fit
    notes: tuple[Diagnostic, ...]
    words: Words


def derive(
    traced: Trace, requests: Mapping[str, Request], retrace: Retrace, *, narrow: bool
) -> Derived:
    """The contract of a trace.

    Args:
        requests: what was asked for each dynamic dim.
        retrace: traces the model again with some dims fixed.
        narrow: take the provable part of a range that was given, in place of refusing.

    Raises:
        ExportError: TC201, TC202, TC210, TC211, the ranges asked for cannot be served. A TC210 has no
            `tries`: what works is for the caller to try.
    """
    assumptions = extract(traced, requests)
    assumed = Assumed(traced.program.graph)
    named = {**assumptions.symbols, **assumptions.numbers}
    admitted = admit_small_sizes(
        traced, assumptions, requests, retrace
    )  # before the graph has checks
    size_guards, value_guards, computed_guards = index_guards(traced, assumptions.symbols)
    computed_guards += data_assertions(traced, len(computed_guards))
    found = (*admitted.guards, *size_guards, *size_conditions(traced, named))
    of_numbers = [guard for guard in found if dims_of(guard.expr) & assumptions.nodes.keys()]
    found = tuple(guard for guard in found if guard not in of_numbers)
    computed_guards += number_checks(
        traced,
        assumptions.nodes,
        distinct((*assumptions.computed, *of_numbers)),
        assumptions.assertions,
        len(computed_guards),
    )
    by_expr = {guard.expr: guard for guard in reversed(found)}  # of equal ones, the first
    guards = tuple(reversed(by_expr.values()))
    fitted = fit(requests, traced.sizes, guards)
    _tell(guards, requests, fitted)
    notes = judge(fitted, requests, admitted.untried, narrow=narrow)
    contract = Contract(
        dims=(*_dims(traced, requests, fitted), *_value_dims(assumptions)),
        parameters=traced.bound.parameters,
        inputs=_inputs(traced),
        guards=_without_implied(fitted, assumptions),
        index_guards=_needed(value_guards),
        outputs=outputs(traced, assumptions),
        result=result_structure(traced),
        computed_guards=computed_guards,
    )
    assumed.require_no_more()
    _tell_values(contract)
    symbols = {str(symbol): expr for symbol, expr in assumptions.symbols.items()}
    return Derived(contract, symbols, fitted, notes, assumptions.words)


def _tell(guards: Sequence[Guard], requests: Mapping[str, Request], fitted: Fit) -> None:
    """What was found, for TCEXPORT_LOGS=guards,dynamic."""
    found, ranges = log("guards"), log("dynamic")
    if found is not None:
        for guard in guards:
            kept = "checked at each call" if guard in fitted.guards else "held by the ranges"
            found.info("%s  from: %s  (%s)", render(guard.expr), guard.origin, kept)
    if ranges is not None:
        for name, span in fitted.spans.items():
            limits = fitted.limits[name]
            needs = [render(each.expr) for each in (limits.lo, limits.hi, limits.step) if each]
            why = f", limited by {' and '.join(dict.fromkeys(needs))}" if needs else ""
            ranges.info("%s: asked %s, found %s%s", name, requests[name].span, span, why)


def _tell_values(contract: Contract) -> None:
    """The guards on values, in the user's names, for TCEXPORT_LOGS=guards."""
    found = log("guards")
    if found is not None:
        for each in contract.index_guards:
            path = contract.inputs[each.input].path
            low, high = render(each.lo), render(each.hi)
            found.info("%s <= %s <= %s, each value  from: %s", low, path, high, each.origin)


def _without_implied(fitted: Fit, assumptions: Assumptions) -> tuple[Guard, ...]:
    values = dict.fromkeys(assumptions.values, Span(-MAX_SIZE, None))
    return needed(fitted.guards, {**fitted.spans, **values})


def _needed(guards: tuple[IndexGuard, ...]) -> tuple[IndexGuard, ...]:
    """Of guards on one input with constant bounds, those that another does not imply."""

    def implied(guard: IndexGuard, other: IndexGuard) -> bool:
        bounds = (guard.lo, guard.hi, other.lo, other.hi)
        return (
            guard is not other
            and guard.input == other.input
            and other.parts in ((), guard.parts)
            and all(isinstance(bound, int) for bound in bounds)
            and other.lo >= guard.lo
            and other.hi <= guard.hi
        )

    return tuple(guard for guard in guards if not any(implied(guard, each) for each in guards))


# --- dims -----------------------------------------------------------------------------------------


def _dims(traced: Trace, requests: Mapping[str, Request], fitted: Fit) -> list[Dim]:
    dims = []
    for name, request in requests.items():
        span, limits = fitted.spans[name], fitted.limits[name]
        asked = Origin(f"--dynamic {name}={request.span}")
        lo_from = asked if request.given else Origin("sizes start at 1 where no range is given")
        hi_from = asked if request.given else Origin("no limit")
        step_from = None
        if span.step != 1:
            step_from = limits.step.origin if limits.step is not None else asked
        dims.append(
            Dim(
                name,
                _axis_source(name, traced),
                span.lo,
                span.hi,
                limits.lo.origin if limits.lo is not None else lo_from,
                limits.hi.origin if limits.hi is not None else hi_from,
                span.step,
                step_from,
            )
        )
    return dims


def _axis_source(name: str, traced: Trace) -> AxisSource:
    """The axis that a dim is read from: one that it names alone, else a line over it."""
    found = [
        (index, axis, expr)
        for index, axes in enumerate(traced.shapes)
        for axis, expr in enumerate(axes or ())
        if name in dims_of(expr)
    ]
    for index, axis, expr in found:
        if expr == name:
            return AxisSource(index, axis)
    for index, axis, expr in found:
        line = line_of(expr, name)
        if line is not None and line[0] >= 1:
            return AxisSource(index, axis, *line)
    raise ExportError(
        Diagnostic(
            "TC007",
            f"the size of {name} can't be read from any axis",
            notes=(f"{name} stands in: " + ", ".join(render(expr) for _, _, expr in found),),
            tries=(f"name one axis {name}, or a line over it such as 2*{name} or {name}+1",),
        )
    )


def _value_dims(assumptions: Assumptions) -> list[Dim]:
    none = Origin("the value of the input")
    return [
        Dim(name, ValueSource(index), -MAX_SIZE, None, none, none)
        for name, index in assumptions.values.items()
    ]


def _inputs(traced: Trace) -> tuple[TensorInput | Fixed, ...]:
    inputs: list[TensorInput | Fixed] = []
    for (path, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True):
        if axes is None:
            inputs.append(Fixed.of(path, leaf))
        else:
            inputs.append(TensorInput(path, dtype_name(leaf.dtype), axes))
    return tuple(inputs)


def with_asserted(derived: Derived, traced: Trace, asserted: Sequence[Asserted]) -> Derived:
    """The contract with what the kernels assert of their data."""
    computed = derived.contract.computed_guards
    computed += asserted_guards(traced, asserted, len(computed))
    contract = msgspec.structs.replace(derived.contract, computed_guards=computed)
    return replace(derived, contract=contract)


def contiguous_only(contract: Contract) -> Contract:
    """The contract with every tensor input contiguous: for a model that asks for layouts."""
    inputs = tuple(
        msgspec.structs.replace(item, layout="contiguous")
        if isinstance(item, TensorInput)
        else item
        for item in contract.inputs
    )
    return msgspec.structs.replace(contract, inputs=inputs)


def used_symbols(names: tuple[str, ...], derived: Derived) -> tuple[Expr, ...]:
    """What torch's symbols, named by the lowering, are over the dims.

    Raises:
        ExportError: TC211, a symbol that no input gives.
    """
    missing = [name for name in names if name not in derived.symbols]
    if missing:
        raise ExportError([_ungiven(name, derived.words) for name in missing])
    return tuple(derived.symbols[name] for name in names)


def over_dims(sums: tuple[Any, ...] | None, derived: Derived) -> tuple[Expr, ...] | None:
    """Sums of sizes over torch's symbols, from the lowering, over the dims; None where one of them is
    no expression that a bundle can hold."""
    if sums is None:
        return None

    def over(size: Any) -> Expr:
        if isinstance(size, (list, tuple)):
            return fold(size[0], *[over(operand) for operand in size[1:]])
        return derived.symbols[size] if isinstance(size, str) else size

    try:
        names = frozenset(dim.name for dim in derived.contract.dims)
        return tuple(dict.fromkeys(from_data(over(size), names) for size in sums))
    except (KeyError, ExprError):  # a symbol that no input gives, or too large
        return None


def _ungiven(name: str, words: Words) -> Diagnostic:
    where = next((line for _, line in words.lines(sympy.Symbol(name))), None)
    message = f"the graph needs {words.said(name)}, which no input gives"
    return Diagnostic("TC211", message, location=where)
