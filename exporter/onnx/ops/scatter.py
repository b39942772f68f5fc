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
    require(reduction in ("none", "add"), f"is not read with reduction {reduction}", "none or add")
    x, updates = as_tensor(x), as_tensor(updates)
    places = positions(as_tensor(indices).to(torch.int64))
    return x.index_put(places, updates, accumulate=reduction == "add")
