"""Normalizations, and the softmax family."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..dtypes import DTYPES, dtype_name
from ..numbers import as_tensor
from ..operands import require
from ..registry import operator


@operator("BatchNormalization", since=9)
def batch_normalization(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> torch.Tensor:
    require(not training_mode, "is not read in training mode", "training_mode=0")
    x = as_tensor(x)
    parts = [as_tensor(each).to(x.dtype) for each in (mean, variance, scale, bias)]
    return F.batch_norm(x, parts[0], parts[1], parts[2], parts[3], eps=epsilon)


@operator("InstanceNormalization")
def instance_normalization(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> torch.Tensor:
    # As groups of one channel: torch's own refuses images of one pixel.
    x, scale = as_tensor(x), as_tensor(scale)
    return F.group_norm(x, scale.shape[0], scale, as_tensor(bias), epsilon)


@operator("LayerNormalization", since=17)
def layer_normalization(
    x: Any,
    scale: Any,
    bias: Any = None,
    *,
    outputs: int,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[torch.Tensor, ...]:
    x, scale = as_tensor(x), as_tensor(scale)
    axis = axis % x.dim()
    beta = None if bias is None else as_tensor(bias)
    whole = scale.dim() == x.dim() - axis and _same_shapes(scale, beta)
    shape = list(scale.shape) if whole else list(x.shape[axis:])
    if whole:
        result = F.layer_norm(x, shape, scale, beta, epsilon)
    else:
        result = F.layer_norm(x, shape, None, None, epsilon) * scale
        result = result if beta is None else result + beta
    if outputs == 1:
        return (result,)
    axes = list(range(axis, x.dim()))
    wide = x.to(_stash(stash_type))
    mean = wide.mean(axes, keepdim=True)
    variance = (wide - mean).square().mean(axes, keepdim=True)
    return (result, mean, torch.rsqrt(variance + epsilon))[:outputs]


def _same_shapes(scale: torch.Tensor, bias: torch.Tensor | None) -> bool:
    fixed = all(isinstance(size, int) for size in scale.shape)
    return fixed and (bias is None or bias.shape == scale.shape)


def _stash(number: int) -> torch.dtype:
    require(number in DTYPES, f"is not read with stash_type {dtype_name(number)}")
    return DTYPES[number]


@operator("RMSNormalization", since=23)
def rms_normalization(
    x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    x = as_tensor(x)
    axes = list(range(axis % x.dim(), x.dim()))
    wide = x.to(_stash(stash_type))
    normal = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return normal.to(x.dtype) * as_tensor(scale)


@operator("GroupNormalization", since=21)
def group_normalization(
    x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    return F.group_norm(as_tensor(x), num_groups, as_tensor(scale), as_tensor(bias), epsilon)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x: Any, *, axes: list[int] | None = None) -> torch.Tensor:
    x = as_tensor(x)
    over = axes or [0, 2, 3]
    mean = x.mean(over, keepdim=True)
    variance = x.square().mean(over, keepdim=True) - mean.square()
    return (x - mean) / (variance.sqrt() + 1e-9)


@operator("LpNormalization")
def lp_normalization(x: Any, *, axis: int = -1, p: int = 2) -> torch.Tensor:
    x = as_tensor(x)
    size = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(size == 0, torch.zeros_like(x), x / size)


@operator("LRN")
def local_response_normalization(
    x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> torch.Tensor:
    require(size % 2 == 1, f"is not read over {size} channels", "an odd number of them")
    return F.local_response_norm(as_tensor(x), size, alpha, beta, bias)


@operator("Softmax", since=13)
def softmax(x: Any, *, axis: int = -1) -> torch.Tensor:
    return torch.softmax(as_tensor(x), axis)


@operator("LogSoftmax", since=13)
def log_softmax(x: Any, *, axis: int = -1) -> torch.Tensor:
    return torch.log_softmax(as_tensor(x), axis)


@operator("Hardmax", since=13)
def hardmax(x: Any, *, axis: int = -1) -> torch.Tensor:
    x = as_tensor(x)
    axis = axis % x.dim()
    first = torch.argmax(x, axis, keepdim=True)
    places = torch.arange(x.shape[axis]).reshape([-1] + [1] * (x.dim() - 1 - axis))
    return (places == first).to(x.dtype)
