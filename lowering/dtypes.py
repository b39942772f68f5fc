"""Dtypes as torch has them: of an element that is cast, and of what is computed of several operands."""

from __future__ import annotations

from typing import Any

import torch
from tvm import tirx

from .tensor import HALVES, TORCH_DTYPES, Tensor


def convert(value: Any, dtype: str) -> Any:
    """An element in another dtype, with the rules of torch: non-zero is True, floats truncate."""
    own = str(value.ty.dtype)
    if own == dtype:
        return value
    if own in HALVES or (dtype in HALVES and own != "float32"):
        return convert(value.astype("float32"), dtype)  # every way leads over float32, as in torch
    if dtype == "bool":
        zero = tirx.const(0, own)
        if "float" in own:  # NaN is True, and NE would say that it is 0
            return tirx.any(value < zero, value > zero, tirx.isnan(value))
        return tirx.NE(value, zero)
    return value.astype(dtype)


def result_dtype(*operands: Any) -> str:
    """The dtype that torch computes in when tensors and Python numbers meet."""

    def stand_in(operand: Any) -> Any:
        if isinstance(operand, Tensor):
            shape = (1,) * operand.rank
            return torch.empty(shape, dtype=TORCH_DTYPES[operand.dtype], device="meta")
        if isinstance(operand, (bool, int, float)):
            return operand
        if getattr(operand, "is_Boolean", False):
            return True
        return 1 if operand.is_integer else 1.0

    first, *rest = (stand_in(operand) for operand in operands)
    if not rest:
        return str(first.dtype).removeprefix("torch.")
    result = torch.result_type(first, rest[0])
    for other in rest[1:]:
        result = torch.promote_types(result, torch.result_type(first, other))
    return str(result).removeprefix("torch.")
