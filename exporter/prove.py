"""Proofs about guards at export: `artifacts.prove`, and z3 for what that leaves undecided.

z3 is given a budget of steps rather than of time, so that the same question has the same answer on a
slow machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..artifacts.expr import Expr, dims_of
from ..artifacts.prove import Box, Span, Verdict, values_on
from ..artifacts.prove import holds as holds_without_z3

__all__ = ["Box", "Span", "Verdict", "holds", "values_on"]

_MAX_POINTS = 4_000_000
_Z3_STEPS = 2_000_000


def holds(expr: Expr, box: Box) -> Verdict:
    """Whether ``expr`` holds at every point of ``box``; unbounded dims are for z3."""
    verdict = holds_without_z3(expr, box, _MAX_POINTS)
    if verdict.status != "unknown":
        return verdict
    return _z3(expr, sorted(dims_of(expr)), box)


def _z3(expr: Expr, names: list[str], box: Box) -> Verdict:
    import z3

    variables = {name: z3.Int(name) for name in names}
    divisors: list[Any] = []
    claim = _z3_term(expr, variables, divisors, z3)
    solver = z3.Solver()
    solver.set("rlimit", _Z3_STEPS)
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
