"""From the guards of a trace to the range of each dim: what can be promised, and what limits it.

A range that the user gives is a promise; a dim named without one gets the widest range that the
trace proves. `fit` finds, for each dim, the widest progression (``lo..hi:step``) around the
example on which the guards hold. Nothing that is wrong here can make a wrong bundle: a guard that is
not *proved* over the fitted ranges is kept and checked at every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sympy

from ..artifacts.contract import Guard
from ..artifacts.expr import dims_of
from .prove import Span, holds, values_on

_WINDOW = 1 << 16  # sizes looked at, one by one, of a range without end
_SAMPLES = 48
_MAX_STEP = 4096


@dataclass(frozen=True)
class Request:
    """What was asked for a dim: its range, and whether the user gave it (a promise)."""

    span: Span
    given: bool


@dataclass(frozen=True)
class Limits:
    """The guards that keep a range from being wider, where one does."""

    lo: Guard | None = None
    hi: Guard | None = None
    step: Guard | None = None


@dataclass(frozen=True)
class Broken:
    """A guard that fails somewhere in the ranges asked for, with a point where it does."""

    guard: Guard
    point: dict[str, int] | None


@dataclass(frozen=True)
class Fit:
    """``spans`` and ``limits`` for each dim; ``guards`` are those to check at every call;
    ``broken`` those that cost the user part of what was asked."""

    spans: dict[str, Span]
    limits: dict[str, Limits]
    guards: tuple[Guard, ...]
    broken: tuple[Broken, ...]


def fit(
    requests: Mapping[str, Request], example: Mapping[str, int], guards: Sequence[Guard]
) -> Fit:
    """The widest ranges within ``requests`` around ``example`` for which ``guards`` hold.

    Args:
        requests: the range asked for each dim; guards over other names are kept as they are.
        example: the size of each dim in the trace; every guard holds there.
        guards: all assumptions of the trace, those with a user's line first.
    """
    spans = {name: request.span for name, request in requests.items()}
    limits = {name: Limits() for name in requests}
    broken: list[Broken] = []
    ours = [guard for guard in guards if dims_of(guard.expr) <= spans.keys()]
    foreign = [guard for guard in guards if guard not in ours]

    for name in requests:
        alone = [guard for guard in ours if dims_of(guard.expr) == {name}]
        before = spans[name]
        spans[name], limits[name] = _narrowed(name, before, example[name], alone)
        broken += _costs(alone, {name: before})

    for guard in ours:
        if len(dims_of(guard.expr)) < 2:
            continue
        verdict = holds(guard.expr, spans)
        if verdict.status == "proved":
            continue
        broken.append(Broken(guard, verdict.counterexample))
        if verdict.status == "refuted":
            _project(guard, spans, limits, requests, example)

    kept = [guard for guard in ours if holds(guard.expr, spans).status != "proved"]
    return Fit(spans, limits, (*kept, *foreign), tuple(broken))


def _costs(guards: Sequence[Guard], box: Mapping[str, Span]) -> list[Broken]:
    found = []
    for guard in guards:
        verdict = holds(guard.expr, box)
        if verdict.status != "proved":
            found.append(Broken(guard, verdict.counterexample))
    return found


def _candidates(span: Span, around: int) -> np.ndarray:
    """The sizes of a span that are looked at one by one; all of them where they are few."""
    last = max(span.lo + _WINDOW * span.step, around + 64 * span.step)
    if span.hi is not None:
        last = min(last, span.hi)
    return np.arange(span.lo, last + 1, span.step, dtype=np.int64)


def _narrowed(name: str, span: Span, around: int, guards: Sequence[Guard]) -> tuple[Span, Limits]:
    """The widest part of ``span`` on which guards over this one dim hold, and what limits it."""
    sizes = _candidates(span, around)
    fine = {
        position: np.broadcast_to(values_on(guard.expr, {name: sizes}), sizes.shape)
        for position, guard in enumerate(guards)
    }
    allowed = np.logical_and.reduce(list(fine.values())) if fine else np.ones(sizes.shape, bool)
    index = int(np.searchsorted(sizes, around))
    narrowed = _progression(span, sizes, allowed, index)
    if narrowed is None:
        return span, Limits()

    def culprit(dropped: np.ndarray) -> Guard | None:
        """Of the guards, the first that fails at the first of these sizes at which any does."""
        failing = np.flatnonzero(dropped & ~allowed)
        if not failing.size:
            return None
        return next(guards[position] for position, mask in fine.items() if not mask[failing[0]])

    top = sizes[-1] if narrowed.hi is None else narrowed.hi
    skipped = (sizes > narrowed.lo) & (sizes < top) & ((sizes - narrowed.lo) % narrowed.step != 0)
    return narrowed, Limits(
        culprit(sizes == narrowed.lo - narrowed.step),
        culprit(sizes == top + narrowed.step),
        culprit(skipped),
    )


def _progression(span: Span, sizes: np.ndarray, allowed: np.ndarray, index: int) -> Span | None:
    """The progression through ``sizes[index]`` with the most allowed sizes; None if there is none.

    Sizes are left out between its ends where those that fail come back again and again, as of
    ``n % 4 == 0``. Around a hole, as of ``n != 7``, it ends instead: what a step would keep is not what
    the guard says. Only a size that has no neighbour is not left alone.
    """
    if not 0 <= index < sizes.size or not allowed[index]:
        return None
    best = _best_stride(allowed, index, recurrent=True)
    if best[0] == 1:
        best = _best_stride(allowed, index, recurrent=False)
    _, stride, first, last = best
    open_above = last + stride >= sizes.size
    hi: int | None = int(sizes[last])
    if open_above and (span.hi is None or span.hi > sizes[-1]):
        # The window ended, not the range: beyond it the guards are checked at every call, or proved.
        hi = span.hi
        if hi is not None:
            hi -= (hi - int(sizes[first])) % (stride * span.step)
    elif open_above and span.hi is not None and stride == 1:
        hi = span.hi
    return Span(int(sizes[first]), hi, stride * span.step)


def _best_stride(allowed: np.ndarray, index: int, *, recurrent: bool) -> tuple[int, int, int, int]:
    """``(count, stride, first, last)``, the indices of the most sizes a stride apart, all allowed.

    Args:
        recurrent: only strides of which no finer part would do.
    """
    failing = np.concatenate([[0], np.cumsum(~allowed)])
    best: tuple[int, int, int, int] | None = None
    for stride in range(1, min(_MAX_STEP, allowed.size) + 1):
        if best is not None and allowed.size // stride < best[0]:
            break
        line = allowed[index % stride :: stride]
        at = index // stride
        holes = np.flatnonzero(~line)
        below = holes[holes < at]
        above = holes[holes > at]
        first = int(below[-1]) + 1 if below.size else 0
        last = int(above[0]) - 1 if above.size else line.size - 1
        count = last - first + 1
        if best is not None and count <= best[0]:
            continue
        first, last = (end * stride + index % stride for end in (first, last))
        if stride > 1 and recurrent:
            if failing[last + 1] - failing[first] < max(2, (count + 1) // 2):
                continue  # too few to be in more than half of the gaps
            if not _recurs(allowed, stride, first, last):
                continue
        best = (count, stride, first, last)
    assert best is not None
    return best


def _recurs(allowed: np.ndarray, stride: int, first: int, last: int) -> bool:
    """Whether no finer stride would do: of each, sizes fail in most gaps, and in two at least."""
    for prime in sympy.primefactors(stride):
        finer = allowed[first : last : stride // prime].reshape(-1, prime)[:, 1:]
        if np.count_nonzero(~finer.all(axis=1)) < max(2, finer.shape[0] // 2 + 1):
            return False
    return True


def _project(
    guard: Guard,
    spans: dict[str, Span],
    limits: dict[str, Limits],
    requests: Mapping[str, Request],
    example: Mapping[str, int],
) -> None:
    """Narrow one dim so that a guard over several holds for all sizes of the others.

    Dims without a range of the user's are narrowed first. A dim is only narrowed where most of its
    extent remains; a guard like ``a == b`` stays a guard.
    """
    names = sorted(dims_of(guard.expr), key=lambda name: (requests[name].given, name))
    for name in names:
        others = [other for other in names if other != name]
        sizes = _candidates(spans[name], example[name])
        axes = {name: sizes.reshape(-1, *[1] * len(others))}
        for position, other in enumerate(others):
            drawn = _sample(spans[other], example[other])
            shape = [-1 if axis == position + 1 else 1 for axis in range(len(others) + 1)]
            axes[other] = drawn.reshape(shape)
        truth = values_on(guard.expr, axes)
        everywhere = np.broadcast_to(truth, (sizes.size, *truth.shape[1:]))
        allowed: np.ndarray = np.all(everywhere.reshape(sizes.size, -1), axis=1)
        index = int(np.searchsorted(sizes, example[name]))
        narrowed = _progression(spans[name], sizes, allowed, index)
        if narrowed is None or narrowed == spans[name]:
            continue
        extent = (narrowed.hi or int(sizes[-1])) - narrowed.lo
        if 2 * extent < int(sizes[-1] - sizes[0]):
            continue
        if holds(guard.expr, {**spans, name: narrowed}).status == "proved":
            before = spans[name]
            spans[name] = narrowed
            old = limits[name]
            limits[name] = Limits(
                guard if narrowed.lo != before.lo else old.lo,
                guard if narrowed.hi != before.hi else old.hi,
                guard if narrowed.step != before.step else old.step,
            )
            return


def _sample(span: Span, around: int) -> np.ndarray:
    """A few sizes of a span: the smallest, the largest, the example and some between."""
    sizes = _candidates(span, around)
    if sizes.size <= _SAMPLES:
        return sizes
    spread = np.linspace(0, sizes.size - 1, _SAMPLES // 3).astype(int)
    first = np.arange(_SAMPLES // 3)
    near = np.clip(np.searchsorted(sizes, around) + np.arange(-4, 5), 0, sizes.size - 1)
    return sizes[np.unique(np.concatenate([spread, first, near]))]
