"""ONNX's element types as torch's."""

from __future__ import annotations

import torch

# By the numbers of onnx.TensorProto.DataType, which are part of the file format.
DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
}

_NAMES = {
    0: "undefined", 4: "uint16", 8: "string", 12: "uint32", 13: "uint64", 17: "float8e4m3fn",
    18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip


def dtype_name(number: int) -> str:
    """What a type that has no place here is called."""
    if number in DTYPES:
        return str(DTYPES[number]).removeprefix("torch.")
    return _NAMES.get(number, f"number {number}")
