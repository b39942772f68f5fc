"""Calls of the kernels for tensor cores: half-precision floats on a GPU."""

from __future__ import annotations

import sympy

from ..context import Context
from ..cuda import tensor_cores
from ..symbols import Shape, Size, as_size, product
from ..tensor import Tensor


def _even(size: Size) -> bool:
    """Whether a size is known to be a multiple of 8."""
    return isinstance(size, int) and size % 8 == 0


def gemm(
    ctx: Context,
    x: Tensor,
    packed: Tensor,
    n: int,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
) -> Tensor:
    """act(x Wᵀ + bias) + residual, ``[m, n]``: x ``[m, k]``, the weight in panels."""
    m, k = x.shape
    inputs = [x, packed]
    if bias is not None:
        inputs.append(ctx.cast(bias, x.dtype))
    if residual is not None:
        inputs.append(ctx.reshape(residual, (m, n)))
    many = isinstance(m, int) and m > tensor_cores.FEW_ROWS.m
    parts = tensor_cores.parts_of(n, k) if isinstance(k, int) and not many else 1
    function = tensor_cores.gemm(
        dtype=x.dtype,
        bias=bias is not None,
        activation=activation,
        residual=residual is not None,
        even_k=_even(k),
        even_n=_even(n),
        parts=parts,
    )
    if parts == 1:
        return ctx.launch("gemm", function, inputs, (m, n), x.dtype)
    few = as_size(sympy.Min(m, tensor_cores.FEW_ROWS.m))
    results = [((parts, few, n), "float32"), ((m, n), x.dtype)]
    _, made = ctx.launch_all("gemm", function, inputs, results)
    return made


def batched_matmul(
    ctx: Context, a: Tensor, b: Tensor, outer: Shape, *, transpose_b: bool
) -> Tensor:
    """``a @ b`` (or ``a @ bᵀ``), of which each has a matrix for each of ``outer``, or one for all."""
    batch = product(outer)
    m, k = a.shape[-2:]
    n = b.shape[-2] if transpose_b else b.shape[-1]
    stacked = [
        ctx.reshape(operand, (product(operand.shape[:-2]), *operand.shape[-2:]))
        for operand in (a, b)
    ]
    left, right = stacked
    function = tensor_cores.batched_matmul(
        dtype=a.dtype,
        transpose_b=transpose_b,
        broadcast_a=left.shape[0] == 1 and batch != 1,
        broadcast_b=right.shape[0] == 1 and batch != 1,
        even_k=_even(k),
        even_n=_even(n),
    )
    made = ctx.launch("batched_matmul", function, stacked, (batch, m, n), a.dtype)
    return ctx.reshape(made, (*outer, m, n))
