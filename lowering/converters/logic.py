"""Comparisons, logic, and the bits of integers."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..dtypes import result_dtype
from ..tensor import Tensor
from .elementwise import (
    Element,
    Operand,
    constant,
    differ,
    dtype_of_result,
    equal,
    is_float,
    negation,
    pointwise,
    rounded,
)
from .registry import converter

_COMPARISONS: dict[str, Element] = {
    "eq": equal,
    "ne": differ,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: tirx.any(a < b, equal(a, b)),
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: tirx.any(a > b, equal(a, b)),
}


def _register_comparison(name: str, element: Element) -> None:
    @converter(f"aten.{name}.Tensor", f"aten.{name}.Scalar", takes_halves=True)
    def convert_comparison(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        dtype = result_dtype(x, other)
        if dtype == "bool":
            dtype = "int8"
        other = rounded(other, dtype)
        return pointwise(ctx, name, element, x, other, dtype=dtype, result="bool")


for _name, _element in _COMPARISONS.items():
    _register_comparison(_name, _element)


_LOGIC: dict[str, Element] = {
    "logical_and": tirx.all,
    "logical_or": tirx.any,
    "logical_xor": differ,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}


def _register_logic(name: str, element: Element, overloads: tuple[str, ...]) -> None:
    @converter(*(f"aten.{name}.{overload}" for overload in overloads))
    def convert_logic(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        if dtype_of_result(ctx) == "bool":
            chosen = _LOGIC[name.replace("bitwise", "logical")]
            return pointwise(ctx, name, chosen, x, other, dtype="bool")
        return pointwise(ctx, name, element, x, other, dtype=dtype_of_result(ctx))


for _name, _element in _LOGIC.items():
    _register_logic(
        _name, _element, ("default",) if _name.startswith("logical") else ("Tensor", "Scalar")
    )


@converter("aten.logical_not.default")
def convert_logical_not(ctx: Context, x: Tensor) -> Tensor:
    return pointwise(ctx, "logical_not", negation, x, dtype="bool")


@converter("aten.bitwise_not.default")
def convert_bitwise_not(ctx: Context, x: Tensor) -> Tensor:
    element = negation if x.dtype == "bool" else tirx.bitwise_not
    return pointwise(ctx, "bitwise_not", element, x, dtype=x.dtype)


def _shift(left: bool) -> Element:
    def element(a: Any, b: Any) -> Any:
        """Beyond the width of the dtype, and by a negative number, nothing of ``a`` is left but the
        sign of a shift to the right."""
        dtype = str(a.ty.dtype)
        bits = int(dtype.lstrip("uint"))
        outside = tirx.any(b < constant(0, b), b >= constant(bits, b))
        if left:
            safe = tirx.Select(outside, constant(0, b), b)
            return tirx.Select(outside, constant(0, a), tirx.shift_left(a, safe))
        most = bits if dtype.startswith("uint") else bits - 1
        if most == bits:
            safe = tirx.Select(outside, constant(0, b), b)
            return tirx.Select(outside, constant(0, a), tirx.shift_right(a, safe))
        return tirx.shift_right(a, tirx.Select(outside, constant(most, b), b))

    return element


def _register_shift(name: str, python_name: str, left: bool) -> None:
    @converter(
        f"aten.{name}.Tensor",
        f"aten.{name}.Tensor_Scalar",
        f"aten.{python_name}.Tensor",
        f"aten.{python_name}.Scalar",
    )
    def convert_shift(ctx: Context, x: Tensor, other: Operand) -> Tensor:
        dtype = dtype_of_result(ctx)
        if is_float(dtype) or dtype == "bool":
            raise Unsupported(f"of {dtype}", "integers")
        return pointwise(ctx, name, _shift(left), x, other, dtype=dtype)


_register_shift("bitwise_left_shift", "__lshift__", left=True)
_register_shift("bitwise_right_shift", "__rshift__", left=False)
