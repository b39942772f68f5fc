"""Does a bundle serve the ranges that a deployer promises? Proved at load, or answered with a call
that would be refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..artifacts.contract import Contract, Dim, Origin
from ..artifacts.errors import BundleError, Diagnostic, UsageError
from ..artifacts.expr import dims_of, render
from ..artifacts.prove import Span, holds

Serves = Mapping[str, Sequence[int]]


def check_serves(contract: Contract, serves: Serves, path: Path) -> None:
    """Prove that every call with sizes in ``serves`` meets the ranges and guards of a contract.

    Dims that are not named keep the whole range of the bundle; guards over such dims alone are not
    the question.

    Args:
        serves: ``(lo, hi)`` or ``(lo, hi, step)`` by dim.

    Raises:
        BundleError: TC406, with a counterexample for each range or guard that does not hold, or
            the guards that could not be decided.
        UsageError: TC006, a dim that is not there; TC008, not a range.
    """
    dims = {dim.name: dim for dim in contract.dims}
    asked = {name: _span(name, value, dims) for name, value in serves.items()}
    box = {name: asked.get(name) or Span(dim.lo, dim.hi, dim.step) for name, dim in dims.items()}
    failures = [text for name, span in asked.items() for text in _outside(dims[name], span)]
    for guard in contract.guards:
        if not dims_of(guard.expr) & asked.keys():
            continue
        verdict = holds(guard.expr, box)
        if verdict.status == "refuted" and verdict.counterexample is not None:
            point = ", ".join(f"{name}={value}" for name, value in verdict.counterexample.items())
            failures.append(f"{point}: {render(guard.expr)}, from {guard.origin}")
        elif verdict.status != "proved":
            failures.append(f"not decided: {render(guard.expr)}, from {guard.origin}")
    if failures:
        wanted = ", ".join(f"{name}={span}" for name, span in asked.items())
        held = ", ".join(f"{dim.name}={dim.span()}" for dim in contract.dims)
        raise BundleError(
            Diagnostic(
                "TC406",
                f"{path} does not serve {wanted}",
                notes=(*failures, f"the bundle serves: {held}"),
                tries=("ask for less, or export with a wider --dynamic",),
            )
        )


def _span(name: str, value: Sequence[int], dims: Mapping[str, Dim]) -> Span:
    if name not in dims:
        known = ", ".join(dims) or "none: every axis is fixed"
        raise UsageError(
            Diagnostic("TC006", f"serves={name!r}: no such dim", notes=(f"dims: {known}",))
        )
    numbers = list(value) if isinstance(value, (tuple, list)) else []
    if len(numbers) not in (2, 3) or any(type(number) is not int for number in numbers):
        raise UsageError(
            Diagnostic("TC008", f"serves[{name!r}]={value!r}: needs (lo, hi) or (lo, hi, step)")
        )
    span = Span(*numbers)
    if span.step < 1 or not span.count():
        raise UsageError(Diagnostic("TC008", f"serves[{name!r}]={value!r}: holds no size"))
    return span


def _outside(dim: Dim, span: Span) -> list[str]:
    """Sizes of ``span`` that the dim's own range does not hold: one for each end and the step."""
    last = span.lo + (int(span.count()) - 1) * span.step
    found = []
    if span.lo < dim.lo:
        found.append(_counter(dim, span.lo, f"{dim.name} >= {dim.lo}", dim.lo_from))
    if dim.hi is not None and last > dim.hi:
        first = span.lo + max(0, -((span.lo - dim.hi - 1) // span.step)) * span.step
        found.append(_counter(dim, first, f"{dim.name} <= {dim.hi}", dim.hi_from))
    # Two neighbours tell: if both lie on the dim's steps, all do.
    for size in (span.lo, min(span.lo + span.step, last)):
        if (size - dim.lo) % dim.step:
            needs = f"{dim.name} in {dim.span()}"
            found.append(_counter(dim, size, needs, dim.step_from or dim.lo_from))
            break
    return found


def _counter(dim: Dim, size: int, needs: str, origin: Origin) -> str:
    return f"{dim.name}={size}: {needs}, from {origin}"
