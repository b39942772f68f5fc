"""Quantized models: the ops of ``torch.ops.quantized_decomposed`` as the arithmetic that eager does.

A model that was quantized through torch.export (pt2e) computes in floats between pairs of these ops.
Most of them are taken apart by torch's own functions; those that read a scale out of a tensor, which
no graph can hold, are written here with the same roundings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_MODULE = "torch.ao.quantization.fx._decomposed"

# torch's own function for each op: plain arithmetic.
_PLAIN = {
    "quantize_per_channel.default": "quantize_per_channel",
    "dequantize_per_channel.default": "dequantize_per_channel",
    "quantize_per_token.default": "quantize_per_token",
    "dequantize_per_token.default": "dequantize_per_token",
    "choose_qparams_per_token.default": "choose_qparams_per_token",
    "_choose_qparams_per_token_asymmetric_impl.default": (
        "_choose_qparams_per_token_asymmetric_impl"
    ),
    "choose_qparams_per_token_asymmetric.default": "_choose_qparams_per_token_asymmetric_impl",
    "convert_element_type.no_fuse": "convert_element_type",
}


def quantized_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition for every quantized op, where the process knows such ops."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return {}
    ops = torch.ops.quantized_decomposed
    table: dict[Any, Callable[..., Any]] = {}
    for name, function in _PLAIN.items():
        packet, _, overload = name.partition(".")
        table[getattr(getattr(ops, packet), overload)] = getattr(module, function)
    for overload in ("default", "tensor", "tensor2"):
        table[getattr(ops.quantize_per_tensor, overload)] = _quantize
        table[getattr(ops.dequantize_per_tensor, overload)] = _dequantize
    table[ops.choose_qparams.tensor] = _choose
    table[ops.choose_qparams_symmetric.tensor] = _choose_symmetric
    return table


def _quantize(
    input: torch.Tensor, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, dtype: Any
) -> torch.Tensor:
    """Eager divides in double, and multiplies in float32."""
    if isinstance(scale, torch.Tensor):
        inverse: Any = (1.0 / scale.reshape(()).to(torch.float64)).to(torch.float32)
    else:
        inverse = 1.0 / scale
    moved = torch.round(input.to(torch.float32) * inverse) + _number(zero_point)
    return torch.clamp(moved, _number(quant_min), _number(quant_max)).to(dtype)


def _dequantize(
    input: torch.Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: Any,
    *,
    out_dtype: Any = None,
) -> torch.Tensor:
    wide = input.to(torch.float32 if out_dtype is None else out_dtype)
    return (wide - _number(zero_point)) * _number(scale)


def _number(value: Any) -> Any:
    """A scalar: a tensor of one element takes part as the number that eager reads out of it."""
    return value.reshape(()).to(torch.float32) if isinstance(value, torch.Tensor) else value


def _choose(
    input: torch.Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = _extremes(input)
    scale = (high - low) / float(quant_max - quant_min)
    scale = torch.maximum(scale, scale.new_full((1,), eps, dtype=torch.float32))
    zero_point = quant_min - torch.round(low / scale).to(torch.int32)
    zero_point = torch.clamp(zero_point, quant_min, quant_max)
    return scale.to(torch.float64), zero_point.to(torch.int64)


def _choose_symmetric(
    input: torch.Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = _extremes(input)
    scale = torch.maximum(-low, high) / (float(quant_max - quant_min) / 2)
    scale = torch.maximum(scale, scale.new_full((1,), eps, dtype=torch.float32))
    zero_point = 128 if dtype is torch.uint8 else 0
    return scale.to(torch.float64), scale.new_full((1,), zero_point, dtype=torch.int64)


def _extremes(input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest value, and 0 among them."""
    zero = torch.zeros((), dtype=input.dtype)
    return torch.minimum(input.amin(), zero), torch.maximum(input.amax(), zero)
