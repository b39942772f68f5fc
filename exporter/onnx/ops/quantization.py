"""Integers that stand for floats: a scale and a zero point for each tensor or each channel."""

from __future__ import annotations

from typing import Any

import torch

from ..dtypes import DTYPES, dtype_name
from ..numbers import as_tensor
from ..operands import require
from ..registry import operator


def _along(values: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Values of each channel, shaped to meet the axis; a single value stays one."""
    if values.numel() == 1:
        return values.reshape(())
    require(values.dim() == 1, "is not read with blocks", "a scale for each tensor or channel")
    return values.reshape([-1 if at == axis % x.dim() else 1 for at in range(x.dim())])


@operator("QuantizeLinear", since=13)
def quantize_linear(
    x: Any,
    scale: Any,
    zero: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> torch.Tensor:
    require(not block_size, "is not read with block_size")
    require(output_dtype in (0, *DTYPES), f"is not read to {dtype_name(output_dtype)}")
    require(precision in (0, *DTYPES), f"is not read with precision {dtype_name(precision)}")
    scale = as_tensor(scale)
    x, scale = (each.to(DTYPES.get(precision, scale.dtype)) for each in (as_tensor(x), scale))
    dtype = DTYPES.get(output_dtype, torch.uint8) if zero is None else zero.dtype
    values = torch.round(x / _along(scale, x, axis))
    if zero is not None:
        values = values + _along(as_tensor(zero), x, axis).to(x.dtype)
    limits = torch.iinfo(dtype)
    return torch.clamp(values, limits.min, limits.max).to(dtype)


@operator("DequantizeLinear", since=13)
def dequantize_linear(
    x: Any,
    scale: Any,
    zero: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> torch.Tensor:
    require(not block_size, "is not read with block_size")
    require(output_dtype in (0, *DTYPES), f"is not read to {dtype_name(output_dtype)}")
    x, scale = as_tensor(x), as_tensor(scale)
    values = x.to(torch.int32)
    if zero is not None:
        values = values - _along(as_tensor(zero), x, axis).to(torch.int32)
    result = values.to(scale.dtype) * _along(scale, x, axis)
    return result.to(DTYPES.get(output_dtype, scale.dtype))


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Any, *, outputs: int) -> tuple[torch.Tensor, ...]:
    """To uint8, over the range of the values and 0."""
    x = as_tensor(x)
    nothing = torch.zeros((), dtype=x.dtype)
    low, high = torch.minimum(x.amin(), nothing), torch.maximum(x.amax(), nothing)
    scale = (high - low) / 255
    zero = torch.round(torch.clamp((0 - low) / scale, 0, 255))
    quantized = torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8)
    return (quantized, scale, zero.to(torch.uint8))[:outputs]
