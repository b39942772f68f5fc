"""Elements written to positions. With reductions, what lies there counts, too."""

from __future__ import annotations

from typing import Any

import torch

from ..numbers import as_tensor
from ..operands import require
from ..registry import operator
from .indexing import not_negative, positions

_REDUCE = {"mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements")
def scatter_elements(
    x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none"
) -> torch.Tensor:
    x, updates = as_tensor(x), as_tensor(updates)
    places = not_negative(as_tensor(indices).to(torch.int64), x.shape[axis], indices)
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, places, updates)
    require(reduction in _REDUCE, f"is not read with reduction {reduction}")
    return torch.scatter_reduce(x, axis, places, updates, _REDUCE[reduction])


@operator("ScatterND")
def scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> torch.Tensor:
    x, updates = as_tensor(x), as_tensor(updates)
    indices = as_tensor(indices).to(torch.int64)
    places = positions(indices)
    if reduction in ("none", "add"):
        return x.index_put(places, updates, accumulate=reduction == "add")
    require(reduction in _REDUCE, f"is not read with reduction {reduction}")
    # As rows, one for each combination of the positions that are given.
    row: Any = 0
    for place, size in zip(places, x.shape, strict=False):
        row = row * size + not_negative(place, size, None)
    depth = len(places)
    rows = x.flatten(0, depth - 1) if depth > 1 else x
    rows = rows.unsqueeze(-1) if rows.dim() == 1 else rows.flatten(1)
    found = row.reshape(-1, 1).expand(-1, rows.shape[1])
    written = updates.reshape(found.shape)
    return torch.scatter_reduce(rows, 0, found, written, _REDUCE[reduction]).reshape(x.shape)
