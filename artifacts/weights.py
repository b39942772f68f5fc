"""weights.safetensors: written so that every tensor can be mapped, read without a copy.

The format (https://github.com/huggingface/safetensors) is an 8-byte length, a JSON header and the
tensors' data without holes. Kernels want each tensor on a 64-byte boundary, which the format does
not provide: where a tensor does not end on one, a `uint8` tensor of the missing length, named
``.padding.<n>``, follows it. Other readers see these as tensors of a few bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

ALIGNMENT = 64
MAX_HEADER_BYTES = 100 << 20
PADDING_PREFIX = ".padding."

# safetensors' names, the contract's names, and how numpy holds the bits. Numpy has no bfloat16 and
# no 8-bit floats: their bits travel as unsigned integers, and `Weight.dtype` says what they are.
_DTYPES: dict[str, tuple[str, str]] = {
    "BOOL": ("bool", "bool"),
    "U8": ("uint8", "uint8"),
    "I8": ("int8", "int8"),
    "U16": ("uint16", "uint16"),
    "I16": ("int16", "int16"),
    "U32": ("uint32", "uint32"),
    "I32": ("int32", "int32"),
    "U64": ("uint64", "uint64"),
    "I64": ("int64", "int64"),
    "F16": ("float16", "float16"),
    "BF16": ("bfloat16", "uint16"),
    "F32": ("float32", "float32"),
    "F64": ("float64", "float64"),
    "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E5M2": ("float8_e5m2", "uint8"),
    "C64": ("complex64", "complex64"),
    "C128": ("complex128", "complex128"),  # ours: safetensors has no name for it
}
_BY_NAME = {name: (tag, bits) for tag, (name, bits) in _DTYPES.items()}
_LENGTH = struct.Struct("<Q")


class WeightsError(ValueError):
    """The bytes are not a safetensors file that holds every tensor once, aligned, without holes."""


class Weight(NamedTuple):
    """A tensor's bits and the name of its dtype, as contracts spell it (``float32``, ``bfloat16``).

    ``data.dtype`` is ``dtype`` where numpy has it, else the unsigned integer of the same width.
    """

    data: np.ndarray
    dtype: str


def fingerprint(weight: Weight) -> str:
    """The SHA-256 of a tensor's bits, row-major."""
    return hashlib.sha256(_bytes(weight).data).hexdigest()


def same_bits(one: Weight, other: Weight) -> bool:
    """Whether two tensors have one dtype, shape and value, bit by bit: a NaN is itself, and 0.0 is
    not -0.0."""
    alike = one.dtype == other.dtype and one.data.shape == other.data.shape
    return alike and np.array_equal(_bytes(one), _bytes(other))


def _bytes(weight: Weight) -> np.ndarray:
    return np.ascontiguousarray(weight.data).reshape(-1).view(np.uint8)


class _Info(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write_weights(path: Path, tensors: Mapping[str, np.ndarray | Weight]) -> None:
    """Write tensors as a safetensors file, in the mapping's order; equal input, equal bytes.

    Each tensor's data starts 64-byte aligned in the file. An array whose dtype has no numpy name
    (ml_dtypes' bfloat16) is recognised by its dtype's name; bits alone come as a `Weight`.

    Raises:
        ValueError: a dtype that safetensors has no name for, or a reserved name.
        OSError: the file cannot be written.
    """
    header: dict[str, Any] = {}
    contents: list[np.ndarray] = []
    position = 0
    for name, tensor in tensors.items():
        if name == "__metadata__" or name.startswith(PADDING_PREFIX):
            raise ValueError(f"the tensor name {name!r} is reserved")
        weight = tensor if isinstance(tensor, Weight) else Weight(tensor, tensor.dtype.name)
        if weight.dtype not in _BY_NAME:
            raise ValueError(f"tensor {name!r}: safetensors has no dtype {weight.dtype}")
        tag, bits = _BY_NAME[weight.dtype]
        if weight.data.dtype.itemsize != np.dtype(bits).itemsize:
            raise ValueError(f"tensor {name!r}: {weight.data.dtype} cannot hold {weight.dtype}")
        data = np.ascontiguousarray(weight.data).reshape(weight.data.shape)
        if data.dtype.byteorder == ">":
            data = data.astype(data.dtype.newbyteorder("<"))
        missing = -position % ALIGNMENT
        if missing and data.nbytes:
            header[f"{PADDING_PREFIX}{len(contents)}"] = _entry("U8", (missing,), position, missing)
            contents.append(np.zeros(missing, np.uint8))
            position += missing
        header[name] = _entry(tag, data.shape, position, data.nbytes)
        contents.append(data)
        position += data.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    with open(path, "wb") as file:
        file.write(_LENGTH.pack(len(text)))
        file.write(text)
        for data in contents:
            file.write(data.reshape(-1).view(np.uint8).data if data.nbytes else b"")
        file.flush()
        os.fsync(file.fileno())


def _entry(tag: str, shape: tuple[int, ...], start: int, size: int) -> dict[str, Any]:
    return {"dtype": tag, "shape": list(shape), "data_offsets": [start, start + size]}


def read_weights(data: memoryview, *, aligned: bool = True) -> dict[str, Weight]:
    """The tensors of a safetensors file as read-only views into ``data``.

    ``aligned=False`` takes files of other writers, whose tensors lie anywhere.

    Raises:
        WeightsError: not such a file; offsets with holes or overlaps; an unknown dtype; a size that
            does not fit its shape; a tensor that is not 64-byte aligned relative to the file.
    """
    if len(data) < _LENGTH.size:
        raise WeightsError("cut short")
    length = _LENGTH.unpack_from(data)[0]
    base = _LENGTH.size + length
    if length > MAX_HEADER_BYTES or base > len(data):
        raise WeightsError("the header is longer than the file")
    if aligned and base % ALIGNMENT:
        raise WeightsError("the data is not aligned")
    weights: dict[str, Weight] = {}
    position = 0
    for name, info in _header(bytes(data[_LENGTH.size : base])).items():
        start, end = info.data_offsets
        if start != position or end < start:
            raise WeightsError(f"tensor {name!r:.80}: a hole or an overlap before it")
        if info.dtype not in _DTYPES:
            raise WeightsError(f"tensor {name!r:.80}: unknown dtype {info.dtype!r:.20}")
        dtype, bits = _DTYPES[info.dtype]
        if len(info.shape) > 32 or any(not 0 <= size < 2**62 for size in info.shape):
            raise WeightsError(f"tensor {name!r:.80}: bad shape")
        if math.prod(info.shape) * np.dtype(bits).itemsize != end - start:
            raise WeightsError(f"tensor {name!r:.80}: its shape and its bytes do not agree")
        if base + end > len(data):
            raise WeightsError(f"tensor {name!r:.80}: cut short")
        position = end
        if name.startswith(PADDING_PREFIX):
            continue
        if aligned and start % ALIGNMENT and end > start:
            raise WeightsError(f"tensor {name!r:.80} is not {ALIGNMENT}-byte aligned")
        flat = np.frombuffer(
            data[base + start : base + end], dtype=np.dtype(bits).newbyteorder("<")
        )
        array = flat.view(bits).reshape(info.shape)
        array.flags.writeable = False
        weights[name] = Weight(array, dtype)
    if base + position != len(data):
        raise WeightsError("bytes that belong to no tensor")
    return weights


def _header(text: bytes) -> dict[str, _Info]:
    if not text.startswith(b"{"):
        raise WeightsError("the header is not a JSON object")
    try:
        pairs = json.loads(text.decode(), object_pairs_hook=list)
        if len({name for name, _ in pairs}) != len(pairs):
            raise WeightsError("a tensor name is there twice")
        # "__metadata__" is allowed by the format and means nothing here.
        return {
            name: msgspec.convert(dict(info), _Info, strict=True)
            for name, info in pairs
            if name != "__metadata__"
        }
    except (TypeError, ValueError, RecursionError) as error:
        raise WeightsError(f"the header cannot be read: {error}") from None
