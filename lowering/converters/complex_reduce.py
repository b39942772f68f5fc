"""Spreads, norms and truth of complex numbers over some axes: real numbers."""

from __future__ import annotations

from typing import Any

from ..context import Context
from ..tensor import Complex, Tensor
from . import reduce
from .complex_arithmetic import size_of
from .complex_choice import truth
from .elementwise import pointwise
from .registry import complex_converter


@complex_converter("aten.var.correction", "aten.var.dim")
def convert_var(
    ctx: Context,
    x: Complex,
    dim: Any,
    correction: Any = None,
    keepdim: bool = False,
    unbiased: Any = None,
) -> Tensor:
    """The mean square of the distance from the mean: what both parts vary."""
    re, im = (
        reduce.convert_var(ctx, part, dim, correction, keepdim, unbiased) for part in (x.re, x.im)
    )
    return pointwise(ctx, "add", lambda a, b: a + b, re, im, dtype=re.dtype)


@complex_converter("aten.var_mean.correction")
def convert_var_mean(
    ctx: Context, x: Complex, dim: Any, correction: Any, keepdim: bool
) -> list[Tensor | Complex]:
    spread = convert_var(ctx, x, dim, correction, keepdim)
    axes = reduce.axes_of(dim, x.rank)
    re, im = (reduce.mean(ctx, part, axes, keepdim, part.dtype) for part in (x.re, x.im))
    return [spread, Complex(re, im)]


@complex_converter("aten.linalg_vector_norm.default")
def convert_vector_norm(ctx: Context, x: Complex, ord: Any, dim: Any, keepdim: bool) -> Tensor:
    return reduce.convert_vector_norm(ctx, size_of(ctx, x), ord, dim, keepdim)


@complex_converter("aten.any.default", "aten.any.dim", "aten.any.dims")
def convert_any(ctx: Context, x: Complex, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduce.convert_any(ctx, truth(ctx, x), dim, keepdim)


@complex_converter("aten.all.default", "aten.all.dim", "aten.all.dims")
def convert_all(ctx: Context, x: Complex, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduce.convert_all(ctx, truth(ctx, x), dim, keepdim)
