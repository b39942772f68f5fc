"""Does a bundle serve the ranges that a deployer promises? Proved at load, or answered with a call
that would be refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..artifacts.contract import Contract, Dim, Origin
from ..artifacts.errors import BundleError, Diagnostic, UsageError
from ..artifacts.expr import Expr, dims_of, render
from ..artifacts.manifest import Manifest, contract_of
from ..artifacts.parts import box_of, one_takes
from ..artifacts.prove import MAX_POINTS, Span, holds

Serves = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Condition:
    """One range or guard of a bundle, held against the sizes asked for.

    ``counterexample`` are sizes at which it fails; ``share`` is the part of the sizes asked for at
    which it holds, None where that is not known.
    """

    needs: str
    origin: Origin
    status: Literal["proved", "refuted", "unknown"]
    counterexample: dict[str, int] | None = None
    share: float | None = None

    def __str__(self) -> str:
        if self.counterexample is None:
            return f"not decided: {self.needs}, from {self.origin}"
        point = ", ".join(f"{name}={size}" for name, size in self.counterexample.items())
        return f"{point}: {self.needs}, from {self.origin}"


@dataclass(frozen=True)
class Coverage:
    """``asked``: the sizes, by dim. ``share``: the part of all combinations of sizes that is served
    (1.0 where everything is proved), None where it is not known."""

    asked: dict[str, Span]
    conditions: tuple[Condition, ...]
    share: float | None

    @property
    def served(self) -> bool:
        return all(condition.status == "proved" for condition in self.conditions)


def coverage(contract: Contract, serves: Serves, parts: Sequence[Contract] = ()) -> Coverage:
    """Hold every range and guard of a contract against the sizes in ``serves``.

    Dims that are not named keep the whole range of the bundle; guards over such dims alone are not
    the question. Values of tensors (indices, assertions) are not sizes, and are checked at each call.

    Args:
        serves: ``(lo, hi)`` or ``(lo, hi, step)`` by dim; ``hi`` None is without end.
        parts: the contracts of the variants, where there is no code for all that the bundle serves:
            one of them must take each size.

    Raises:
        UsageError: TC006, a dim that is not there; TC008, not a range.
    """
    dims = {dim.name: dim for dim in contract.dims}
    if not isinstance(serves, Mapping):
        raise UsageError(
            Diagnostic(
                "TC008",
                f"serves={serves!r} is not a dict from dims to ranges",
                tries=('serves={"seq": (1, 512)}',),
            )
        )
    asked = {name: _span(name, value, dims) for name, value in serves.items()}
    box = {**box_of(contract.dims), **asked}
    conditions: list[Condition] = []
    exprs: list[Expr] = []
    for name, span in asked.items():
        for condition, expr in _ranges(dims[name], span):
            conditions.append(condition)
            exprs.append(expr)
    for guard in contract.guards:
        if not dims_of(guard.expr) & asked.keys():
            continue
        verdict = holds(guard.expr, box)
        conditions.append(
            Condition(
                render(guard.expr),
                guard.origin,
                verdict.status,
                verdict.counterexample,
                verdict.share,
            )
        )
        exprs.append(guard.expr)
    if parts:
        condition, expr = _taken_by_a_variant(contract, parts, box)
        conditions.append(condition)
        exprs.append(expr)
    found = Coverage(asked, tuple(conditions), 1.0)
    if found.served:
        return found
    return Coverage(asked, tuple(conditions), _share(exprs, box))


def check_serves(
    contract: Contract, serves: Serves, path: Path, parts: Sequence[Contract] = ()
) -> None:
    """Refuse a bundle that does not serve every size in ``serves``; see `coverage`.

    Args:
        parts: as `coverage` takes them.

    Raises:
        BundleError: TC406, with a counterexample for each range or guard that does not hold, or
            the guards that could not be decided.
        UsageError: as `coverage`.
    """
    found = coverage(contract, serves, parts)
    if found.served:
        return
    failures = [str(each) for each in found.conditions if each.status != "proved"]
    wanted = ", ".join(f"{name}={span}" for name, span in found.asked.items())
    held = ", ".join(f"{dim.name}={dim.span()}" for dim in contract.dims)
    raise BundleError(
        Diagnostic(
            "TC406",
            f"{path} does not serve {wanted}",
            notes=(*failures, f"the bundle serves: {held}"),
            tries=("ask for less, or export with a wider --dynamic",),
        )
    )


def _taken_by_a_variant(
    contract: Contract, parts: Sequence[Contract], box: Mapping[str, Span]
) -> tuple[Condition, Expr]:
    union = one_takes(parts, box)
    for guard in contract.guards:  # what does not hold there is refused by the bundle as a whole
        union = ("or", ("not", guard.expr), union)
    verdict = holds(union, box)
    origin = Origin("its variants, of which no one takes all sizes")
    condition = Condition(
        "a variant takes the call", origin, verdict.status, verdict.counterexample, verdict.share
    )
    return condition, union


def parts_of(manifest: Manifest) -> tuple[Contract, ...]:
    """The contracts of the variants, where none of them serves all that the bundle does."""
    if not manifest.variants or manifest.variants[-1].contract is None:
        return ()
    return tuple(contract_of(manifest, each) for each in manifest.variants)


def _share(exprs: Sequence[Expr], box: Mapping[str, Span]) -> float | None:
    """The part of the box where all hold, by looking at every point; None where it is too large."""
    together: Expr = exprs[0]
    for expr in exprs[1:]:
        together = ("and", together, expr)
    names = dims_of(together)
    if math.prod(box[name].count() for name in names) > MAX_POINTS:
        return None
    return holds(together, box).share


def _span(name: str, value: Sequence[Any], dims: Mapping[str, Dim]) -> Span:
    if name not in dims:
        known = ", ".join(dims) or "none: every axis is fixed"
        raise UsageError(
            Diagnostic("TC006", f"serves={name!r}: no such dim", notes=(f"dims: {known}",))
        )
    numbers = list(value) if isinstance(value, (tuple, list)) else []
    given = [number for place, number in enumerate(numbers) if (place, number) != (1, None)]
    if len(numbers) not in (2, 3) or any(type(number) is not int for number in given):
        raise UsageError(
            Diagnostic("TC008", f"serves[{name!r}]={value!r}: needs (lo, hi) or (lo, hi, step)")
        )
    span = Span(*numbers)
    if span.step < 1 or not span.count():
        raise UsageError(Diagnostic("TC008", f"serves[{name!r}]={value!r}: holds no size"))
    return span


def _ranges(dim: Dim, span: Span) -> Iterator[tuple[Condition, Expr]]:
    """Both ends and the steps of a dim's own range, held against the sizes asked for."""
    name, count = dim.name, span.count()

    def judged(needs: str, origin: Origin, first: int | None, outside: float) -> Condition:
        if first is None:
            return Condition(needs, origin, "proved", share=1.0)
        share = None if math.isinf(count) else 1 - outside / count
        return Condition(needs, origin, "refuted", {name: first}, share)

    below = max(0, -((span.lo - dim.lo) // span.step))
    if below or not dim.open_below:
        first = span.lo if below else None
        yield (
            judged(f"{name} >= {dim.lo}", dim.lo_from, first, min(below, count)),
            (">=", name, dim.lo),
        )
    if dim.hi is not None:
        inside = max(0, (dim.hi - span.lo) // span.step + 1)
        first = span.lo + inside * span.step if count > inside else None
        yield (
            judged(f"{name} <= {dim.hi}", dim.hi_from, first, count - inside),
            ("<=", name, dim.hi),
        )
    if dim.step != 1:
        # Two neighbours tell: if both lie on the dim's steps, all do.
        near = [span.lo + place * span.step for place in range(2) if place < count]
        off = [size for size in near if (size - dim.lo) % dim.step]
        yield (
            judged(
                f"{name} in {dim.span()}",
                dim.step_from or dim.lo_from,
                off[0] if off else None,
                count - _on_steps(dim, span),
            ),
            ("==", ("%", ("-", name, dim.lo), dim.step), 0),
        )


def _on_steps(dim: Dim, span: Span) -> float:
    """How many sizes of a span lie on the steps of a dim: each solution of
    ``lo + k*step = dim.lo (mod dim.step)``."""
    common = math.gcd(span.step, dim.step)
    distance, period = dim.lo - span.lo, dim.step // common
    if distance % common:
        return 0
    first = distance // common * pow(span.step // common, -1, period) % period
    count = span.count()
    return math.inf if math.isinf(count) else max(0, -((first - int(count)) // period))
