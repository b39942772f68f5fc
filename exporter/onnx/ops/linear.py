"""Products of matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import as_tensor
from ..operands import dense, require
from ..registry import operator


@operator("MatMul")
def matmul(a: Any, b: Any) -> torch.Tensor:
    a, b = as_tensor(a), as_tensor(b)
    if max(a.dim(), b.dim()) > 2:  # which torch reshapes to three axes
        a, b = dense(a), dense(b)
    return torch.matmul(a, b)


@operator("Gemm")
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> torch.Tensor:
    a, b = as_tensor(a), as_tensor(b)
    a = a.transpose(0, 1) if transA else a
    if alpha == 1.0 and transB and (c is None or (beta == 1.0 and as_tensor(c).dim() == 1)):
        bias = None if c is None else as_tensor(c)
        if bias is None or bias.shape[0] == b.shape[0]:
            return F.linear(a, b, bias)
    product = torch.matmul(a, b.transpose(0, 1) if transB else b)
    product = product if alpha == 1.0 else product * _factor(alpha, product)
    if c is None or beta == 0.0:
        return product
    c = as_tensor(c)
    return product + (c if beta == 1.0 else c * _factor(beta, c))


def _factor(value: float, operand: torch.Tensor) -> Any:
    """alpha and beta are floats for integer operands, too: there only whole ones have a meaning."""
    if operand.is_floating_point():
        return value
    require(value == int(value), f"of integers is not read with the factor {value}")
    return int(value)


@operator("Einsum")
def einsum(*operands: Any, equation: str) -> torch.Tensor:
    return torch.einsum(equation, *[as_tensor(each) for each in operands])


@operator("MatMulInteger")
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> torch.Tensor:
    """Products of 8-bit integers less their zero points, summed in int32."""
    return torch.matmul(_centered(a, a_zero, 0), _centered(b, b_zero, 1))


def _centered(values: Any, zero: Any, side: int) -> torch.Tensor:
    """``side``: 0 where a zero point is for each row, 1 where it is for each column."""
    wide = as_tensor(values).to(torch.int32)
    if zero is None:
        return wide
    zero = as_tensor(zero).to(torch.int32)
    if zero.dim() == 1 and zero.shape[0] > 1 and side == 0:
        zero = zero.unsqueeze(-1)
    return wide - zero
