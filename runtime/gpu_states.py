"""The states of a session on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..artifacts.errors import Diagnostic, InternalError
from ..artifacts.states import StateTensor
from .cuda import CudaError, Device
from .tensors import bits_of

_ALIGNMENT = 256


class GpuStates:
    """What `session.HostStates` is, in one piece of a GPU's memory.

    Attributes:
        tensors: as the compiled code takes them.
        size: bytes on the GPU.

    Raises:
        InternalError: TC602, they do not fit.
    """

    def __init__(self, device: Device, rows: Sequence[StateTensor]) -> None:
        self._device = device
        offsets, self.size = [], 0
        for row in rows:
            offsets.append(self.size)
            self.size += -(-_bytes(row) // _ALIGNMENT) * _ALIGNMENT
        try:
            with device.current():
                self._slab = device.empty(max(self.size, 1))
        except Exception as error:  # tvm_ffi raises what its C++ side names
            free, total = device.memory(0).free, device.total
            raise InternalError(
                Diagnostic(
                    "TC602",
                    f"the state of a session has {self.size} bytes; found {free} bytes free of "
                    f"{total} on cuda:{device.index}",
                    notes=(str(error).strip(),),
                    tries=("drop sessions that are done", "model.release_memory()"),
                )
            ) from None
        self.tensors = tuple(
            device.view(self._slab, row.shape, row.dtype, offset)
            for row, offset in zip(rows, offsets, strict=True)
        )
        self._places = {
            row.name: self._slab.data_ptr() + offset
            for row, offset in zip(rows, offsets, strict=True)
        }
        device.holders.add(self)

    def memory(self) -> Any:
        return self._slab, self.tensors

    def put(self, row: StateTensor, values: np.ndarray | None) -> None:
        """Let a state be these bits, None for zeros, behind the calls that were made."""
        dtype = bits_of(row.dtype)
        bits = np.zeros(row.shape, dtype) if values is None else np.ascontiguousarray(values, dtype)
        self._copy(self._places[row.name], bits.ctypes.data, bits.nbytes)

    def values_of(self, row: StateTensor) -> np.ndarray:
        """A copy of its bits, after the calls that were made."""
        bits = np.empty(row.shape, bits_of(row.dtype))
        self._copy(bits.ctypes.data, self._places[row.name], bits.nbytes)
        return bits

    def _copy(self, to: int, source: int, size: int) -> None:
        if not size:
            return
        try:
            with self._device.turn(0):
                self._device.cudart.copy(to, source, size, 0)
            with self._device.current():
                self._device.cudart.wait(0)
        except CudaError as error:
            self._device.settle()
            raise InternalError(
                Diagnostic("TC601", f"the state on cuda:{self._device.index}: {error}")
            ) from None


def _bytes(row: StateTensor) -> int:
    return math.prod(row.shape) * bits_of(row.dtype).itemsize
