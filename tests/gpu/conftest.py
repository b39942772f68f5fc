"""The stand-in driver as the CUDA of the test's process: each test sets what the device is."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..runtime.bundles import add_weight, gather_rows
from . import standin
from .bundles import gpu_compiled, pack_gpu
from .small import TABLE, WEIGHT, added_contract, compiled_add, gathered_contract, long_chain


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

    for name in ("DEVICES", "DRIVER", "MEMORY", "ORDER", "LAZY", "FAIL", "CAPTURE"):
        monkeypatch.delenv(f"STANDIN_{name}", raising=False)
    return say


@pytest.fixture
def kernels(driver: Callable[..., None], tmp_path: Path) -> Path:
    """Where kernels compiled for the CPU lie."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    driver(kernels=folder)
    return folder


@pytest.fixture
def added(kernels: Path, tmp_path: Path) -> Path:
    library = gpu_compiled(add_weight, kernels)
    cpu = {"x86-64-v3": compiled_add()}
    return pack_gpu(tmp_path / "a.tcpkg", added_contract(), library, {"w": WEIGHT}, cpu=cpu)


@pytest.fixture
def chained(kernels: Path, tmp_path: Path) -> Path:
    library = gpu_compiled(long_chain, kernels)
    return pack_gpu(tmp_path / "c.tcpkg", added_contract(), library, {"w": WEIGHT})


@pytest.fixture
def gathered(kernels: Path, tmp_path: Path) -> Path:
    library = gpu_compiled(gather_rows, kernels)
    return pack_gpu(tmp_path / "g.tcpkg", gathered_contract(), library, {"table": TABLE}, results=3)


@pytest.fixture
def sound(
    libraries: tuple[ctypes.CDLL, ctypes.CDLL], driver: Callable[..., None]
) -> Iterator[None]:
    """No kernel wrote beside its memory, and neither an error nor a model stays for the next test."""
    yield
    libraries[0].standin_recover()
    gc.collect()
    libraries[0].standin_check()


@pytest.fixture
def count(libraries: tuple[ctypes.CDLL, ctypes.CDLL]) -> Callable[[int], int]:
    return libraries[0].standin_count
