"""The GPUs of this machine, as NVIDIA's driver tells them.

Asking the driver makes no context and takes no memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

DRIVER = "libcuda.so.1"
_NO_DEVICE = 100
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


@dataclass(frozen=True)
class Gpu:
    """One device. ``capability`` is its compute capability, ``memory`` its size in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int

    def __str__(self) -> str:
        return f"cuda:{self.index} is {self.name}, compute capability {dotted(self.capability)}"


@dataclass(frozen=True)
class Driver:
    """What the driver answers: the version of CUDA that it serves, and the devices that it shows.
    ``missing`` says why there is no driver, and ``failed`` why it shows no devices."""

    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    missing: str = ""
    failed: str = ""


class _Failed(Exception):
    pass


def this_driver() -> Driver:
    """Ask the driver of this machine."""
    try:
        library = ctypes.CDLL(DRIVER)
    except OSError as error:
        return Driver(missing=str(error))
    status = library.cuInit(0)
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10)
    if status == _NO_DEVICE:
        return Driver(cuda, failed="it shows no device")
    try:
        _check(library, "cuInit", status)
        count = ctypes.c_int()
        _check(library, "cuDeviceGetCount", library.cuDeviceGetCount(ctypes.byref(count)))
        gpus = tuple(_gpu(library, index) for index in range(count.value))
    except _Failed as error:
        return Driver(cuda, failed=str(error))
    return Driver(cuda, gpus, failed="" if gpus else "it shows no device")


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    def ask(function: str, *arguments: object) -> None:
        _check(library, f"{function} for device {index}", getattr(library, function)(*arguments))

    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    ask("cuDeviceGet", ctypes.byref(device), index)
    ask("cuDeviceGetName", name, len(name), device)
    ask("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        number = ctypes.c_int()
        ask("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    text = name.value.decode(errors="replace")
    return Gpu(index, text, (numbers[0], numbers[1]), memory.value)


def _check(library: ctypes.CDLL, what: str, status: int) -> None:
    if status:
        name = ctypes.c_char_p()
        library.cuGetErrorName(status, ctypes.byref(name))
        raise _Failed(f"{what} answers {name.value.decode() if name.value else status}")


def dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
