"""Tensors made from numbers and sizes alone."""

from __future__ import annotations

from typing import Any

import torch
from tvm import tirx

from ..context import Context, Unsupported, constant_tensor
from ..dtypes import convert
from ..symbols import Scalar, as_shape
from ..tensor import Constant, Tensor
from .elementwise import dtype_of_result, is_float, opaque
from .registry import converter


def filled(ctx: Context, value: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
    shape = as_shape(ctx.expected().shape)
    # It may become a part of the kernel that multiplies with it.
    return ctx.compute(
        "full", [], shape, dtype, lambda scope, _, __: opaque(scope.number(value, dtype))
    )


@converter("aten.full.default")
def convert_full(ctx: Context, size: Any, fill_value: Scalar) -> Tensor:
    return filled(ctx, fill_value)


@converter("aten.full_like.default", "aten.new_full.default")
def convert_full_like(ctx: Context, x: Tensor, fill_value: Scalar, size: Any = None) -> Tensor:
    return filled(ctx, fill_value)


@converter("aten.empty.memory_format")
def convert_empty(ctx: Context, size: Any) -> Tensor:
    """Any content is as good as eager's."""
    return filled(ctx, 0)


@converter("aten.tril_indices.default", "aten.triu_indices.default")
def convert_triangle_indices(ctx: Context, row: Any, col: Any, offset: Any) -> Tensor:
    assert ctx.node is not None
    if not all(isinstance(size, int) for size in (row, col, offset)):
        raise Unsupported("of axes that vary", "torch.ones(n, n).tril().nonzero().T")
    made = torch.tril_indices if "tril" in str(ctx.node.target) else torch.triu_indices
    value = made(row, col, offset, dtype=ctx.expected().dtype)
    return constant_tensor(Constant(f"{ctx.node.name}:indices", value, None, frozenset()))


@converter("aten.scalar_tensor.default")
def convert_scalar_tensor(ctx: Context, s: Scalar) -> Tensor:
    return filled(ctx, s)


@converter("aten.arange.start_step")
def convert_arange(ctx: Context, start: Scalar, end: Scalar, step: Scalar) -> Tensor:
    dtype = dtype_of_result(ctx)
    # ATen accumulates floats in double.
    wide = "float64" if is_float(dtype) else "int64"

    def element(scope: Any, _: Any, position: tuple[Any, ...]) -> Any:
        offset = position[0].astype(wide) * scope.number(step, wide)
        return convert(scope.number(start, wide) + offset, dtype)

    return ctx.compute("arange", [], as_shape(ctx.expected().shape), dtype, element)


@converter("aten.eye.default", "aten.eye.m")
def convert_eye(ctx: Context, n: Any, m: Any = None) -> Tensor:
    dtype = dtype_of_result(ctx)

    def element(scope: Any, _: Any, position: tuple[Any, ...]) -> Any:
        one, zero = scope.number(1, dtype), scope.number(0, dtype)
        return tirx.Select(tirx.EQ(position[0], position[1]), one, zero)

    return ctx.compute("eye", [], as_shape(ctx.expected().shape), dtype, element)


def _triangle(ctx: Context, x: Tensor, diagonal: int, upper: bool) -> Tensor:
    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        row, column = position[-2:]
        offset = column - row
        bound = scope.size(diagonal)
        kept = offset >= bound if upper else offset <= bound
        return tirx.Select(kept, tensors[0](*position), tirx.const(0, x.dtype))

    return ctx.compute("triu" if upper else "tril", [x], x.shape, x.dtype, element)


@converter("aten.triu.default", takes_halves=True)
def convert_triu(ctx: Context, x: Tensor, diagonal: int) -> Tensor:
    return _triangle(ctx, x, diagonal, upper=True)


@converter("aten.tril.default", takes_halves=True)
def convert_tril(ctx: Context, x: Tensor, diagonal: int) -> Tensor:
    return _triangle(ctx, x, diagonal, upper=False)
