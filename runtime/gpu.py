"""The GPUs of this machine, as NVIDIA's driver tells, and which of a bundle's binaries they run.

Asking the driver makes no context and takes no memory. Only bundles that hold GPU code ask.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..artifacts.errors import BundleError, Diagnostic
from ..artifacts.manifest import CudaCode, Target
from ..artifacts.platforms import runs_on
from .machine import Machine, unfit

DRIVER = "libcuda.so.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
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
        return f"cuda:{self.index} is {self.name}, compute capability {_dotted(self.capability)}"


@dataclass(frozen=True)
class Driver:
    """What the driver answers: the version of CUDA that it serves, and the devices that it shows.
    ``missing`` says why there is no driver, and ``failed`` why it shows no devices."""

    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    missing: str = ""
    failed: str = ""


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
    if status:
        what = "it shows no device" if status == _NO_DEVICE else _error_name(library, status)
        return Driver(cuda, failed=what)
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return Driver(cuda, tuple(_gpu(library, index) for index in range(count.value)))


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        number = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    text = name.value.decode(errors="replace")
    return Gpu(index, text, (numbers[0], numbers[1]), memory.value)


def _error_name(library: ctypes.CDLL, status: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    return f"cuInit answers {name.value.decode() if name.value else status}"


def device_index(device: str) -> int | None:
    """The number of ``cuda`` (0) or ``cuda:N``; None for any other text."""
    match = re.fullmatch(r"cuda(?::(\d{1,4}))?", device)
    return int(match[1] or 0) if match else None


def choose_gpu(
    targets: Sequence[Target], machine: Machine, driver: Driver, index: int, path: Path
) -> tuple[Target, Gpu]:
    """The binary for the GPU with this number, and the GPU.

    Machine code is preferred to PTX, which the driver compiles at the first call.

    Raises:
        BundleError: TC407, the bundle holds no GPU code or there is no such GPU; TC404, the code
            around the kernels cannot run here; TC420 to TC423, the driver or the GPU.
    """
    candidates = [(target, target.cuda) for target in targets if target.cuda is not None]
    if not candidates:
        raise BundleError(
            Diagnostic(
                "TC407",
                f"device='cuda': {path} holds binaries for the CPU alone",
                tries=("device='cpu'", "export with --target cuda:sm_80+sm_90+ptx"),
            )
        )
    refuse = _Refusal(path, targets)
    gpu = _device(driver, index, refuse)
    reasons = {target: unfit(target, machine) for target, _ in candidates}
    here = [(target, code) for target, code in candidates if not reasons[target]]
    if not here:
        notes = [f"{target.name}: {reason}" for target, reason in reasons.items()]
        refuse("TC404", f"this machine is {machine}", notes)
    for served in (_serves_machine_code, _serves_ptx):
        for target, code in here:
            if served(code, gpu, driver):
                return target, gpu
    needed = [version for _, code in here if (version := _driver_that_serves(code, gpu))]
    if needed:
        lowest = min(needed, key=_version)
        refuse(
            "TC422",
            f"needs a driver for CUDA {lowest} or later, found one for CUDA {_dotted(driver.cuda)}",
            [str(gpu)],
            ["install a newer driver"],
        )
    refuse(
        "TC423",
        f"{gpu}",
        [],
        [f"export with --target cuda:sm_{gpu.capability[0]}{gpu.capability[1]}"],
    )


def _device(driver: Driver, index: int, refuse: _Refusal) -> Gpu:
    if driver.missing:
        refuse(
            "TC421",
            f"found no driver: {driver.missing}",
            [],
            [
                "install NVIDIA's driver",
                "start the container with its GPUs (docker run --gpus all)",
            ],
        )
    visible = os.environ.get(_VISIBLE)
    notes = [] if visible is None else [f"{_VISIBLE}={visible}"]
    if not driver.gpus:
        reason = driver.failed or "it shows no device"
        refuse("TC420", f"the driver is there, but {reason}", notes)
    if index >= len(driver.gpus):
        refuse(
            "TC407",
            f"there is no cuda:{index}",
            [*map(str, driver.gpus), *notes],
            ["device='cuda'"],
        )
    return driver.gpus[index]


def _serves_machine_code(code: CudaCode, gpu: Gpu, driver: Driver) -> bool:
    fits = any(runs_on(each, gpu.capability) for each in code.architectures)
    return fits and driver.cuda >= _version(code.driver)


def _serves_ptx(code: CudaCode, gpu: Gpu, driver: Driver) -> bool:
    fits = bool(code.ptx) and runs_on(code.ptx, gpu.capability)
    return fits and driver.cuda >= _version(code.ptx_driver)


def _driver_that_serves(code: CudaCode, gpu: Gpu) -> str:
    """The version of CUDA with which the code would run on the GPU; "" when none helps."""
    if any(runs_on(each, gpu.capability) for each in code.architectures):
        return code.driver
    return code.ptx_driver if code.ptx and runs_on(code.ptx, gpu.capability) else ""


class _Refusal:
    """Raises BundleErrors that say what a bundle was built for, what is here, and what to do."""

    def __init__(self, path: Path, targets: Sequence[Target]) -> None:
        self._path = path
        self._built = ", ".join(target.name for target in targets if target.cuda is not None)
        self._on_cpu = any(target.cuda is None for target in targets)

    def __call__(
        self, code: str, found: str, notes: Sequence[str] = (), tries: Sequence[str] = ()
    ) -> NoReturn:
        also = ["device='cpu'"] if self._on_cpu else []
        raise BundleError(
            Diagnostic(
                code,
                f"{self._path} was built for {self._built}; {found}",
                notes=tuple(notes),
                tries=(*tries, *also),
            )
        )


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
