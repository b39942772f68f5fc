"""Tensors of ONNX files, also those whose bytes lie in a file beside it (external data).

A file may name any path there; only a plain file below the model's own folder is read, and only as many
bytes as the tensor has.
"""

from __future__ import annotations

import hashlib
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .dtypes import DTYPES, dtype_name


class BrokenTensor(Exception):
    """Why a tensor cannot be had."""


class Tensors:
    """Reads the tensors of one model file, and keeps count of the other files that it took bytes of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._maps: dict[str, np.ndarray[Any, Any]] = {}

    def digest(self, content: bytes) -> str:
        """The SHA-256 of the model's bytes, and of those of all files that were read for it."""
        found = hashlib.sha256(content)
        for location in sorted(self._maps):
            found.update(hashlib.sha256(self._maps[location].data).digest())
        return found.hexdigest()

    def read(self, proto: Any) -> torch.Tensor:
        """The tensor of a ``TensorProto``, in memory of its own.

        Raises:
            BrokenTensor: its type is not one of torch's, or there are more or fewer bytes than it has.
        """
        if proto.data_type not in DTYPES:
            raise BrokenTensor(f"is of type {dtype_name(proto.data_type)}, which is not read")
        dims = tuple(int(size) for size in proto.dims)
        if any(size < 0 for size in dims):
            raise BrokenTensor(f"has the shape {list(dims)}")
        dtype = DTYPES[proto.data_type]
        if proto.data_location == proto.EXTERNAL:
            return _of_bytes(self._external(proto, math.prod(dims) * dtype.itemsize), dtype, dims)
        if proto.HasField("raw_data"):
            return _of_bytes(np.frombuffer(proto.raw_data, np.uint8), dtype, dims)
        from onnx import numpy_helper

        try:
            values = numpy_helper.to_array(proto)
        except ValueError as error:
            raise BrokenTensor(f"has other data than its shape says: {error}") from None
        return _of_bytes(np.frombuffer(values.tobytes(), np.uint8), dtype, dims)

    def _external(self, proto: Any, length: int) -> np.ndarray[Any, Any]:
        entries = {entry.key: entry.value for entry in proto.external_data}
        data = self._file(entries.get("location", ""))
        offset = _count(entries.get("offset", "0"), "offset")
        said = _count(entries.get("length", str(length)), "length")
        if said != length:
            raise BrokenTensor(f"has {said} bytes where its shape needs {length}")
        if offset + length > data.size:
            raise BrokenTensor(
                f"lies at {offset} to {offset + length} of {entries['location']}, which has "
                f"{data.size} bytes"
            )
        return data[offset : offset + length]

    def _file(self, location: str) -> np.ndarray[Any, Any]:
        if location not in self._maps:
            path = self._folder / location
            outside = not location or "\0" in location or Path(location).is_absolute()
            if outside or ".." in Path(location).parts:
                raise BrokenTensor(f"is in {location!r}, which is not below the model's folder")
            try:
                inside = path.resolve().is_relative_to(self._folder)
                mode = path.lstat().st_mode
            except OSError as error:
                raise BrokenTensor(f"is in {location!r}: {error.strerror}") from None
            if not inside or not stat.S_ISREG(mode):
                raise BrokenTensor(f"is in {location!r}, which is no plain file in that folder")
            empty = path.stat().st_size == 0
            self._maps[location] = (
                np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
            )
        return self._maps[location]


def _count(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise BrokenTensor(f"has the {what} {text!r}")
    return int(text)


def _of_bytes(
    data: np.ndarray[Any, Any], dtype: torch.dtype, dims: tuple[int, ...]
) -> torch.Tensor:
    needed = math.prod(dims) * dtype.itemsize
    if data.size != needed:
        raise BrokenTensor(f"has {data.size} bytes where its shape needs {needed}")
    if needed == 0:
        return torch.zeros(dims, dtype=dtype)
    return torch.from_numpy(np.array(data)).view(dtype).reshape(dims)
