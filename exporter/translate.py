"""Torch's symbolic expressions (sympy over ``s6``, ``u0``) → expressions over the user's dims.

Before translation a guard is brought into the form that a person would have written:
``Eq(s, Min(512, s))`` is ``s <= 512``, ``Eq(s, 100*(s//100))`` is ``s % 100 == 0``, and a factor
that is never zero is cancelled from both sides of an equation. Of ``Ne(n*m, 0)`` come two conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloorDiv,
    FloorToInt,
    Max,
    Min,
    Mod,
    PowByNatural,
    PythonMod,
    ToFloat,
    TruncToInt,
)

from ..artifacts.contract import MAX_SIZE
from ..artifacts.expr import ARITHMETIC, ARITY, Expr, dims_of, evaluate
from ..artifacts.prove import Span, bounds
from ..lowering.quotients import quotient


class Untranslatable(Exception):
    """An expression has no form over the dims: ``template`` says why of ``expression``, a part of it.

    Torch's symbols stand in it; `words.Words.why` gives it in the user's.
    """

    def __init__(self, template: str, expression: Any) -> None:
        super().__init__(template.format(expression))
        self.template = template
        self.expression = expression


_RELATIONS = {
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
    sympy.And: "and",
    sympy.Or: "or",
    sympy.Not: "not",
}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MAX_POWER = 16


def to_expr(expression: Any, dims: Mapping[sympy.Symbol, Expr]) -> Expr:
    """Translate a sympy expression; ``dims`` gives each torch symbol in the user's dims.

    Raises:
        Untranslatable: a symbol without a meaning to the user, or an operator we do not have.
    """
    if isinstance(expression, (bool, sympy.logic.boolalg.BooleanAtom)):
        return ("==", 0, 0) if bool(expression) else ("==", 0, 1)
    if isinstance(expression, int):
        return expression
    if expression in dims:
        return dims[expression]
    if expression.is_Integer:
        return int(expression)
    if isinstance(expression, sympy.Symbol):
        raise Untranslatable("{} is computed from data", expression)

    def each() -> list[Expr]:
        return [to_expr(argument, dims) for argument in expression.args]

    if expression.is_Add:
        return _sum(expression, dims)
    if expression.is_Mul:
        if any(argument.is_Rational and not argument.is_Integer for argument in expression.args):
            raise Untranslatable("{} has a fraction", expression)
        return fold("*", *each())
    if isinstance(expression, (FloorDiv, CleanDiv)):
        return fold("//", *_over_positive(*each()))
    if isinstance(expression, (Mod, PythonMod)):
        return fold("%", *each())
    if isinstance(expression, (Max, sympy.Max)):
        return fold("max", *each())
    if isinstance(expression, (Min, sympy.Min)):
        return fold("min", *each())
    if isinstance(expression, (sympy.Pow, PowByNatural)):
        base, power = expression.args
        if power.is_Integer and 1 <= int(power) <= _MAX_POWER:
            return fold("*", *[to_expr(base, dims)] * int(power))
        raise Untranslatable("{} is not a small power", expression)
    if isinstance(expression, (CeilToInt, FloorToInt, TruncToInt)):
        parts = quotient(expression.args[0])
        if parts is not None:
            over = _over_positive(*(to_expr(part, dims) for part in parts))
            return _rounded(type(expression), *over, dims)
    for relation, op in _RELATIONS.items():
        if isinstance(expression, relation):
            return fold(op, *[to_expr(_whole(side), dims) for side in expression.args])
    raise Untranslatable(
        "{} is none of the numbers and conditions that a guard can hold", expression
    )


def _over_positive(numerator: Expr, denominator: Expr) -> tuple[Expr, Expr]:
    """The same quotient with a denominator that is no negative number."""
    if isinstance(denominator, int) and denominator < 0:
        return fold("-", 0, numerator), -denominator
    return numerator, denominator


def _rounded(
    rounding: Any, numerator: Expr, denominator: Expr, dims: Mapping[sympy.Symbol, Expr]
) -> Expr:
    """A quotient, rounded as ``math.ceil``, ``math.floor`` or ``int`` (towards zero) rounds it.

    It has no value where the denominator is not positive, as every division.
    """
    if rounding is CeilToInt:
        rest = denominator - 1 if isinstance(denominator, int) else fold("-", denominator, 1)
        return fold("//", fold("+", numerator, rest), denominator)
    if rounding is FloorToInt or _lowest(numerator, dims) >= 0:
        return fold("//", numerator, denominator)
    above = fold("//", fold("max", numerator, 0), denominator)
    below = fold("//", fold("max", fold("-", 0, numerator), 0), denominator)
    return fold("-", above, below)


def _lowest(expr: Expr, dims: Mapping[sympy.Symbol, Expr]) -> float:
    """A bound below a number over the dims, of which sizes are known not to be negative.

    Zero is among the sizes, though torch takes them to be positive; values of integers may be any.
    """
    sizes: dict[str, Span] = {}
    for symbol, meaning in dims.items():
        lo = 0 if symbol.is_nonnegative else -MAX_SIZE
        for name in dims_of(meaning):
            sizes[name] = Span(max(lo, sizes[name].lo) if name in sizes else lo, None)
    return bounds(expr, sizes)[0]


def _whole(number: Any) -> Any:
    """The integer that a float in a comparison is: sizes are below 2**53, where floats hold all."""
    if isinstance(number, ToFloat):
        return number.args[0]
    if number.is_Float and float(number).is_integer():
        return sympy.Integer(int(number))
    return number


def _sum(expression: Any, dims: Mapping[sympy.Symbol, Expr]) -> Expr:
    """A sum with its negative terms behind minus signs: ``n - 1``, not ``n + -1``."""
    plus: list[Any] = []
    minus: list[Any] = []
    for term in expression.as_ordered_terms():
        (minus if term.could_extract_minus_sign() else plus).append(term)
    total = fold("+", *[to_expr(term, dims) for term in plus]) if plus else 0
    for term in minus:
        total = fold("-", total, to_expr(-term, dims))
    return total


def fold(op: str, *operands: Expr) -> Expr:
    """``(op, …)`` with nested sums and products flattened and plain numbers computed."""
    if op in ("+", "*"):
        flat: list[Expr] = []
        for operand in operands:
            if isinstance(operand, tuple) and operand[0] == op:
                flat += operand[1:]
            else:
                flat.append(operand)
        numbers = [value for value in flat if isinstance(value, int)]
        rest: list[Expr] = [value for value in flat if not isinstance(value, int)]
        number = sum(numbers) if op == "+" else _product(numbers)
        neutral = 0 if op == "+" else 1
        if op == "*" and number == 0:
            return 0
        if number != neutral or not rest:
            rest = [*rest, number] if op == "+" else [number, *rest]
        return rest[0] if len(rest) == 1 else _split((op, *rest))
    if op == "-" and operands[1] == 0:
        return operands[0]
    if op in _MIRRORED and isinstance(operands[0], int) and not isinstance(operands[1], int):
        return fold(_MIRRORED[op], operands[1], operands[0])
    inner = operands[0]
    if op == "not" and isinstance(inner, tuple) and inner[0] in _NEGATED:
        return (_NEGATED[inner[0]], *inner[1:])
    if op in ARITHMETIC and all(isinstance(value, int) for value in operands):
        a, b = operands
        assert isinstance(a, int) and isinstance(b, int)
        if op == "-":
            return a - b
        if b > 0:
            return a // b if op == "//" else a % b
    if op in ("//", "%") and isinstance(operands[1], int) and operands[1] > 0:
        shared = _multiple(inner, operands[1])
        if shared is not None:
            return shared if op == "//" else 0
    if op in ("min", "max") and len(operands) == 1:
        return operands[0]
    return _split((op, *operands))


def _multiple(expr: Expr, divisor: int) -> Expr | None:
    """An expression divided by a number that divides it whatever the dims are; None where that is not
    seen."""
    if divisor == 1:
        return expr
    if isinstance(expr, tuple) and expr[0] == "*" and isinstance(expr[1], int):
        return None if expr[1] % divisor else fold("*", expr[1] // divisor, *expr[2:])
    return None


def substitute(expr: Expr, sizes: Mapping[str, int]) -> Expr:
    """The expression with some dims at a size."""
    if not dims_of(expr) - sizes.keys():
        return evaluate(expr, sizes)
    if isinstance(expr, tuple):
        return fold(expr[0], *[substitute(operand, sizes) for operand in expr[1:]])
    return expr


def _split(expr: tuple[Any, ...]) -> Expr:
    """An n-ary node within the arity that a file may hold, as a tree."""
    op, operands = expr[0], expr[1:]
    _, high = ARITY[op]
    if len(operands) <= high:
        return expr
    parts = [operands[start : start + high] for start in range(0, len(operands), high)]
    return (op, *((op, *part) if len(part) > 1 else part[0] for part in parts))


def _product(numbers: list[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def simplified(guard: Any, is_positive: Callable[[sympy.Symbol], bool]) -> Any:
    """The guard in the form that a person would have written it, with the same meaning.

    ``is_positive`` says whether a symbol is at least 1 at every call (its range is checked first).
    """
    if isinstance(guard, (sympy.And, sympy.Or, sympy.Not)):
        return guard.func(*[simplified(each, is_positive) for each in guard.args])
    if isinstance(guard, (sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)):
        return _shifted(guard)
    if not isinstance(guard, (sympy.Eq, sympy.Ne)):
        return guard
    left, right = guard.args
    if isinstance(guard, sympy.Ne) and right == 0 and left.is_Mul:
        return sympy.And(*[sympy.Ne(factor, 0) for factor in left.args])
    same: Any = sympy.Le if isinstance(guard, sympy.Eq) else sympy.Gt
    for value, extremum in ((left, right), (right, left)):
        if isinstance(extremum, (Min, sympy.Min)) and value in extremum.args:
            others = [argument for argument in extremum.args if argument != value]
            if len(others) == 1:
                return same(value, others[0])
        if isinstance(extremum, (Max, sympy.Max)) and value in extremum.args:
            others = [argument for argument in extremum.args if argument != value]
            if len(others) == 1:
                return same(others[0], value)
    left, right = _cancelled(left, right, is_positive)
    for value, multiple in ((left, right), (right, left)):
        divisor = _divisor_of_floor(value, multiple)
        if divisor is not None:
            return guard.func(Mod(value, divisor), 0)
    return guard.func(left, right)


def _shifted(guard: Any) -> Any:
    """``n - 5 >= 0`` as ``n >= 5``: the same words that a range of one size has."""
    left, right = guard.args
    for side, other in ((left, right), (right, left)):
        offset, rest = side.as_coeff_Add()
        if rest.is_Symbol and offset.is_Integer and offset and other.is_Integer:
            value = other - offset
            return guard.func(rest, value) if side is left else guard.func(value, rest)
    return guard


def _cancelled(left: Any, right: Any, is_positive: Callable[[sympy.Symbol], bool]) -> Any:
    """Both sides without the symbols that are factors of each and never zero."""
    for symbol in sorted((left - right).free_symbols, key=str):
        if not is_positive(symbol):
            continue
        while True:
            sides = [_without_factor(side, symbol) for side in (left, right)]
            if None in sides:
                break
            left, right = sides
    return left, right


def _without_factor(side: Any, symbol: sympy.Symbol) -> Any:
    """``side / symbol`` where the symbol is a factor of every term, else None."""
    if side == 0:
        return None
    terms = []
    for term in sympy.Add.make_args(side):
        factors = list(sympy.Mul.make_args(term))
        for position, factor in enumerate(factors):
            base, power = factor.as_base_exp()
            if base == symbol and power.is_Integer and int(power) >= 1:
                factors[position] = symbol ** (int(power) - 1)
                break
        else:
            return None
        terms.append(sympy.Mul(*factors))
    return sympy.Add(*terms)


def _divisor_of_floor(value: Any, multiple: Any) -> int | None:
    """``c`` where ``multiple`` is ``c * (value // c)``."""
    if not multiple.is_Mul or len(multiple.args) != 2:
        return None
    number, floor = multiple.args
    if not (number.is_Integer and isinstance(floor, FloorDiv)):
        return None
    base, divisor = floor.args
    return int(number) if base == value and divisor == number and int(number) > 1 else None
