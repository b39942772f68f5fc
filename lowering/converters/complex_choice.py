"""Comparisons of complex numbers, choice of one of two, and conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tvm import tirx

from ..context import Context
from ..tensor import DTYPES, PARTS, Complex, Tensor
from .complex import Value, complex_of, dtype_of_parts, parts_of
from .elementwise import constant, differ, equal, negation, pointwise
from .registry import CONVERTERS, complex_converter


@complex_converter("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
def convert_to_copy(ctx: Context, x: Value) -> Value:
    dtype = ctx.expected().dtype
    assert ctx.node is not None
    if ctx.node.meta["val"].dtype in PARTS:
        return complex_of(ctx, x, DTYPES[dtype])
    if dtype is torch.bool:
        return truth(ctx, x)
    return ctx.cast(x.re, DTYPES[dtype])  # eager discards the imaginary part, too


@complex_converter("aten.eq.Tensor", "aten.eq.Scalar")
def convert_eq(ctx: Context, x: Value, other: Value) -> Tensor:
    return _alike(ctx, x, other, lambda a, b, c, d: tirx.all(equal(a, c), equal(b, d)))


@complex_converter("aten.ne.Tensor", "aten.ne.Scalar")
def convert_ne(ctx: Context, x: Value, other: Value) -> Tensor:
    return _alike(ctx, x, other, lambda a, b, c, d: tirx.any(differ(a, c), differ(b, d)))


def _alike(ctx: Context, x: Value, other: Value, element: Callable[..., Any]) -> Tensor:
    operands = []
    for value in (x, other):
        re, im = parts_of(value)
        operands += [re, 0.0 if im is None else im]
    double = any(isinstance(o, Tensor) and o.dtype in ("float64", "int64") for o in operands)
    dtype = "float64" if double else "float32"
    return pointwise(ctx, "compare", element, *operands, dtype=dtype, result="bool")


def _register_either(name: str, element: Callable[[Any], Any]) -> None:
    @complex_converter(f"aten.{name}.default")
    def convert_either(ctx: Context, x: Complex) -> Tensor:
        def of_either(a: Any, b: Any) -> Any:
            return tirx.any(element(a), element(b))

        return pointwise(ctx, name, of_either, x.re, x.im, dtype=x.re.dtype, result="bool")


_register_either("isnan", tirx.isnan)
_register_either("isinf", lambda a: tirx.EQ(tirx.abs(a), tirx.infinity(str(a.ty.dtype))))


def truth(ctx: Context, x: Value) -> Tensor:
    """Whether each is not zero."""
    return _alike(ctx, x, 0, lambda a, b, c, d: tirx.any(differ(a, c), differ(b, d)))


def _register_logic(name: str) -> None:
    @complex_converter(f"aten.{name}.default")
    def convert_logic(ctx: Context, x: Value, other: Value) -> Tensor:
        return CONVERTERS[f"aten.{name}.default"](ctx, x=truth(ctx, x), other=truth(ctx, other))


for _name in ("logical_and", "logical_or", "logical_xor"):
    _register_logic(_name)


@complex_converter("aten.logical_not.default")
def convert_logical_not(ctx: Context, x: Complex) -> Tensor:
    return pointwise(ctx, "logical_not", negation, truth(ctx, x), dtype="bool")


@dataclass(frozen=True)
class _Number:
    re: Any
    im: Any


def _number(value: Any) -> _Number:
    re, im = parts_of(value)
    return _Number(re, im or 0)


@complex_converter(
    "aten.where.self", "aten.where.Scalar", "aten.where.ScalarSelf", "aten.where.ScalarOther"
)
def convert_where(ctx: Context, condition: Tensor, x: Value, other: Value) -> Complex:
    dtype = dtype_of_parts(ctx)
    one, two = (
        complex_of(ctx, value, dtype) if isinstance(value, (Tensor, Complex)) else _number(value)
        for value in (x, other)
    )
    return Complex(
        *(
            pointwise(
                ctx,
                "where",
                lambda c, a, b: tirx.Select(negation(tirx.EQ(c, constant(0, c))), a, b),
                ctx.cast(condition, dtype),
                a,
                b,
                dtype=dtype,
            )
            for a, b in ((one.re, two.re), (one.im, two.im))
        )
    )


@complex_converter("aten.masked_fill.Scalar")
def convert_masked_fill(ctx: Context, x: Complex, mask: Tensor, value: Any) -> Complex:
    filled = parts_of(value)

    def part(tensor: Tensor, number: Any) -> Tensor:
        def element(a: Any, m: Any) -> Any:
            return tirx.Select(m > constant(0.5, m), constant(number or 0, a), a)

        return pointwise(ctx, "masked_fill", element, tensor, mask, dtype=tensor.dtype)

    return Complex(part(x.re, filled[0]), part(x.im, filled[1]))
