"""Does an expression hold for every size of a box? By intervals, or by looking at every point.

What neither settles is "unknown": the exporter has z3 for that, the runtime refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .expr import COMPARISONS, Expr, dims_of

MAX_POINTS = 20_000_000
_INT64 = 2**63
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Span:
    """``lo``, ``lo + step``, … up to ``hi`` (None: without end)."""

    lo: int
    hi: int | None
    step: int = 1

    def __str__(self) -> str:
        text = f"{self.lo}..{'' if self.hi is None else self.hi}"
        return f"{text}:{self.step}" if self.step != 1 else text

    def __contains__(self, size: int) -> bool:
        above = size >= self.lo and (size - self.lo) % self.step == 0
        return above and (self.hi is None or size <= self.hi)

    def count(self) -> int | float:
        """How many sizes it holds; infinite without an end."""
        if self.hi is None:
            return math.inf
        return max(0, (self.hi - self.lo) // self.step + 1)


Box = Mapping[str, Span]


@dataclass(frozen=True)
class Verdict:
    """``share`` is the part of the points where the expression holds, as far as it is known."""

    status: Literal["proved", "refuted", "unknown"]
    counterexample: dict[str, int] | None = None
    share: float | None = None


def holds(expr: Expr, box: Box, max_points: int = MAX_POINTS) -> Verdict:
    """Whether a comparison or logic expression holds at every point of ``box``.

    Args:
        expr: over dims that ``box`` gives a span. A division by what is not positive fails.
        box: the span of each dim; an unbounded one is proved for all sizes or not at all.
        max_points: look at every point where there are no more than these.
    """
    names = sorted(dims_of(expr))
    if proved_by_intervals(expr, box):
        return Verdict("proved", share=1.0)
    points = math.prod(box[name].count() for name in names)
    if points <= max_points and magnitude(expr, box) < _INT64:
        return _every_point(expr, names, box)
    return Verdict("unknown")


def failures(expr: Expr, box: Box, most: int) -> list[dict[str, int]]:
    """The points of a box where an expression fails; none where there are more than ``most``, or the
    box is without end or too large to look at each."""
    names = sorted(dims_of(expr))
    points = math.prod(box[name].count() for name in names)
    if points > _BLOCK or magnitude(expr, box) >= _INT64:
        return []
    lines = [np.arange(box[n].lo, (box[n].hi or 0) + 1, box[n].step, dtype=np.int64) for n in names]
    grids = np.meshgrid(*lines, indexing="ij", sparse=True)
    truth = np.broadcast_to(
        values_on(expr, dict(zip(names, grids, strict=True))), [line.size for line in lines]
    )
    places = np.argwhere(~truth)
    if len(places) > most:
        return []
    return [
        {name: int(line[at]) for name, line, at in zip(names, lines, place, strict=True)}
        for place in places
    ]


def values_on(expr: Expr, axes: Mapping[str, np.ndarray]) -> np.ndarray:
    """The truth of ``expr`` on broadcastable int64 arrays, False where a divisor is not positive."""
    poisoned: list[np.ndarray] = []
    truth = np.asarray(_numpy(expr, axes, poisoned), dtype=bool)
    for bad in poisoned:
        truth = truth & ~bad
    return truth


def _every_point(expr: Expr, names: Sequence[str], box: Box) -> Verdict:
    """In blocks along the first dim, so that memory stays small."""
    if not names:
        always = bool(values_on(expr, {}))
        return Verdict("proved" if always else "refuted", None if always else {}, float(always))
    lines = []
    for name in names:
        span = box[name]
        end = span.lo if span.hi is None else span.hi + 1
        lines.append(np.arange(span.lo, end, span.step, dtype=np.int64))
    rest = [line.size for line in lines[1:]]
    rows = max(1, _BLOCK // max(1, math.prod(rest)))
    first, true, counterexample = lines[0], 0, None
    for start in range(0, first.size, rows):
        block = [first[start : start + rows], *lines[1:]]
        grids = np.meshgrid(*block, indexing="ij", sparse=True)
        truth = np.broadcast_to(
            values_on(expr, dict(zip(names, grids, strict=True))), [len(line) for line in block]
        )
        true += int(np.count_nonzero(truth))
        if counterexample is None and not truth.all():
            at = np.unravel_index(int(np.argmin(truth)), truth.shape)
            counterexample = {
                name: int(line[place]) for name, line, place in zip(names, block, at, strict=True)
            }
    if counterexample is None:
        return Verdict("proved", share=1.0)
    return Verdict("refuted", counterexample, true / (first.size * math.prod(rest)))


def _numpy(expr: Expr, axes: Mapping[str, np.ndarray], poisoned: list[np.ndarray]) -> Any:
    if isinstance(expr, int):
        return np.int64(expr)
    if isinstance(expr, str):
        return axes[expr]
    op = expr[0]
    values = [_numpy(operand, axes, poisoned) for operand in expr[1:]]
    if op in ("//", "%"):
        bad = np.asarray(values[1] <= 0)
        poisoned.append(bad)
        divisor = np.where(bad, 1, values[1])
        return values[0] // divisor if op == "//" else values[0] % divisor
    if op == "not":
        return np.logical_not(values[0])
    result = values[0]
    for value in values[1:]:
        result = _NUMPY[op](result, value)
    return result


_NUMPY: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}


# --- intervals ------------------------------------------------------------------------------------


def bounds(expr: Expr, box: Box) -> tuple[float, float]:
    """An interval that holds the value of an arithmetic expression; infinite where it is open.

    A division by an interval that is not positive is unbounded both ways.
    """
    if isinstance(expr, int):
        return expr, expr
    if isinstance(expr, str):
        span = box[expr]
        return span.lo, math.inf if span.hi is None else span.hi
    op = expr[0]
    sides = [bounds(operand, box) for operand in expr[1:]]
    low, high = sides[0]
    for a, b in sides[1:]:
        if op == "+":
            low, high = low + a, high + b
        elif op == "-":
            low, high = low - b, high - a
        elif op == "*":
            corners = [_times(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(corners), max(corners)
        elif op == "min":
            low, high = min(low, a), min(high, b)
        elif op == "max":
            low, high = max(low, a), max(high, b)
        elif op == "//" and a > 0:
            corners = [_floor(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(corners), max(corners)
        elif op == "%" and a > 0:
            low, high = (low, high) if 0 <= low and high < a else (0, b - 1)
        else:
            return -math.inf, math.inf
    return low, high


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _floor(a: float, b: float) -> float:
    if math.isinf(a):
        return a
    if math.isinf(b):
        return 0 if a >= 0 else -1
    return a // b


def proved_by_intervals(expr: Expr, box: Box) -> bool:
    """Whether interval arithmetic alone shows that ``expr`` holds on ``box``."""
    if not isinstance(expr, tuple) or not _divides_safely(expr, box):
        return False
    op = expr[0]
    if op == "and":
        return all(proved_by_intervals(operand, box) for operand in expr[1:])
    if op == "or":
        return any(proved_by_intervals(operand, box) for operand in expr[1:])
    if op not in COMPARISONS:
        return False
    (a, b), (c, d) = (bounds(operand, box) for operand in expr[1:])
    return {
        "==": a == b == c == d and not math.isinf(a),
        "!=": b < c or d < a,
        "<": b < c,
        "<=": b <= c and not math.isinf(b),
        ">": a > d,
        ">=": a >= d and not math.isinf(a),
    }[op]


def _divides_safely(expr: Expr, box: Box) -> bool:
    if not isinstance(expr, tuple):
        return True
    if expr[0] in ("//", "%") and bounds(expr[2], box)[0] <= 0:
        return False
    return all(_divides_safely(operand, box) for operand in expr[1:])


def magnitude(expr: Expr, box: Box) -> float:
    """A bound on the absolute value of every number on the way to an expression's value, whatever
    the divisors are."""
    if isinstance(expr, int):
        return abs(expr)
    if isinstance(expr, str):
        span = box[expr]
        return math.inf if span.hi is None else max(abs(span.lo), abs(span.hi))
    sides = [magnitude(operand, box) for operand in expr[1:]]
    if expr[0] in ("+", "-"):
        return sum(sides)
    return math.prod(max(side, 1) for side in sides) if expr[0] == "*" else max(sides)
