"""Expressions over the user's dims: guards, derived axes, output shapes.

An expression is plain data: an int, the name of a dim, or ``(op, operand, …)``. In a file it is the
same with lists for tuples. Nothing here evaluates text; a file can only name the operators below.

A division or a modulus by a number that is not positive has no value: the expression fails, and a
guard that fails is a refused call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, TypeAlias

from .names import clipped

Expr: TypeAlias = "int | str | tuple[Any, ...]"

ARITHMETIC = {"+": (2, 64), "-": (2, 2), "*": (2, 64), "//": (2, 2), "%": (2, 2)}
EXTREMA = {"min": (2, 64), "max": (2, 64)}
COMPARISONS = dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), (2, 2))
LOGIC = {"and": (2, 64), "or": (2, 64), "not": (1, 1)}
ARITY = {**ARITHMETIC, **EXTREMA, **COMPARISONS, **LOGIC}

MAX_DEPTH = 48
MAX_NODES = 512
MAX_MAGNITUDE = 2**63


class ExprError(ValueError):
    """The data is not an expression, or it has no value at this point."""


def from_data(data: Any, names: frozenset[str]) -> Expr:
    """Turn decoded JSON into an expression over ``names``; refuse everything else.

    Raises:
        ExprError: an unknown operator or name, a wrong arity, too deep, too large, a bool or float.
    """
    budget = MAX_NODES

    def build(node: Any, depth: int) -> Expr:
        nonlocal budget
        budget -= 1
        if depth > MAX_DEPTH or budget < 0:
            raise ExprError("expression too large")
        if type(node) is int:
            if not -MAX_MAGNITUDE < node < MAX_MAGNITUDE:
                raise ExprError(f"number out of range: {node}")
            return node
        if type(node) is str:
            if node not in names:
                raise ExprError(f"unknown dim {node!r}")
            return node
        if not isinstance(node, (list, tuple)) or not node or type(node[0]) is not str:
            raise ExprError(f"not an expression: {clipped(node, 80)}")
        op, operands = node[0], node[1:]
        if op not in ARITY:
            raise ExprError(f"unknown operator {op!r:.20}")
        low, high = ARITY[op]
        if not low <= len(operands) <= high:
            raise ExprError(f"operator {op!r} with {len(operands)} operands")
        built = [build(operand, depth + 1) for operand in operands]
        if any(is_logic(operand) != (op in LOGIC) for operand in built):
            raise ExprError(f"operator {op!r} mixes numbers and conditions")
        return (op, *built)

    return build(data, 0)


def is_logic(expr: Expr) -> bool:
    """Whether an expression is a condition, as against a number."""
    return isinstance(expr, tuple) and (expr[0] in COMPARISONS or expr[0] in LOGIC)


def walk(expr: Expr) -> Iterator[Expr]:
    """All nodes of an expression, parents first."""
    yield expr
    if isinstance(expr, tuple):
        for operand in expr[1:]:
            yield from walk(operand)


def dims_of(expr: Expr) -> frozenset[str]:
    """The names of the dims in an expression."""
    return frozenset(node for node in walk(expr) if isinstance(node, str))


def floordiv(a: int, b: int) -> int:
    """``a // b``; ExprError unless ``b`` is positive."""
    if b <= 0:
        raise ExprError("division by a number that is not positive")
    return a // b


def mod(a: int, b: int) -> int:
    """``a % b``; ExprError unless ``b`` is positive."""
    if b <= 0:
        raise ExprError("modulus by a number that is not positive")
    return a % b


_FOLD: dict[str, Callable[[list[Any]], Any]] = {
    "+": sum,
    "*": lambda v: reduce(lambda a, b: a * b, v),
    "-": lambda v: v[0] - v[1],
    "//": lambda v: floordiv(v[0], v[1]),
    "%": lambda v: mod(v[0], v[1]),
    "min": min,
    "max": max,
    "==": lambda v: v[0] == v[1],
    "!=": lambda v: v[0] != v[1],
    "<": lambda v: v[0] < v[1],
    "<=": lambda v: v[0] <= v[1],
    ">": lambda v: v[0] > v[1],
    ">=": lambda v: v[0] >= v[1],
    "and": all,
    "or": any,
    "not": lambda v: not v[0],
}


def evaluate(expr: Expr, dims: Mapping[str, int]) -> int:
    """The value of an expression (a bool for a comparison) where every dim has a value.

    Raises:
        ExprError: a divisor is not positive.
        KeyError: a dim has no value.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return dims[expr]
    return _FOLD[expr[0]]([evaluate(operand, dims) for operand in expr[1:]])


def line_of(expr: Expr, dim: str) -> tuple[int, int] | None:
    """``(scale, offset)`` where an expression is ``scale*dim + offset``; None where it is no line.

    Decided by the form, not by trying values: divisions are never lines.
    """
    if isinstance(expr, int):
        return 0, expr
    if isinstance(expr, str):
        return (1, 0) if expr == dim else None
    op, operands = expr[0], expr[1:]
    parts = [line_of(operand, dim) for operand in operands]
    lines = [part for part in parts if part is not None]
    if len(lines) != len(parts) or op not in ("+", "-", "*"):
        return None
    scale, offset = lines[0]
    for other_scale, other_offset in lines[1:]:
        if op == "+":
            scale, offset = scale + other_scale, offset + other_offset
        elif op == "-":
            scale, offset = scale - other_scale, offset - other_offset
        elif scale and other_scale:
            return None
        else:
            scale, offset = scale * other_offset + other_scale * offset, offset * other_offset
    return scale, offset


_PRECEDENCE = {"or": 1, "and": 2, "not": 3, **dict.fromkeys(COMPARISONS, 4)}
_PRECEDENCE |= {"+": 5, "-": 5, "*": 6, "//": 6, "%": 6}


def render(expr: Expr) -> str:
    """An expression as a person writes it: ``seq <= 512``, ``2*n``, ``h % 32 == 0``."""
    return _render(expr)[0]


def _render(expr: Expr) -> tuple[str, int]:
    if isinstance(expr, int):
        return str(expr), 9 if expr >= 0 else 5
    if isinstance(expr, str):
        return expr, 9
    op, operands = expr[0], expr[1:]
    if op in EXTREMA:
        return f"{op}({', '.join(render(operand) for operand in operands)})", 9
    level = _PRECEDENCE[op]
    if op == "not":
        text, inner = _render(operands[0])
        return f"not {text}" if inner > level else f"not ({text})", level
    parts = []
    for position, operand in enumerate(operands):
        text, inner = _render(operand)
        tight = inner > level or (inner == level and position == 0 and op in ARITHMETIC)
        parts.append(text if tight else f"({text})")
    joiner = op if op == "*" else f" {op} "
    return joiner.join(parts), level


def to_python(expr: Expr, names: Mapping[str, str]) -> str:
    """Python source of an expression, for the generated check.

    Made of digits, the operators above and the identifiers in ``names`` alone; ``floordiv`` and
    ``mod`` must be in scope. The caller gives an expression that came through `from_data`.
    """
    if isinstance(expr, int):
        return f"({expr})"
    if isinstance(expr, str):
        return names[expr]
    op = expr[0]
    parts = [to_python(operand, names) for operand in expr[1:]]
    if op in EXTREMA:
        return f"{op}({', '.join(parts)})"
    if op == "not":
        return f"(not {parts[0]})"
    if op in ("//", "%") and not (isinstance(expr[2], int) and expr[2] > 0):
        return f"{'floordiv' if op == '//' else 'mod'}({parts[0]}, {parts[1]})"
    # Not Python's own `and` and `or`: a condition that has no value fails wherever it stands.
    sign = {"and": "&", "or": "|"}.get(op, op)
    return "(" + f" {sign} ".join(parts) + ")"
