"""Ops that torch keeps whole, and that are lowered as the others that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _addbmm(
    x: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        beta, alpha = int(beta), int(alpha)  # as eager does
    total = torch.bmm(batch1, batch2).sum(0, dtype=x.dtype)
    total = total if alpha == 1 else total * alpha
    # With beta = 0 what `x` holds does not matter, NaN neither.
    return total if beta == 0 else (x if beta == 1 else x * beta) + total


def _trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """A sum over the product of three tensors, as `nn.Bilinear` has it."""
    for axis in sorted(expand1):
        i1 = i1.unsqueeze(axis)
    for axis in sorted(expand2):
        i2 = i2.unsqueeze(axis)
    for axis in sorted(expand3):
        i3 = i3.unsqueeze(axis)
    return (i1 * i2 * i3).sum(sumdim)


def _diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """What is written to a diagonal comes out as this. One of its two axes numbers the elements
    of ``src``, which are spread over the other one and picked by a mask."""
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    order = [axis for axis in range(x.dim()) if axis not in (dim1, dim2)] + [dim1, dim2]
    matrix = x.permute(order)
    rows, columns = matrix.shape[-2:]
    size, axis = (rows, -1) if offset >= 0 else (columns, -2)
    spread = aten.constant_pad_nd(src, [0, size - src.shape[-1]], 0).unsqueeze(axis)
    row = torch.arange(rows, device=x.device).unsqueeze(1)
    column = torch.arange(columns, device=x.device)
    written = torch.where(column - row == offset, spread, matrix)
    return written.permute([order.index(axis) for axis in range(x.dim())])


def _ldexp(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x * torch.pow(2.0, other)


COMPOSITES: dict[Any, Callable[..., torch.Tensor]] = {
    aten.addbmm.default: _addbmm,
    aten._trilinear.default: _trilinear,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.ldexp.Tensor: _ldexp,
}
