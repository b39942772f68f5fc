"""Sizes: sympy expressions as torch has them, and the same as TIR expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import sympy
import torch
from tvm import tirx

from .quotients import quotient

Size: TypeAlias = "int | sympy.Expr"
Shape: TypeAlias = "tuple[Size, ...]"
Scalar: TypeAlias = "bool | int | float | sympy.Expr"


def as_size(value: Any) -> Size:
    """A size of a fake tensor, a SymInt or a sympy expression; constants become ints."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        value = value.node.expr
    if isinstance(value, sympy.Integer):
        return int(value)
    return value


def as_shape(sizes: Iterable[Any]) -> Shape:
    return tuple(as_size(size) for size in sizes)


def product(sizes: Iterable[Size]) -> Size:
    return as_size(sympy.Mul(*sizes))


def around(shape: Shape, axis: int) -> Shape:
    """A shape as three axes: all before one, that one, and all after it."""
    return (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]))


def same(a: Size, b: Size) -> bool | None:
    """Whether two sizes are equal for all values of their symbols; None where that is not known."""
    if a == b:
        return True
    difference = sympy.expand(sympy.sympify(a) - sympy.sympify(b))
    if difference == 0:
        return True
    return False if difference.is_number else None


def symbols_of(sizes: Iterable[Any]) -> set[str]:
    """The names of the symbols in some sizes."""
    return {
        symbol.name
        for size in sizes
        if isinstance(size, sympy.Basic)
        for symbol in size.free_symbols
    }


def wrapped(value: bool | int | float, dtype: str) -> bool | int | float:
    """An int as a dtype of ints holds it, modulo 2**bits; of bools, whether it is not 0; anything else
    as it is."""
    if dtype == "bool":
        return bool(value)
    kind = dtype.rstrip("0123456789")
    if kind not in ("int", "uint") or type(value) is not int:
        return value
    bits = int(dtype.removeprefix(kind))
    value %= 1 << bits
    return value - (1 << bits) if kind == "int" and value >> (bits - 1) else value


def _pairwise(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *operands: reduce(function, operands)


# By the name of sympy's or torch.utils._sympy.functions' class. Sizes are not negative, so Python's
# and C's modulus agree wherever torch writes `Mod`.
_INTEGER: dict[str, Callable[..., Any]] = {
    "Add": _pairwise(lambda a, b: a + b),
    "Mul": _pairwise(lambda a, b: a * b),
    "FloorDiv": tirx.floordiv,
    "CleanDiv": tirx.floordiv,
    "Mod": tirx.floormod,
    "PythonMod": tirx.floormod,
    "Max": _pairwise(tirx.max),
    "Min": _pairwise(tirx.min),
}
_BOOLEAN: dict[str, Callable[..., Any]] = {
    "Equality": lambda a, b: tirx.EQ(a, b),
    "Unequality": lambda a, b: tirx.NE(a, b),
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
    "And": _pairwise(tirx.all),
    "Or": _pairwise(tirx.any),
    "Not": lambda a: tirx.Not(a),
}
_FLOAT: dict[str, Callable[..., Any]] = {
    "Add": _INTEGER["Add"],
    "Mul": _INTEGER["Mul"],
    "Max": _INTEGER["Max"],
    "Min": _INTEGER["Min"],
    "FloatTrueDiv": lambda a, b: a / b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatPow": tirx.pow,
    "PowByNatural": tirx.pow,
    "OpaqueUnaryFn_sqrt": tirx.sqrt,
    "OpaqueUnaryFn_exp": tirx.exp,
    "OpaqueUnaryFn_log": tirx.log,
    "Abs": tirx.abs,
}


# A size that calls a function of the C library is one that relax cannot infer types with.
_ROUNDED: dict[str, Callable[..., Any]] = {
    "CeilToInt": lambda a, b: -tirx.floordiv(-a, b),
    "FloorToInt": tirx.floordiv,
    "TruncToInt": tirx.truncdiv,
}


class NoForm(ValueError):
    """A sympy expression has no counterpart in TIR."""


class Symbols:
    """The TIR variables of one function, by the names of torch's symbols."""

    def __init__(self) -> None:
        self.variables: dict[str, tirx.Var] = {}

    def variable(self, name: str) -> tirx.Var:
        if name not in self.variables:
            self.variables[name] = tirx.Var(name, "int64")
        return self.variables[name]

    def shape(self, sizes: Iterable[Size]) -> list[Any]:
        return [self.size(size) for size in sizes]

    def size(self, size: Size) -> Any:
        """A size as an int64 expression."""
        if isinstance(size, (int, sympy.Integer)):
            return tirx.IntImm("int64", int(size))
        if isinstance(size, sympy.Symbol):
            return self.variable(size.name)
        kind = type(size).__name__
        if isinstance(size, sympy.Pow) or kind == "PowByNatural":
            base, exponent = size.args
            if isinstance(exponent, sympy.Integer) and 0 < int(exponent) <= 16:
                return reduce(lambda a, b: a * b, [self.size(base)] * int(exponent))
        elif kind in _INTEGER:
            return _INTEGER[kind](*(self.size(argument) for argument in size.args))
        elif kind == "Piecewise":
            return self._piecewise(size)
        elif kind in _ROUNDED and (parts := quotient(size.args[0])) is not None:
            return _ROUNDED[kind](*(self.size(part) for part in parts))
        elif kind in ("CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt"):
            rounding = {
                "CeilToInt": tirx.ceil,
                "FloorToInt": tirx.floor,
                "TruncToInt": tirx.trunc,
                "RoundToInt": tirx.nearbyint,
            }[kind]
            return rounding(self.number(size.args[0], "float64")).astype("int64")
        raise NoForm(f"size {size}")

    def condition(self, condition: Any) -> Any:
        """A boolean of sympy as a TIR condition."""
        if condition in (True, False, sympy.true, sympy.false):
            return tirx.const(bool(condition), "bool")
        kind = type(condition).__name__
        if kind in ("And", "Or", "Not"):
            return _BOOLEAN[kind](*(self.condition(argument) for argument in condition.args))
        if kind in _BOOLEAN:
            return _BOOLEAN[kind](*(self.size(argument) for argument in condition.args))
        raise NoForm(f"condition {condition}")

    def _piecewise(self, size: sympy.Piecewise) -> Any:
        *cases, (last, _) = size.args
        value = self.size(last)
        for case, condition in reversed(cases):
            value = tirx.Select(self.condition(condition), self.size(case), value)
        return value

    def number(self, value: Scalar, dtype: str) -> Any:
        """A Python or sympy number as a TIR expression of a dtype.

        Floating-point expressions are computed in double, as Python does, and rounded once. An int
        that the dtype does not hold wraps, as torch's scalars do.
        """
        if dtype in ("float16", "bfloat16"):
            return self.number(value, "float32").astype(dtype)
        if isinstance(value, (bool, int, float)):
            return tirx.const(wrapped(value, dtype), dtype)
        if getattr(value, "is_Boolean", False):
            return self.condition(value).astype(dtype)
        if value.is_number:
            number = int(value) if value.is_integer else float(value)
            return tirx.const(wrapped(number, dtype), dtype)
        if value.is_integer and type(value).__name__ != "ToFloat":
            return self.size(value).astype(dtype)
        return self._double(value).astype(dtype)

    def _double(self, value: sympy.Expr) -> Any:
        if value.is_number:
            return tirx.const(float(value), "float64")
        kind = type(value).__name__
        if kind == "ToFloat" or (value.is_integer and kind not in _FLOAT):
            inner = value.args[0] if kind == "ToFloat" else value
            return self.size(inner).astype("float64")
        if kind in _FLOAT:
            return _FLOAT[kind](*(self._double(argument) for argument in value.args))
        if isinstance(value, sympy.Pow):
            base, exponent = (self._double(argument) for argument in value.args)
            return tirx.pow(base, exponent)
        raise NoForm(f"number {value}")
