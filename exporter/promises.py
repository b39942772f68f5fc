"""Ranges asked for against ranges found: a promise is kept, or the export is refused."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..artifacts.contract import Guard
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import dims_of, render
from .ranges import Fit, Limits, Request


def judge(
    fitted: Fit, requests: Mapping[str, Request], untried: frozenset[Guard], *, narrow: bool
) -> tuple[Diagnostic, ...]:
    """Refuse broken promises; say what became narrower where that was asked for.

    Args:
        untried: guards that exclude a size at which the model was not traced again.
        narrow: take what is left of a range that was given.

    Returns:
        notes.

    Raises:
        ExportError: TC201, TC202, TC210; all at once.
    """

    def told(diagnostic: Diagnostic, guard: Guard) -> Diagnostic:
        if guard not in untried:
            return diagnostic
        notes = (*diagnostic.notes, _UNTRIED)
        return msgspec.structs.replace(diagnostic, notes=notes)

    refused: list[Diagnostic] = []
    notes: list[Diagnostic] = []
    for guard in fitted.guards:
        names = dims_of(guard.expr)
        if not names or not names <= requests.keys():
            continue
        pair = _equal_dims(guard)
        if pair is not None:
            refused.append(_must_be_equal(pair, guard))
        elif any(requests[name].given for name in names) and not narrow:
            refused.append(told(_cannot_serve(guard, requests, fitted), guard))
        else:
            notes.append(told(_checked_at_call(guard), guard))
    for name, request in requests.items():
        span, limits = fitted.spans[name], fitted.limits[name]
        if span == request.span or (span.hi is not None and span.count() == request.span.count()):
            continue  # 1..10:4 and 1..9:4 are the same sizes; without an end, counts say nothing
        if span.count() == 1 and not narrow:
            refused.append(_fixed_by_trace(name, span.lo, limits))
            continue
        needed = [guard for guard in (limits.lo, limits.hi, limits.step) if guard is not None]
        # A promise is never cut without a word.
        needed = needed or [e.guard for e in fitted.broken if name in dims_of(e.guard.expr)]
        if not request.given:
            notes += [_excluded_untried(name, each) for each in needed if each in untried]
            continue
        for guard in dict.fromkeys(needed):
            if narrow:
                message = f"{name}={request.span} was narrowed to {span}: {render(guard.expr)}"
                location = guard.origin.location
                note = Diagnostic("TC210", message, location=location, severity="note")
                notes.append(told(note, guard))
            else:
                refused.append(told(_cannot_serve(guard, requests, fitted), guard))
    if refused:
        distinct = {(each.code, each.message): each for each in refused}
        raise ExportError(distinct.values())
    return tuple(notes)


_UNTRIED = (
    "torch excludes this size because of a memory layout, which the model may not mean: so many dims "
    "have such sizes that it was not traced again to find out"
)


def _excluded_untried(name: str, guard: Guard) -> Diagnostic:
    return Diagnostic(
        "TC210",
        f"not all sizes of {name} are served: {render(guard.expr)}",
        location=guard.origin.location,
        notes=(_UNTRIED,),
        tries=("make fewer dims dynamic",),
        severity="note",
    )


def _equal_dims(guard: Guard) -> tuple[str, str] | None:
    expr = guard.expr
    if expr[0] == "==" and isinstance(expr[1], str) and isinstance(expr[2], str):
        return expr[1], expr[2]
    return None


def _must_be_equal(pair: tuple[str, str], guard: Guard) -> Diagnostic:
    first, second = sorted(pair)
    return Diagnostic(
        "TC202",
        f"{first} and {second} must be equal",
        location=guard.origin.location,
        tries=(f"give both axes one name, {first}, in axes or --axes",),
    )


def _fixed_by_trace(name: str, size: int, limits: Limits) -> Diagnostic:
    guards = [guard for guard in (limits.hi, limits.lo, limits.step) if guard is not None]
    where = [guard.origin.location for guard in guards if guard.origin.location is not None]
    needs = " and ".join(dict.fromkeys(render(guard.expr) for guard in guards))
    return Diagnostic(
        "TC201",
        f"{name} can't be dynamic: the trace fixed it at {size}",
        location=where[0] if where else None,
        notes=(f"the trace needs {needs}",) if needs else (),
        tries=(f"leave {name} out of --dynamic", "change the line that needs this size"),
    )


def _cannot_serve(guard: Guard, requests: Mapping[str, Request], fitted: Fit) -> Diagnostic:
    names = sorted(dims_of(guard.expr))
    asked = ", ".join(f"{name}={requests[name].span}" for name in names if requests[name].given)
    points = [each.point for each in fitted.broken if each.guard == guard and each.point]
    notes: tuple[str, ...] = ()
    if points:
        point = points[0]
        at = ", ".join(f"{name}={point[name]}" for name in sorted(point))
        notes = (f"it fails at {at}",)
    return Diagnostic(
        "TC210",
        f"{asked} can't be served: the trace needs {render(guard.expr)}",
        location=guard.origin.location,
        notes=notes,
    )


def _checked_at_call(guard: Guard) -> Diagnostic:
    return Diagnostic(
        "TC210",
        f"not all sizes in the ranges are served together: {render(guard.expr)} is checked at "
        "every call",
        location=guard.origin.location,
        severity="note",
    )
