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
from .registry import complex_converter


@complex_converter("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
def convert_to_copy(ctx: Context, x: Value) -> Value:
    dtype = ctx.expected().dtype
    assert ctx.node is not None
    if ctx.node.meta["val"].dtype in PARTS:
        return complex_of(ctx, x, DTYPES[dtype])
    if dtype is torch.bool:
        return _alike(ctx, x, 0, lambda a, b, c, d: tirx.any(differ(a, c), differ(b, d)))
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


@complex_converter("aten.isnan.default")
def convert_isnan(ctx: Context, x: Complex) -> Tensor:
    return pointwise(
        ctx,
        "isnan",
        lambda a, b: tirx.any(tirx.isnan(a), tirx.isnan(b)),
        x.re,
        x.im,
        dtype=x.re.dtype,
        result="bool",
    )


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
