"""Pooling over windows, and over all of an image."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import as_tensor
from ..operands import require
from ..registry import operator
from .convolution import padded, same_at_both_ends, window_pads

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@operator("MaxPool")
def max_pool(
    x: Any,
    *,
    outputs: int,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> tuple[torch.Tensor, ...]:
    x = as_tensor(x)
    rank = len(kernel_shape)
    require(rank in _MAX, f"is not read over {rank} spatial axes", "1, 2 or 3 of them")
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    before, after = window_pads(x, kernel_shape, strides, dilations, pads, auto_pad)
    fits = all(isinstance(p, int) and 2 * p <= k for p, k in zip(before, kernel_shape, strict=True))
    even = same_at_both_ends(before, after) and fits
    if even:
        pad: Any = before
    else:
        require(not ceil_mode, "is not read with ceil_mode and other pads at both ends")
        require(outputs == 1, "is not read with indices and other pads at both ends")
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        x, pad = padded(x, before, after, lowest), 0
    run = _MAX[rank]
    if outputs == 1:
        return (run(x, kernel_shape, strides, pad, dilations, bool(ceil_mode)),)
    require(storage_order == 0, "is not read with storage_order=1")
    found, places = run(x, kernel_shape, strides, pad, dilations, bool(ceil_mode), True)
    # torch counts within one channel of one image, ONNX through all of them.
    images = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *[1] * rank)
    return found, places + images * math.prod(x.shape[2:])


@operator("AveragePool")
def average_pool(
    x: Any,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> torch.Tensor:
    x = as_tensor(x)
    rank = len(kernel_shape)
    require(rank in _AVERAGE, f"is not read over {rank} spatial axes", "1, 2 or 3 of them")
    require(set(dilations or [1]) == {1}, "is not read with dilations")
    strides = strides or [1] * rank
    before, after = window_pads(x, kernel_shape, strides, [1] * rank, pads, auto_pad)
    run = _AVERAGE[rank]
    fits = all(isinstance(p, int) and 2 * p <= k for p, k in zip(before, kernel_shape, strict=True))
    if same_at_both_ends(before, after) and fits:
        return run(x, kernel_shape, strides, before, bool(ceil_mode), bool(count_include_pad))
    require(not ceil_mode, "is not read with ceil_mode and other pads at both ends")
    sums = run(padded(x, before, after, 0), kernel_shape, strides, 0, False, True)
    if count_include_pad:
        return sums
    ones = padded(torch.ones_like(x[:1, :1]), before, after, 0)
    return sums / run(ones, kernel_shape, strides, 0, False, True)


@operator("GlobalAveragePool")
def global_average_pool(x: Any) -> torch.Tensor:
    x = as_tensor(x)
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(x: Any) -> torch.Tensor:
    x = as_tensor(x)
    return x.amax(dim=list(range(2, x.dim())), keepdim=True)
