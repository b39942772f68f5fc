"""Torch's symbolic expressions as Python writes them: ``round(n / 4)``, ``n == 3``."""

from __future__ import annotations

from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

_CALLED = {
    "TruncToInt": "int",
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "RoundToInt": "round",
    "ToFloat": "float",
    "Max": "max",
    "Min": "min",
    "PowByNatural": "pow",
    "FloatPow": "pow",
}
_DIVIDED = {
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
}
_OPAQUE = "OpaqueUnaryFn_"


def in_python(expression: Any) -> str:
    """An expression of sympy, or a plain number, with torch's own names for its symbols."""
    return (
        str(_Printer().doprint(expression))
        if isinstance(expression, sympy.Basic)
        else str(expression)
    )


class _Printer(StrPrinter):
    # Torch's functions print themselves by this method, half of them as the classes that they are.
    printmethod = "_none"

    def _print_Function(self, expr: Any) -> str:
        name = type(expr).__name__
        if name in _DIVIDED:
            left, right = (self.parenthesize(each, PRECEDENCE["Mul"]) for each in expr.args)
            return f"{left} {_DIVIDED[name]} {right}"
        shown = ", ".join(self._print(each) for each in expr.args)
        return f"{_CALLED.get(name, name.removeprefix(_OPAQUE))}({shown})"

    _print_Max = _print_Min = _print_Function

    def _print_Relational(self, expr: Any) -> str:
        left, right = (self._print(each) for each in expr.args)
        return f"{left} {expr.rel_op} {right}"

    def _print_Piecewise(self, expr: Any) -> str:
        *cases, (last, _) = expr.args
        text = self._print(last)
        for value, condition in reversed(cases):
            text = f"{self._print(value)} if {self._print(condition)} else {text}"
        return f"({text})"

    def _print_And(self, expr: Any) -> str:
        return f"({' and '.join(self._print(each) for each in expr.args)})"

    def _print_Or(self, expr: Any) -> str:
        return f"({' or '.join(self._print(each) for each in expr.args)})"

    def _print_Not(self, expr: Any) -> str:
        return f"not {self._print(expr.args[0])}"
