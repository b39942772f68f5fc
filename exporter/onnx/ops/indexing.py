"""Elements picked by position. Positions from -size to -1 count from the end."""

from __future__ import annotations

from typing import Any

import torch

from ..numbers import Numbers, as_tensor, picked
from ..operands import require
from ..registry import operator


@operator("Gather")
def gather(x: Any, indices: Any, *, axis: int = 0) -> Any:
    rank = len(x.shape)
    axis = axis % rank
    if isinstance(indices, Numbers) and all(isinstance(each, int) for each in indices.values):
        if isinstance(x, Numbers):
            return _of_numbers(x, indices, axis)
        if indices.shape == ():
            return x.select(axis, indices.values[0])
    x, indices = as_tensor(x), as_tensor(indices).to(torch.int64)
    return x[(slice(None),) * axis + (indices,)]


def _of_numbers(x: Numbers, indices: Numbers, axis: int) -> Numbers:
    taken = [list(range(size)) for size in x.shape]
    taken[axis] = [range(x.shape[axis])[place] for place in indices.values]
    found = picked(x, taken)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return Numbers(found.values, shape, x.dtype)


def not_negative(indices: torch.Tensor, size: Any, known: Any) -> torch.Tensor:
    """Positions counted from the front, for the ops of torch that know no others.

    Args:
        known: the indices as they came; a constant without negative ones stays as it is.
    """
    if isinstance(known, Numbers) and all(each >= 0 for each in known.values):
        return indices
    return torch.where(indices < 0, indices + size, indices)


@operator("GatherElements")
def gather_elements(x: Any, indices: Any, *, axis: int = 0) -> torch.Tensor:
    x, places = as_tensor(x), as_tensor(indices).to(torch.int64)
    return torch.gather(x, axis, not_negative(places, x.shape[axis], indices))


@operator("GatherND")
def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> torch.Tensor:
    x, indices = as_tensor(x), as_tensor(indices).to(torch.int64)
    return x[positions(indices, batch_dims)]


def positions(indices: torch.Tensor, batch_dims: int = 0) -> tuple[torch.Tensor, ...]:
    """The last axis of the indices holds a position for each of the first axes."""
    count = indices.shape[-1]
    require(isinstance(count, int), "is not read with a dynamic number of positions")
    places = [indices.select(-1, at) for at in range(count)]
    rank = indices.dim() - 1
    batches = [
        torch.arange(indices.shape[axis]).reshape([-1] + [1] * (rank - 1 - axis))
        for axis in range(batch_dims)
    ]
    return (*batches, *places)


@operator("NonZero")
def non_zero(x: Any) -> torch.Tensor:
    return torch.nonzero(as_tensor(x)).transpose(0, 1)


@operator("Compress")
def compress(x: Any, condition: Any, *, axis: int | None = None) -> torch.Tensor:
    x = as_tensor(x)
    places = torch.nonzero(as_tensor(condition)).select(1, 0)
    return x.reshape(-1)[places] if axis is None else x.index_select(axis, places)
