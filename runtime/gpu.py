"""Which of a bundle's binaries a GPU of this machine runs. Only bundles that hold GPU code ask."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..artifacts.errors import BundleError, Diagnostic
from ..artifacts.gpus import Driver, Gpu, dotted
from ..artifacts.manifest import CudaCode, Target
from ..artifacts.platforms import runs_on
from .machine import Machine, unfit

_VISIBLE = "CUDA_VISIBLE_DEVICES"


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
            f"needs a driver for CUDA {lowest} or later, found one for CUDA {dotted(driver.cuda)}",
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
