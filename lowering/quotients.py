"""Floats that are quotients of integers, ``n / 3`` and ``1.5 * n``: rounded, integer arithmetic."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.functions import IntTrueDiv, ToFloat

_EXACT = 2**10


def quotient(number: Any) -> tuple[Any, Any] | None:
    """The numerator and the denominator of a sympy expression for a float, which is on the same side
    of each integer as their quotient, since sizes are below 2**52; None where it is none such."""
    if isinstance(number, IntTrueDiv):
        numerator, denominator = number.args
        return numerator, denominator
    if not number.is_Mul or len(number.args) != 2 or not number.args[0].is_Float:
        return None
    factor, inner = number.args
    top, bottom = float(factor).as_integer_ratio()
    if not isinstance(inner, ToFloat) or not 0 < top < _EXACT or bottom >= _EXACT:
        return None  # a product that is not exact
    return top * inner.args[0], sympy.Integer(bottom)
