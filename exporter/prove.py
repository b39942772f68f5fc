"""Does an expression hold for every size of a box? Proved, refuted with a counterexample, or unknown.

Three ways, cheapest first: interval arithmetic; every point, in numpy, where there are few enough;
z3. z3 is given a budget of steps rather than of time, so that the same question has the same answer
on a slow machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..artifacts.expr import COMPARISONS, Expr, dims_of

MAX_POINTS = 4_000_000
Z3_STEPS = 2_000_000
_SAFE = 2**62


@dataclass(frozen=True)
class Span:
    """``lo``, ``lo + step``, … up to ``hi`` (None: without end)."""

    lo: int
    hi: int | None
    step: int = 1

    def __str__(self) -> str:
        text = f"{self.lo}..{'' if self.hi is None else self.hi}"
        return f"{text}:{self.step}" if self.step != 1 else text

    def __contains__(self, value: int) -> bool:
        above = value >= self.lo and (value - self.lo) % self.step == 0
        return above and (self.hi is None or value <= self.hi)

    def count(self) -> float:
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


def holds(expr: Expr, box: Box) -> Verdict:
    """Whether a comparison or logic expression holds at every point of ``box``.

    Args:
        expr: over dims that ``box`` gives a span. A division by what is not positive fails.
        box: the span of each dim; an unbounded one is proved for all sizes or not at all.
    """
    names = sorted(dims_of(expr))
    if _interval_proof(expr, box):
        return Verdict("proved", share=1.0)
    points = math.prod(box[name].count() for name in names)
    if points <= MAX_POINTS and _stays_small(expr, box):
        return _every_point(expr, names, box)
    return _z3(expr, names, box)


def values_on(expr: Expr, axes: Mapping[str, np.ndarray]) -> np.ndarray:
    """The truth of ``expr`` on broadcastable int64 arrays, False where a divisor is not positive."""
    poisoned: list[np.ndarray] = []
    with np.errstate(divide="ignore", invalid="ignore"):
        truth = np.asarray(_numpy(expr, axes, poisoned), dtype=bool)
    for bad in poisoned:
        truth = truth & ~bad
    return truth


def _every_point(expr: Expr, names: list[str], box: Box) -> Verdict:
    grids = []
    for position, name in enumerate(names):
        span = box[name]
        assert span.hi is not None
        line = np.arange(span.lo, span.hi + 1, span.step, dtype=np.int64)
        grids.append(line.reshape([-1 if axis == position else 1 for axis in range(len(names))]))
    shape = [grid.size for grid in grids]
    truth = np.broadcast_to(values_on(expr, dict(zip(names, grids, strict=True))), shape)
    if truth.all():
        return Verdict("proved", share=1.0)
    at = np.unravel_index(int(np.argmin(truth)), truth.shape)
    point = {name: int(grid.ravel()[i]) for name, grid, i in zip(names, grids, at, strict=True)}
    return Verdict("refuted", point, float(truth.mean()))


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
    result = values[0]
    if op == "not":
        return ~np.asarray(result, dtype=bool)
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
        elif a <= 0:
            return -math.inf, math.inf
        elif op == "//":
            corners = [_floor(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(corners), max(corners)
        elif op == "%":
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


def _interval_proof(expr: Expr, box: Box) -> bool:
    if not isinstance(expr, tuple):
        return False
    op = expr[0]
    if op == "and":
        return all(_interval_proof(operand, box) for operand in expr[1:])
    if op == "or":
        return _divides_safely(expr, box) and any(
            _interval_proof(operand, box) for operand in expr[1:]
        )
    if op not in COMPARISONS or not _divides_safely(expr, box):
        return False
    (a, b), (c, d) = (bounds(operand, box) for operand in expr[1:])
    return {
        "==": a == b == c == d and not math.isinf(a),
        "!=": b < c or d < a,
        "<": b < c,
        "<=": b <= c and not (math.isinf(b) and math.isinf(c)),
        ">": a > d,
        ">=": a >= d and not (math.isinf(a) and math.isinf(d)),
    }[op]


def _divides_safely(expr: Expr, box: Box) -> bool:
    if not isinstance(expr, tuple):
        return True
    if expr[0] in ("//", "%") and bounds(expr[2], box)[0] <= 0:
        return False
    return all(_divides_safely(operand, box) for operand in expr[1:])


def _stays_small(expr: Expr, box: Box) -> bool:
    """Whether int64 can hold every value on the way."""
    if not isinstance(expr, tuple):
        return True
    if not all(_stays_small(operand, box) for operand in expr[1:]):
        return False
    if expr[0] in ("+", "-", "*"):
        low, high = bounds(expr, box)
        return -_SAFE < low and high < _SAFE
    return True


# --- z3 -------------------------------------------------------------------------------------------


def _z3(expr: Expr, names: list[str], box: Box) -> Verdict:
    import z3

    variables = {name: z3.Int(name) for name in names}
    divisors: list[Any] = []
    claim = _z3_term(expr, variables, divisors, z3)
    solver = z3.Solver()
    solver.set("rlimit", Z3_STEPS)
    for name, variable in variables.items():
        span = box[name]
        solver.add(variable >= span.lo)
        if span.hi is not None:
            solver.add(variable <= span.hi)
        if span.step != 1:
            steps = z3.Int(f"{name}!steps")
            solver.add(variable == span.lo + span.step * steps)
    solver.add(z3.Not(z3.And(claim, *[divisor > 0 for divisor in divisors])))
    answer = solver.check()
    if answer == z3.unsat:
        return Verdict("proved", share=1.0)
    if answer == z3.sat:
        model = solver.model()
        point = {
            name: model.eval(variable, model_completion=True).as_long()
            for name, variable in variables.items()
        }
        return Verdict("refuted", point)
    return Verdict("unknown")


def _z3_term(expr: Expr, variables: Mapping[str, Any], divisors: list[Any], z3: Any) -> Any:
    if isinstance(expr, int):
        return z3.IntVal(expr)
    if isinstance(expr, str):
        return variables[expr]
    op = expr[0]
    terms = [_z3_term(operand, variables, divisors, z3) for operand in expr[1:]]
    if op in ("//", "%"):
        # z3 divides as Euclid does, which is Python's floor for the positive divisors required.
        divisors.append(terms[1])
        return terms[0] / terms[1] if op == "//" else terms[0] % terms[1]
    if op in ("and", "or"):
        return z3.And(*terms) if op == "and" else z3.Or(*terms)
    if op == "not":
        return z3.Not(terms[0])
    result = terms[0]
    for term in terms[1:]:
        if op in ("min", "max"):
            result = z3.If(result < term if op == "min" else result > term, result, term)
        else:
            result = _Z3[op](result, term)
    return result


_Z3: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
