"""Where a bundle can run: each refusal says what it was built for, what is here, and what to do."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.gpus import Driver, Gpu
from tcexport.artifacts.manifest import CudaCode, Target
from tcexport.artifacts.platforms import CPU_LEVELS
from tcexport.runtime import load
from tcexport.runtime.gpu import choose_gpu, device_index
from tcexport.runtime.machine import Machine

from ..runtime.bundles import add_weight, pack
from . import standin
from .bundles import CODE, gpu_compiled, pack_gpu
from .small import WEIGHT, added_contract, compiled_add

PATH = Path("m.tcpkg")
MACHINE = Machine("linux", "x86_64", "2.36", frozenset(CPU_LEVELS["x86-64-v3"].flags))


def target(code: CudaCode = CODE) -> Target:
    name = "cuda:" + "+".join(code.architectures) + ("+ptx" if code.ptx else "")
    return Target(name, "linux", "x86_64", "x86-64-v2", "2.17", f"{name}.so", code)


def driver_with(*capabilities: tuple[int, int], cuda: tuple[int, int] = (13, 0)) -> Driver:
    return Driver(cuda, tuple(Gpu(i, "H200", each, 1 << 30) for i, each in enumerate(capabilities)))


def refusal(targets: list[Target], driver: Driver, index: int = 0) -> str:
    with pytest.raises(BundleError) as caught:
        choose_gpu(targets, MACHINE, driver, index, PATH)
    return str(caught.value)


CPU = Target("cpu:x86-64-v3", "linux", "x86_64", "x86-64-v3", "2.17", "c.so")
WITHOUT_PTX = msgspec.structs.replace(CODE, ptx="", ptx_driver="")
NEW_PTX = msgspec.structs.replace(CODE, ptx_driver="13.2")


@pytest.mark.parametrize(
    ("code", "driver", "index", "parts"),
    [
        (CODE, Driver(missing="libcuda.so.1: no such file"), 0,
         ["TC421", "built for cuda:sm_80+sm_90+ptx; found no driver: libcuda.so.1: no such file",
          "docker run --gpus all"]),
        (CODE, Driver((13, 0), failed="it shows no device"), 0, ["TC420", "it shows no device"]),
        (CODE, driver_with((9, 0)), 1, ["TC407", "there is no cuda:1", "cuda:0 is H200"]),
        (WITHOUT_PTX, driver_with((12, 0)), 0,
         ["TC423", "built for cuda:sm_80+sm_90; cuda:0 is H200, compute capability 12.0",
          "--target cuda:sm_120"]),
        (CODE, driver_with((7, 5)), 0, ["TC423", "compute capability 7.5", "cuda:sm_75"]),
        (CODE, driver_with((9, 0), cuda=(12, 8)), 0,
         ["TC422", "needs a driver for CUDA 13.0 or later, found one for CUDA 12.8",
          "install a newer driver"]),
        (NEW_PTX, driver_with((12, 0)), 0, ["TC422", "needs a driver for CUDA 13.2"]),
    ],
)  # fmt: skip
def test_refusals(code: CudaCode, driver: Driver, index: int, parts: list[str]) -> None:
    text = refusal([target(code)], driver, index)
    for part in ["m.tcpkg was built for", *parts]:
        assert part in text
    assert "device='cpu'" not in text
    assert "try: device='cpu'" in refusal([CPU, target(code)], driver, index)


def test_machine_code_is_preferred_to_ptx() -> None:
    older = target(msgspec.structs.replace(CODE, architectures=("sm_80",), ptx="compute_80"))
    both = [older, target(WITHOUT_PTX)]
    for targets in (both, both[::-1]):
        assert choose_gpu(targets, MACHINE, driver_with((9, 0)), 0, PATH)[0] == target(WITHOUT_PTX)
        assert choose_gpu(targets, MACHINE, driver_with((12, 0)), 0, PATH)[0] == older


def test_a_driver_too_old_for_the_machine_code_may_take_the_ptx() -> None:
    code = msgspec.structs.replace(CODE, driver="13.2", ptx="compute_80", ptx_driver="13.0")
    found, gpu = choose_gpu([target(code)], MACHINE, driver_with((9, 0), (8, 0)), 1, PATH)
    assert found == target(code)
    assert gpu.index == 1


def test_code_for_another_machine_is_refused() -> None:
    arm = msgspec.structs.replace(target(), machine="aarch64")
    text = refusal([arm], driver_with((9, 0)))
    assert "TC404" in text and "needs linux aarch64" in text


def test_devices_are_named_as_torch_names_them() -> None:
    assert [device_index(each) for each in ("cuda", "cuda:0", "cuda:12")] == [0, 0, 12]
    for text in ("gpu", "cuda:", "cuda:-1", "cuda:a", "cuda1", ""):
        assert device_index(text) is None


@pytest.fixture
def bundle(kernels: Path, tmp_path: Path) -> Path:
    library = gpu_compiled(add_weight, kernels)
    cpu = {"x86-64-v3": compiled_add()}
    return pack_gpu(tmp_path / "a.tcpkg", added_contract(), library, {"w": WEIGHT}, cpu=cpu)


X = np.ones((2, 4), np.float32)


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"devices": ""}, "TC420", "it shows no device"),
        ({"devices": "7.5"}, "TC423", "compute capability 7.5"),
        ({"driver": 12080}, "TC422", "found one for CUDA 12.8"),
        ({"devices": "12.0", "driver": 12090}, "TC422", "found one for CUDA 12.9"),
        ({"memory": 1000}, "TC425", "has weights of 4096 bytes; found"),
    ],
)
def test_what_the_driver_says_is_held_against_the_bundle(
    kernels: Path, tmp_path: Path, driver: Callable[..., None], settings: dict[str, object],
    code: str, says: str, caplog: pytest.LogCaptureFixture,
    libraries: tuple[ctypes.CDLL, ctypes.CDLL],
) -> None:  # fmt: skip
    from tcexport.artifacts.contract import TensorInput, TensorOutput

    from ..runtime.bundles import compiled, contract_of, dim

    def add_many(builder: object) -> None:
        from tvm import relax, tirx

        n = tirx.Var("n", "int64")
        x = relax.Var("x", relax.TensorType((n, 1024), "float32"))
        w = relax.Var("w", relax.TensorType((1024,), "float32"))
        with builder.function("main", [x, w]):  # type: ignore[attr-defined]
            with builder.dataflow():  # type: ignore[attr-defined]
                out = builder.emit_output(relax.op.add(x, w))  # type: ignore[attr-defined]
            builder.emit_func_output(out)  # type: ignore[attr-defined]

    contract = contract_of(
        {"x": TensorInput("x", "float32", ("n", 1024))},
        [TensorOutput("out", "float32", ("n", 1024), 0)],
        [dim("n", 0, 0, 1, 4)],
    )
    weight = np.random.default_rng(len(says)).random(1024, np.float32)
    path = pack_gpu(
        tmp_path / "m.tcpkg",
        contract,
        gpu_compiled(add_many, kernels),
        {"w": weight},
        cpu={"x86-64-v3": compiled(add_many)},
    )
    gc.collect()
    driver(**settings)
    with pytest.raises(BundleError, match=says) as caught:
        load(path, device="cuda")
    assert caught.value.code == code
    assert "device='cpu'" in str(caught.value)
    with caplog.at_level(logging.WARNING, "tcexport.device"):
        model = load(path)
    assert model.device == "cpu"
    assert model.fallback is not None and model.fallback.code == code
    assert f"{path} runs on the CPU: " in caplog.text and says in caplog.text
    x = np.ones((2, 1024), np.float32)
    np.testing.assert_array_equal(model(x), x + weight)


@pytest.mark.parametrize("devices", ["", "9.0"])
def test_a_damaged_file_is_refused_wherever_it_would_run(
    bundle: Path, driver: Callable[..., None], devices: str
) -> None:
    data = bytearray(bundle.read_bytes())
    data[data.rindex(b"\x7fELF") + 4000] ^= 1
    bundle.write_bytes(data)
    driver(devices=devices)
    with pytest.raises(BundleError) as caught:
        load(bundle)
    assert caught.value.code == "TC402"


def test_auto_prefers_the_gpu(bundle: Path) -> None:
    model = load(bundle)
    assert (model.device, model.fallback) == ("cuda:0", None)
    assert model.target.name == "cuda:sm_80+sm_90+ptx"
    np.testing.assert_array_equal(model(X), X + WEIGHT)
    on_cpu = load(bundle, device="cpu")
    assert (on_cpu.device, on_cpu.fallback) == ("cpu", None)
    np.testing.assert_array_equal(on_cpu(X), X + WEIGHT)


def test_ptx_serves_a_device_to_come(bundle: Path, driver: Callable[..., None]) -> None:
    driver(devices="12.0")
    np.testing.assert_array_equal(load(bundle, device="cuda")(X), X + WEIGHT)


def test_a_bundle_without_the_device_asked_for(bundle: Path, kernels: Path, tmp_path: Path) -> None:
    contract, weights = added_contract(), {"w": WEIGHT}
    on_cpu = pack(tmp_path / "c.tcpkg", contract, {"x86-64-v3": compiled_add()}, weights)
    on_gpu = pack_gpu(tmp_path / "g.tcpkg", contract, gpu_compiled(add_weight, kernels), weights)
    for path, device, says in [
        (on_cpu, "cuda", "holds binaries for the CPU alone"),
        (on_gpu, "cpu", "holds binaries for GPUs alone"),
        (bundle, "cuda:7", "there is no cuda:7"),
        (bundle, "tpu", "there is no such device"),
    ]:
        with pytest.raises(BundleError, match=says) as caught:
            load(path, device=device)
        assert caught.value.code == "TC407"


def in_a_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return done.stdout


REFUSED = """
from tcexport.artifacts.errors import BundleError
from tcexport.runtime import load
try:
    load({path!r}, device="cuda")
except BundleError as error:
    print(error)
model = load({path!r})
import numpy, sys
print(model.device, model.fallback.code, model(numpy.ones((2, 4), numpy.float32))[1].tolist())
"""


def test_a_missing_cuda_runtime_is_named(bundle: Path, tmp_path: Path) -> None:
    shutil.copy(standin.build_driver() / "libcuda.so.1", tmp_path)
    without_wheels = """
import tcexport.runtime.cuda
tcexport.runtime.cuda._places = lambda: [(0, "/nowhere/libcudart.so.13")]
"""
    code = without_wheels + REFUSED.format(path=str(bundle))
    said = in_a_process(code, LD_LIBRARY_PATH=str(tmp_path))
    assert "TC424" in said and "needs libcudart.so.13, which is not found" in said
    assert "pip install 'nvidia-cuda-runtime>=13,<14'" in said
    assert said.endswith("cpu TC424 [1.0, 2.0, 3.0, 4.0]\n")


def test_a_missing_driver_is_named(bundle: Path) -> None:
    try:
        ctypes.CDLL("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has NVIDIA's driver")
    said = in_a_process(REFUSED.format(path=str(bundle)), LD_LIBRARY_PATH="")
    assert "TC421" in said and "found no driver: libcuda.so.1: cannot open" in said
    assert said.endswith("cpu TC421 [1.0, 2.0, 3.0, 4.0]\n")


def test_cuda_is_not_looked_for_by_a_bundle_for_the_cpu(tmp_path: Path) -> None:
    path = pack(
        tmp_path / "c.tcpkg", added_contract(), {"x86-64-v3": compiled_add()}, {"w": WEIGHT}
    )
    said = in_a_process(
        f"""
import sys
from tcexport.runtime import load
load({str(path)!r})
print([name for name in ("gpu", "gpu_call", "cuda") if f"tcexport.runtime.{{name}}" in sys.modules])
"""
    )
    assert said == "[]\n"


def test_the_runtime_of_a_bundle_runs_on_a_gpu_without_torch_and_tvm(bundle: Path) -> None:
    said = in_a_process(
        f"""
import sys, numpy
from tcexport.runtime import load
model = load({str(bundle)!r}, device="cuda")
print(model(numpy.ones((1, 4), numpy.float32)).tolist(), model.gpu_memory())
print([name for name in ("torch", "tvm") if name in sys.modules])
""",
        LD_LIBRARY_PATH=str(standin.build_driver()),
    )
    assert said.startswith("[[1.0, 2.0, 3.0, 4.0]] GpuMemory(weights=256, pool=")
    assert said.endswith("[]\n")
