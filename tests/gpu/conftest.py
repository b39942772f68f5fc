"""The stand-in driver as the CUDA of the test's process: each test sets what the device is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from . import standin


@pytest.fixture(scope="session")
def libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The stand-in's libcuda and libcudart, loaded before anyone looks for NVIDIA's."""
    if standin.COMPILER is None:
        pytest.skip("no C++ compiler on the PATH: the stand-in driver cannot be built")
    folder = standin.build_driver()
    mode = ctypes.RTLD_GLOBAL
    return ctypes.CDLL(str(folder / "libcuda.so.1"), mode), ctypes.CDLL(
        str(folder / "libcudart.so.13"), mode
    )


@pytest.fixture
def driver(
    libraries: tuple[ctypes.CDLL, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Says what the driver is: ``driver(devices="8.0", lazy="1")`` for STANDIN_DEVICES and so on."""

    def say(**settings: object) -> None:
        for name, value in settings.items():
            monkeypatch.setenv(f"STANDIN_{name.upper()}", str(value))

    for name in ("DEVICES", "DRIVER", "MEMORY", "ORDER", "LAZY", "FAIL"):
        monkeypatch.delenv(f"STANDIN_{name}", raising=False)
    return say


@pytest.fixture
def kernels(driver: Callable[..., None], tmp_path: Path) -> Path:
    """Where kernels compiled for the CPU lie."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    driver(kernels=folder)
    return folder
