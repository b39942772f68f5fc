"""The stand-in as a device with the kernels of a CUDA source, called without a library around them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from . import standin


class Device:
    """As little of CUDA as these tests need. Arguments are arrays, which come back as they are on
    the device afterwards, or ctypes values."""

    def __init__(
        self, libraries: tuple[ctypes.CDLL, ctypes.CDLL], kernels: Path, source: str
    ) -> None:
        self.cuda, self.cudart = libraries
        image = standin.fatbin(source)
        standin.build_kernels(source, image, kernels)
        self.module = ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(self.module), image))

    def check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"CUDA error {error}")

    def start(
        self, name: str, grid: int, block: int, *arguments: object, dynamic: int = 0
    ) -> list[tuple[ctypes.c_void_p, np.ndarray]]:
        function = ctypes.c_void_p()
        self.check(
            self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode())
        )
        memory, values = [], []
        for each in arguments:
            if isinstance(each, np.ndarray):
                pointer = ctypes.c_void_p()
                self.check(
                    self.cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(each.nbytes))
                )
                self.copy(pointer, each.ctypes.data, each.nbytes)
                memory.append((pointer, each))
                each = pointer
            values.append(each)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))  # type: ignore[type-var]
        self.check(
            self.cuda.cuLaunchKernel(
                function, grid, 1, 1, block, 1, 1, dynamic, None, pointers, None
            )
        )
        return memory

    def finish(self, memory: list[tuple[ctypes.c_void_p, np.ndarray]]) -> list[np.ndarray]:
        found = []
        for pointer, array in memory:
            result = np.empty_like(array)
            self.copy(result.ctypes.data, pointer, array.nbytes)
            self.check(self.cudart.cudaFree(pointer))
            found.append(result)
        return found

    def run(self, *arguments: object, **more: int) -> list[np.ndarray]:
        return self.finish(self.start(*arguments, **more))  # type: ignore[arg-type]

    def copy(self, to: object, source: object, size: int) -> None:
        to, source = (
            each if isinstance(each, ctypes.c_void_p) else ctypes.c_void_p(each)  # type: ignore[arg-type]
            for each in (to, source)
        )
        self.check(self.cudart.cudaMemcpyAsync(to, source, ctypes.c_size_t(size), 4, None))
