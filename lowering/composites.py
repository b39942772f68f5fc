"""Ops that are lowered as the others that they are made of: torch keeps them whole, or takes them apart
in a way that fixes sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .einsum import einsum

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
    return (i1 * i2 * i3).sum(sumdim, dtype=i1.dtype)


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


def affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> torch.Tensor:
    """As eager computes it; torch's decomposition makes a number of each size, which fixes it.

    Args:
        theta: (N, 2, 3), or (N, 3, 4) for volumes.
        size: (N, C, H, W), or (N, C, D, H, W).

    Returns:
        (N, H, W, 2), or (N, D, H, W, 3).
    """
    batch, _, *spatial = size
    count = len(spatial)
    columns = []
    for axis in reversed(range(count)):
        steps = spatial[axis]
        places = line(-1, 1, steps, theta.dtype, theta.device)
        # A single step stands in the middle.
        places = (
            places * torch.sym_min(steps - 1, 1) if align_corners else places * (steps - 1) / steps
        )
        shape = [1] * (count + 1)
        shape[axis + 1] = steps
        columns.append(places.reshape(shape).expand(batch, *spatial))
    base = torch.stack([*columns, torch.ones_like(columns[0])], -1)
    grid = base.reshape(batch, -1, count + 1) @ theta.transpose(1, 2)
    return grid.reshape(batch, *spatial, count)


def line(start: Any, end: Any, steps: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """`torch.linspace` as eager computes it, from both ends to the middle; its own code takes the
    number of steps as a plain one, which fixes it."""
    place = torch.arange(steps, dtype=dtype, device=device)
    first = torch.full((), start, dtype=dtype, device=device)
    last = torch.full((), end, dtype=dtype, device=device)
    step = (last - first) / torch.sym_max(steps - 1, 1)
    near = place < torch.sym_max(steps // 2, 1)
    return torch.where(near, first + step * place, last - step * ((steps - 1) - place))


def cdist(
    x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: int | None = None
) -> torch.Tensor:
    """As eager computes it: by a product of matrices where there are more than 25 rows on one side, by
    differences where there are not. Sizes that may be either are computed in both ways."""
    rows = (x1.shape[-2], x2.shape[-2])
    mode = compute_mode or 0
    if p != 2 or mode == 2 or (mode == 0 and all(statically_known_true(n <= 25) for n in rows)):
        return aten._cdist_forward(x1, x2, p, compute_mode)
    norms1, norms2 = (x.pow(2).sum(-1, keepdim=True) for x in (x1, x2))
    left = torch.cat([x1 * -2, norms1, torch.ones_like(norms1)], -1)
    right = torch.cat([x2, torch.ones_like(norms2), norms2], -1)
    by_product = torch.matmul(left, right.mT).clamp_min(0).sqrt()
    if mode == 1 or any(statically_known_true(n > 25) for n in rows):
        return by_product
    most = torch.full((), torch.sym_max(*rows), dtype=torch.int64, device=x1.device)
    return torch.where(most > 25, by_product, aten._cdist_forward(x1, x2, p, 2))


COMPOSITES: dict[Any, Callable[..., torch.Tensor]] = {
    aten.addbmm.default: _addbmm,
    aten.affine_grid_generator.default: affine_grid,
    aten._trilinear.default: _trilinear,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.einsum.default: einsum,
    aten.ldexp.Tensor: _ldexp,
}
