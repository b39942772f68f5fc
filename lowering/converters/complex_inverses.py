"""Inverse circular and hyperbolic functions of complex numbers.

By Kahan, "Branch cuts for complex elementary functions, or much ado about nothing's sign bit": of
the roots of 1 - z and 1 + z, so that nothing cancels, and zeros keep the sign that tells the sides of
a cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..tensor import Complex
from .complex import pair
from .complex_functions import root
from .elementwise import constant, libm
from .registry import complex_converter


def _pair(ctx: Context, name: str, re: Any, im: Any, *operands: Any) -> Complex:
    return pair(ctx, name, (re, im), *operands, dtype=operands[0].dtype)


def _turned(ctx: Context, x: Complex) -> Complex:
    """``i x``"""
    return _pair(ctx, "turned", lambda a, b: -b, lambda a, b: a, x.re, x.im)


def _turned_back(ctx: Context, x: Complex) -> Complex:
    """``-i x``"""
    return _pair(ctx, "turned_back", lambda a, b: b, lambda a, b: -a, x.re, x.im)


def _roots(ctx: Context, x: Complex) -> tuple[Complex, Complex]:
    """Of 1 - x and 1 + x."""
    less = _pair(ctx, "less", lambda a, b: constant(1, a) - a, lambda a, b: -b, x.re, x.im)
    more = _pair(ctx, "more", lambda a, b: constant(1, a) + a, lambda a, b: b, x.re, x.im)
    return root(ctx, less), root(ctx, more)


def _asin(ctx: Context, x: Complex) -> Complex:
    less, more = _roots(ctx, x)
    return _pair(
        ctx,
        "asin",
        lambda a, p, q, r, s: libm("atan2", a, p * r - q * s),
        lambda a, p, q, r, s: libm("asinh", p * s - q * r),
        *(x.re, less.re, less.im, more.re, more.im),
    )


def _atanh(ctx: Context, x: Complex) -> Complex:
    def re(a: Any, b: Any) -> Any:
        size = libm("copysign", a, constant(1, a))
        apart = constant(1, a) - size
        ratio = constant(4, a) * size / (apart * apart + b * b)
        return libm("copysign", constant(0.25, a) * libm("log1p", ratio), a)

    def im(a: Any, b: Any) -> Any:
        one = constant(1, a)
        turn = libm("atan2", b + b, (one - a) * (one + a) - b * b)
        return turn * constant(0.5, a)

    return _pair(ctx, "atanh", re, im, x.re, x.im)


def _acos(ctx: Context, x: Complex) -> Complex:
    less, more = _roots(ctx, x)
    return _pair(
        ctx,
        "acos",
        lambda p, q, r, s: constant(2, p) * libm("atan2", p, r),
        lambda p, q, r, s: libm("asinh", r * q - s * p),
        *(less.re, less.im, more.re, more.im),
    )


def _acosh(ctx: Context, x: Complex) -> Complex:
    less = _pair(ctx, "less", lambda a, b: a - constant(1, a), lambda a, b: b, x.re, x.im)
    _, more = _roots(ctx, x)
    less = root(ctx, less)
    return _pair(
        ctx,
        "acosh",
        lambda p, q, r, s: libm("asinh", p * r + q * s),
        lambda p, q, r, s: constant(2, p) * libm("atan2", q, r),
        *(less.re, less.im, more.re, more.im),
    )


_INVERSES: dict[str, Callable[[Context, Complex], Complex]] = {
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": lambda ctx, x: _turned_back(ctx, _asin(ctx, _turned(ctx, x))),
    "atan": lambda ctx, x: _turned_back(ctx, _atanh(ctx, _turned(ctx, x))),
    "atanh": _atanh,
}

for _name, _inverse in _INVERSES.items():
    complex_converter(f"aten.{_name}.default")(_inverse)
