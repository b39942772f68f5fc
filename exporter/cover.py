"""`--cover`: where a trace keeps one arm of a branch on sizes, the other arms are traced, too.

The first trace tells for which sizes it holds. At a size that is left, the model is traced again, and
so on until every size of the range belongs to an arm, or nothing more can be traced. What is covered is
proved; what is not is refused, or, with `--narrow`, said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ..artifacts.contract import (
    Contract,
    Dim,
    Origin,
    TensorOutput,
    ValueSource,
)
from ..artifacts.errors import Diagnostic, ExportError, UsageError
from ..artifacts.expr import Expr, dims_of
from ..artifacts.logs import log
from ..artifacts.parts import box_of, one_takes
from ..artifacts.prove import Span, holds, values_on
from .derive import Derived
from .profiles import span_text
from .trace import Trace
from .variants import Arm, intersection

_MOST_SIZES = 1 << 20

# The model traced with the covered dim at a size: dynamic within a range, or fixed (None).
TraceAt = Callable[[int, "Span | None"], tuple[Trace, Derived, tuple[Diagnostic, ...]]]


@dataclass(frozen=True)
class Covered:
    """``arms``: the traces, the user's example in the first; ``whole``: the contract of the bundle."""

    arms: tuple[Arm, ...]
    whole: Contract
    notes: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class _Hole:
    """Sizes that no trace was found for, and why."""

    lo: int
    hi: int
    why: Diagnostic

    def __str__(self) -> str:
        return span_text(Span(self.lo, self.hi))


def cover(
    name: str,
    asked: Span,
    first: tuple[Trace, Derived],
    trace_at: TraceAt,
    limit: int,
    narrow: bool,
) -> Covered:
    """Trace the model until all sizes of a dim are covered.

    Args:
        name, asked: the dim and its sizes, with an end.
        first: the trace of the user's example, its ranges narrowed to what holds.
        trace_at: traces the model at another size; it raises what `export` raises where it cannot.
        limit: how many further arms there may be.
        narrow: leave uncovered what cannot be traced, in place of refusing.

    Raises:
        ExportError: TC221, more arms than ``limit``; TC224, sizes are left, or arms do not fit
            together.
    """
    if asked.count() > _MOST_SIZES:
        raise ExportError(
            Diagnostic(
                "TC224",
                f"--cover {name}={asked}: more than {_MOST_SIZES} sizes cannot be gone through",
                tries=(f"--cover {name}={asked.lo}..{asked.lo + _MOST_SIZES - 1}",),
            )
        )
    assert asked.hi is not None
    sizes = np.arange(asked.lo, asked.hi + 1, asked.step, dtype=np.int64)
    arms = [_arm(name, *first)]
    left = ~_taken(name, sizes, arms[0])
    holes: list[_Hole] = []
    notes: list[Diagnostic] = []
    while left.any():
        run = _first_run(left)
        lo, hi = int(sizes[run[0]]), int(sizes[run[-1]])
        if len(arms) > limit:
            raise ExportError(_too_many(name, arms, lo, hi, limit))
        found = _traced_in(name, Span(lo, hi, asked.step), arms[0], trace_at)
        if isinstance(found, Diagnostic):
            holes.append(_Hole(lo, hi, found))
            left[run] = False
            continue
        arm, more = found
        arms.append(arm)
        notes += more
        left &= ~_taken(name, sizes, arm)
        listener = log("variants")
        if listener is not None:
            listener.info("an arm for %s", arm.name)
    if holes and not narrow:
        raise ExportError(_uncovered(name, asked, arms, holes))
    whole = _together(name, asked, arms, narrow)
    notes += [_left_out(name, hole) for hole in holes]
    if not holes:
        _require_proved(whole, arms, narrow)
    return Covered(tuple(arms), whole, tuple(dict.fromkeys(notes)))


def _arm(name: str, traced: Trace, derived: Derived) -> Arm:
    (dim,) = (dim for dim in derived.contract.dims if dim.name == name)
    return Arm(f"{name}={span_text(Span(dim.lo, dim.hi, dim.step))}", traced, derived)


def _taken(name: str, sizes: np.ndarray, arm: Arm) -> np.ndarray:
    """Which sizes of the covered dim belong to an arm, as far as the dim alone decides."""
    contract = arm.derived.contract
    (dim,) = (dim for dim in contract.dims if dim.name == name)
    inside = (sizes >= dim.lo) & ((sizes - dim.lo) % dim.step == 0)
    if dim.hi is not None:
        inside &= sizes <= dim.hi
    for guard in contract.guards:
        if dims_of(guard.expr) == {name}:
            inside &= values_on(guard.expr, {name: sizes})
    return inside


def _first_run(left: np.ndarray) -> np.ndarray:
    """The places of the first sizes, one after the other, that are left."""
    places = np.flatnonzero(left)
    gaps = np.flatnonzero(np.diff(places) > 1)
    return places[: gaps[0] + 1] if gaps.size else places


def _traced_in(
    name: str, run: Span, first: Arm, trace_at: TraceAt
) -> tuple[Arm, tuple[Diagnostic, ...]] | Diagnostic:
    """An arm for sizes in ``run``, or why there is none.

    First one that is not 0 or 1, which a trace would fix; a size alone where nothing wider holds.
    """
    why: Diagnostic | None = None
    assert run.hi is not None
    middle = next((size for size in range(run.lo, run.hi + 1, run.step) if size > 1), run.lo)
    for size in dict.fromkeys((middle, run.hi, run.lo)):
        for within in (run, None):
            try:
                traced, derived, notes = trace_at(size, within)
            except (ExportError, UsageError) as error:
                why = why or error.diagnostics[0]
                continue
            if within is None:
                traced, derived = _with_fixed(name, size, traced, derived, first)
            arm = _arm(name, traced, derived)
            if _taken(name, np.array([size]), arm).all():
                problem = _unlike(arm, first)
                return problem or (arm, notes)
    assert why is not None
    return why


def _with_fixed(
    name: str, size: int, traced: Trace, derived: Derived, first: Arm
) -> tuple[Trace, Derived]:
    """A trace in which the dim is a number, as one that has the dim, with this one size."""
    (place,) = (dim for dim in first.derived.contract.dims if dim.name == name)
    origin = Origin(f"this arm was traced at {name}={size}")
    dim = Dim(name, place.source, size, size, origin, origin)
    contract = msgspec.structs.replace(
        derived.contract,
        dims=(*derived.contract.dims, dim),
        inputs=first.derived.contract.inputs,
    )
    return (
        replace(
            traced,
            shapes=first.traced.shapes,
            sizes={**traced.sizes, name: size},
            example_sizes={**traced.example_sizes, name: size},
        ),
        replace(derived, contract=contract),
    )


def _unlike(arm: Arm, first: Arm) -> Diagnostic | None:
    """Why two arms cannot be one bundle, if they cannot: callers see one signature."""
    ours, theirs = arm.derived.contract, first.derived.contract
    if (ours.parameters, ours.inputs, ours.result) != (
        theirs.parameters,
        theirs.inputs,
        theirs.result,
    ):
        return Diagnostic("TC224", f"with {arm.name} the model takes or gives another structure")
    for one, other in zip(ours.outputs, theirs.outputs, strict=True):
        if isinstance(one, TensorOutput) and isinstance(other, TensorOutput):
            differs = (one.dtype, len(one.shape)) != (other.dtype, len(other.shape))
        else:
            differs = one != other
        if differs:
            return Diagnostic(
                "TC224",
                f"with {arm.name} the output {one.path} is of another dtype, rank or value than with "
                f"{first.name}",
            )
    return None


def _together(name: str, asked: Span, arms: Sequence[Arm], narrow: bool) -> Contract:
    """What the arms serve together: the range of the covered dim, what the others have in common,
    and the guards that all of them have."""
    contracts = [arm.derived.contract for arm in arms]
    first = contracts[0]
    covered = [dim for each in contracts for dim in each.dims if dim.name == name]
    lo = max(asked.lo, min(dim.lo for dim in covered))
    ends = [dim.hi for dim in covered if dim.hi is not None]
    hi = asked.hi if len(ends) < len(covered) else min(asked.hi or max(ends), max(ends))
    origin = Origin(f"--cover {name}={asked}")
    dims: dict[str, Dim] = {}
    for dim in (dim for each in contracts for dim in each.dims):
        if dim.name == name:
            dims[name] = Dim(name, dim.source, lo, hi, origin, origin, asked.step)
        elif dim.name not in dims or isinstance(dim.source, ValueSource):
            dims.setdefault(dim.name, dim)
        else:
            dims[dim.name] = _common(dims[dim.name], dim, arms, narrow)
    ordered = [dims.pop(dim.name) for dim in first.dims] + list(dims.values())
    exprs = [{guard.expr for guard in each.guards} for each in contracts]
    indexed = [set(each.index_guards) for each in contracts]
    return msgspec.structs.replace(
        first,
        dims=tuple(ordered),
        guards=tuple(each for each in first.guards if all(each.expr in own for own in exprs)),
        index_guards=tuple(each for each in first.index_guards if all(each in o for o in indexed)),
        outputs=tuple(
            _output([each.outputs[number] for each in contracts])
            for number in range(len(first.outputs))
        ),
        computed_guards=tuple(
            dict.fromkeys(guard for each in contracts for guard in each.computed_guards)
        ),
    )


def _common(one: Dim, other: Dim, arms: Sequence[Arm], narrow: bool) -> Dim:
    """What two arms both serve of a dim that is not the covered one."""
    if (one.lo, one.hi, one.step) == (other.lo, other.hi, other.step):
        return one
    shared = intersection(box_of([one]), box_of([other]))
    if shared is None or not narrow:
        raise ExportError(
            Diagnostic(
                "TC224",
                f"{one.name} is {one.span()} in one arm and {other.span()} in another",
                notes=tuple(f"arm {arm.name}" for arm in arms),
                tries=("--narrow, to serve what they have in common",),
            )
        )
    span = shared[one.name]
    return msgspec.structs.replace(one, lo=span.lo, hi=span.hi, step=span.step)


def _output(found: Sequence[object]) -> object:
    first = found[0]
    if not isinstance(first, TensorOutput) or all(each == first for each in found):
        return first
    shapes = [each.shape for each in found if isinstance(each, TensorOutput)]
    shape = tuple(
        sizes[0] if all(size == sizes[0] for size in sizes) else None
        for sizes in zip(*shapes, strict=True)
    )
    return msgspec.structs.replace(first, shape=shape)


def _require_proved(whole: Contract, arms: Sequence[Arm], narrow: bool) -> None:
    """All sizes of all dims together: what two dims decide was not looked at before."""
    box = box_of(whole.dims)
    union: Expr = one_takes([arm.derived.contract for arm in arms], box)
    for guard in whole.guards:
        union = ("or", ("not", guard.expr), union)
    verdict = holds(union, box)
    if verdict.status == "proved" or narrow:
        return
    at = verdict.counterexample or {}
    point = ", ".join(f"{dim}={size}" for dim, size in at.items())
    raise ExportError(
        Diagnostic(
            "TC224",
            f"no arm serves {point}" if point else "it could not be proved that the arms serve all",
            notes=tuple(f"arm {arm.name}" for arm in arms),
            tries=("--narrow, to refuse such calls",),
        )
    )


def _too_many(name: str, arms: Sequence[Arm], lo: int, hi: int, limit: int) -> Diagnostic:
    return Diagnostic(
        "TC221",
        f"--cover {name} needs more than {limit} arms beside the first: "
        f"{name}={span_text(Span(lo, hi))} is left",
        notes=tuple(f"arm {arm.name}" for arm in arms),
        tries=(f"--variant-limit {2 * limit + 2}", f"a smaller --cover {name}=…"),
    )


def _uncovered(
    name: str, asked: Span, arms: Sequence[Arm], holes: Sequence[_Hole]
) -> list[Diagnostic]:
    return [
        Diagnostic(
            "TC224",
            f"{name}={hole} of --cover {name}={asked} cannot be traced: {hole.why.message}",
            location=hole.why.location,
            notes=(*(f"covered: {arm.name}" for arm in arms), *hole.why.notes),
            tries=("--narrow, to refuse calls of these sizes", f"a smaller --cover {name}=…"),
        )
        for hole in holes
    ]


def _left_out(name: str, hole: _Hole) -> Diagnostic:
    return Diagnostic(
        "TC224",
        f"{name}={hole} is not covered: {hole.why.message}",
        location=hole.why.location,
        severity="note",
    )
