"""Models on a GPU, here the stand-in: numpy and device tensors, streams, memory, and what fails."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tcexport.artifacts.errors import GuardError, InternalError, UsageError
from tcexport.artifacts.manifest import Entry, Variant
from tcexport.runtime import load
from tcexport.runtime.cuda import Device, device_at
from tcexport.runtime.gpu_call import stream_of
from tcexport.runtime.library import load_ffi

from ..runtime.bundles import dim, gather_rows
from . import standin
from .bundles import gpu_compiled, pack_gpu
from .small import (
    TABLE,
    WEIGHT,
    Foreign,
    added_contract,
    by_hand,
    gathered_contract,
    on_device,
    strided,
    to_host,
    used,
)

pytestmark = pytest.mark.usefixtures("sound")
LAUNCHES, TO_DEVICE, FROM_DEVICE, WAITS, ALLOCATIONS = range(5)


# --- numpy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", ["", "1"])
def test_numpy_in_numpy_out(chained: Path, driver: Callable[..., None], lazy: str) -> None:
    driver(lazy=lazy)
    model = load(chained, device="cuda")
    assert model.device == "cuda:0"
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 100, 4096, 100):
        x = rng.standard_normal((n, 4), dtype=np.float32)
        got = model(x)
        assert type(got) is np.ndarray and got.flags.writeable
        np.testing.assert_allclose(got, by_hand(x), rtol=1e-5)
    wide = rng.standard_normal((7, 8), dtype=np.float32)
    np.testing.assert_allclose(model(wide[:, ::2]), by_hand(wide[:, ::2]), rtol=1e-5)


def doubled(builder: Any) -> None:
    """``main(x[n, 4]) = x + x``: a model without weights."""
    from tvm import relax, tirx

    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(out)


def test_a_model_without_weights(kernels: Path, tmp_path: Path) -> None:
    path = pack_gpu(tmp_path / "d.tcpkg", added_contract(), gpu_compiled(doubled, kernels))
    x = np.ones((3, 4), np.float32)
    model = load(path, device="cuda")
    np.testing.assert_array_equal(model(x), x + x)
    np.testing.assert_array_equal(to_host(model(on_device(x))), x + x)


def two_functions(builder: Any) -> None:
    """``main(x[n, 4], w) = x + w``, and ``v1_main(x[8, 4], w) = x * w``, to be told apart."""
    from tvm import relax, tirx

    for name, rows, op in (
        ("main", tirx.Var("n", "int64"), relax.op.add),
        ("v1_main", 8, relax.op.multiply),
    ):
        x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
        w = relax.Var("w", relax.TensorType((4,), "float32"))
        with builder.function(name, [x, w]):
            with builder.dataflow():
                out = builder.emit_output(op(x, w))
            builder.emit_func_output(out)


@pytest.mark.parametrize("own", [True, False])
def test_each_variant_has_a_function_and_weights_of_its_own(
    kernels: Path, tmp_path: Path, own: bool
) -> None:
    """With entries of the GPU's own, and with those that the variants have for the CPU."""
    whole = added_contract()
    eight = msgspec.structs.replace(whole, dims=(dim("n", 0, 0, 8, 8),))
    entries = tuple(
        Entry(function, (0,), (), (weight,), 1)
        for function, weight in (("v1_main", "v"), ("main", "w"))
    )
    on_cpu = tuple(msgspec.structs.replace(each, weights=("w",)) for each in entries)
    called = on_cpu if own else entries
    path = pack_gpu(
        tmp_path / "v.tcpkg",
        whole,
        gpu_compiled(two_functions, kernels),
        {"w": WEIGHT, "v": WEIGHT + 1},
        entries=entries if own else (),
        entry=called[1],
        variants=(Variant("n=8", called[0], eight), Variant("general", called[1])),
    )
    model = load(path, device="cuda")
    x, y = np.full((8, 4), 3, np.float32), np.full((9, 4), 3, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(model(x), x * (WEIGHT + 1))
        np.testing.assert_array_equal(model(y), y + WEIGHT)
    np.testing.assert_array_equal(to_host(model(on_device(x))), x * (WEIGHT + 1))
    assert model.metrics.variants == {"n=8": 3, "general": 2}
    alone = load(path, device="cuda", variant="general")
    np.testing.assert_array_equal(alone(x), x + WEIGHT)
    with pytest.raises(GuardError, match="n <= 8"):
        load(path, device="cuda", variant="n=8")(y)


def test_what_does_not_fit_into_pinned_memory_goes_without(
    added: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tcexport.runtime.gpu_call import Pinned

    monkeypatch.setattr(Pinned, "MOST", 1000)
    model = load(added, device="cuda")
    for n in (10, 500):
        x = np.random.default_rng(n).standard_normal((n, 4), dtype=np.float32)
        np.testing.assert_array_equal(model(x), x + WEIGHT)
        np.testing.assert_array_equal(model(np.asfortranarray(x)), x + WEIGHT)


def test_results_that_are_arguments_or_weights_are_the_callers_own(gathered: Path) -> None:
    model = load(gathered, device="cuda")
    ids = np.arange(6).reshape(2, 3)
    rows, again, table = model(ids)
    np.testing.assert_array_equal(rows, TABLE[ids])
    table[:] = 0
    again[:] = 0
    assert (ids == np.arange(6).reshape(2, 3)).all()
    there = on_device(ids)
    rows, again, table = model(there)
    assert again.data_ptr() != there.data_ptr()
    np.testing.assert_array_equal(to_host(rows), TABLE[ids])
    np.testing.assert_array_equal(to_host(table), TABLE)


def test_many_threads_call_one_model(chained: Path, driver: Callable[..., None]) -> None:
    driver(lazy="1")
    model = load(chained, device="cuda")
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in rng.integers(1, 60, 15):
            x = rng.standard_normal((n, 4), dtype=np.float32)
            if not np.allclose(model(x), by_hand(x), rtol=1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.metrics.calls == 60


# --- tensors on the GPU ---------------------------------------------------------------------------


def test_device_tensors_are_not_copied_and_not_waited_for(
    chained: Path, driver: Callable[..., None], count: Callable[[int], int]
) -> None:
    model = load(chained, device="cuda")
    x = np.random.default_rng(0).standard_normal((33, 4), dtype=np.float32)
    there = on_device(x)
    model(there)
    driver(lazy="1")
    before = [count(which) for which in (TO_DEVICE, FROM_DEVICE, WAITS)]
    result = model(there)
    assert [count(which) for which in (TO_DEVICE, FROM_DEVICE, WAITS)] == before
    assert isinstance(result, type(there)) and tuple(result.__dlpack_device__()) == (2, 0)
    np.testing.assert_allclose(to_host(result), by_hand(x), rtol=1e-5)
    assert model.metrics.copies == 0


def test_work_is_queued_on_the_callers_stream_and_calls_keep_their_order(
    chained: Path, driver: Callable[..., None], libraries: tuple[ctypes.CDLL, ctypes.CDLL]
) -> None:
    model = load(chained, device="cuda")
    driver(lazy="1")
    streams = [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        assert not libraries[1].cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((n, 4), dtype=np.float32) for n in (40, 40, 41, 40)]
    tensors = [on_device(x) for x in inputs]
    results = []
    ffi = load_ffi()
    for number, tensor in enumerate(tensors):
        handle = streams[number % 2].value or 0
        with ffi.use_raw_stream(ffi.device("cuda:0"), handle):
            results.append(model(tensor))
        assert libraries[1].cudaStreamQuery(streams[number % 2]) == 600
    for number in (3, 2, 1, 0):  # the last is waited for first: what it needs must run before
        got = to_host(results[number], stream=streams[number % 2].value or 0)
        np.testing.assert_allclose(got, by_hand(inputs[number]), rtol=1e-5)


def test_a_library_of_unknown_streams_finds_its_results_computed(
    chained: Path, driver: Callable[..., None], libraries: tuple[ctypes.CDLL, ctypes.CDLL]
) -> None:
    model = load(chained, device="cuda")
    x = np.ones((5, 4), np.float32)
    there = Foreign(on_device(x))
    driver(lazy="1")
    result = model(there)
    assert libraries[1].cudaStreamQuery(None) == 0
    np.testing.assert_allclose(to_host(result), by_hand(x), rtol=1e-5)


def test_a_stream_is_asked_for_by_dlpacks_table_of_functions() -> None:
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
    )
    asked = []

    def answer(kind: int, index: int, out: Any) -> int:
        asked.append((kind, index))
        out[0] = 0x1230 + index
        return 0

    function = signature(answer)
    table = (ctypes.c_void_p * 7)(1, 0, 0, 0, 0, 0, ctypes.cast(function, ctypes.c_void_p).value)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    capsule = make(ctypes.addressof(table), b"dlpack_exchange_api", None)
    kind = type("Tensor", (), {"__dlpack_c_exchange_api__": capsule})
    where = type("Where", (), {"index": 3})
    assert stream_of(kind(), where) == (0x1233, True)  # type: ignore[arg-type]
    assert asked == [(2, 3)]


def test_misaligned_tensors_are_copied_on_the_device(
    chained: Path, count: Callable[[int], int]
) -> None:
    model = load(chained, device="cuda")
    x = np.random.default_rng(0).standard_normal((9, 4), dtype=np.float32)
    there = on_device(x, pad=4)
    before = count(FROM_DEVICE)
    result = model(there)
    assert count(FROM_DEVICE) == before
    np.testing.assert_allclose(to_host(result), by_hand(x), rtol=1e-5)
    assert (model.metrics.copies, model.metrics.copied_bytes) == (1, x.nbytes)


@pytest.mark.parametrize("compact", [True, False])
def test_strided_tensors_are_made_compact_and_counted(
    chained: Path, driver: Callable[..., None], compact: bool
) -> None:
    """By their library, or else by way of the host."""
    model = load(chained, device="cuda")
    x = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32)
    there = strided(on_device(x))
    if compact:
        there.contiguous = lambda: on_device(x[::2].copy())
    driver(lazy="1")
    np.testing.assert_allclose(to_host(model(there)), by_hand(x[::2]), rtol=1e-5)
    assert (model.metrics.copies, model.metrics.copied_bytes) == (1, x.nbytes // 2)


def test_indices_on_the_device_are_checked(gathered: Path, driver: Callable[..., None]) -> None:
    driver(lazy="1")
    model = load(gathered, device="cuda")
    ids = np.array([[1, 511], [0, 7]])
    np.testing.assert_array_equal(to_host(model(on_device(ids))[0]), TABLE[ids])
    ids[1, 1] = 512
    wide = np.zeros((8, 2), np.int64)
    wide[::2][:2] = ids
    for tensor in (ids, on_device(ids), strided(on_device(wide))):
        with pytest.raises(GuardError, match="512") as caught:
            model(tensor)
        assert caught.value.code == "TC309"


def test_tensors_of_other_devices_are_refused(added: Path) -> None:
    code = f"""
import numpy as np
from tcexport.artifacts.errors import GuardError
from tcexport.runtime import load
from tcexport.runtime.cuda import device_at
model, other, third = (load({str(added)!r}, device=name) for name in ("cuda:0", "cuda:1", "cpu"))
x = np.ones((2, 4), np.float32)
tensors = []
for index in (0, 1):
    device = device_at(index)
    slab = device.empty(x.nbytes)
    device.cudart.copy(slab.data_ptr(), x.ctypes.data, x.nbytes, 0)
    tensors.append(device.view(slab, x.shape, "float32", 0))
result = other(tensors[1])
device_at(1).cudart.copy(x.ctypes.data, result.data_ptr(), x.nbytes, 0)
print(x[1].tolist(), result.__dlpack_device__(), other(np.ones((1, 4), np.float32)).tolist())
for on, tensor in ((model, tensors[1]), (third, tensors[0])):
    try:
        on(tensor)
    except GuardError as error:
        print(error)
"""
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(standin.build_driver()),
        "STANDIN_DEVICES": "9.0,9.0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("[1.0, 2.0, 3.0, 4.0] (2, 1) [[1.0, 2.0, 3.0, 4.0]]"), done.stderr
    assert "[TC310] x: got cuda:1, needs cuda:0 or cpu" in done.stdout
    assert "[TC310] x: got cuda:0, needs cpu" in done.stdout


# --- memory ---------------------------------------------------------------------------------------


def test_weights_are_uploaded_once_and_leave_with_the_last_model(
    kernels: Path, tmp_path: Path, count: Callable[[int], int],
    libraries: tuple[ctypes.CDLL, ctypes.CDLL],
) -> None:  # fmt: skip
    table = np.random.default_rng(0).standard_normal((512, 8), dtype=np.float32)
    library = gpu_compiled(gather_rows, kernels)
    paths = [
        pack_gpu(tmp_path / name, gathered_contract(), library, {"table": table}, results=3)
        for name in ("a.tcpkg", "b.tcpkg")
    ]
    gc.collect()
    at_first, start = used(libraries), count(TO_DEVICE)
    first = load(paths[0], device="cuda")
    assert count(TO_DEVICE) - start == table.nbytes
    second = load(paths[1], device="cuda")
    assert count(TO_DEVICE) - start == table.nbytes
    memory = second.gpu_memory()
    assert memory is not None and memory.weights == table.nbytes
    del first
    gc.collect()
    assert used(libraries) >= at_first + table.nbytes
    assert (second(np.zeros((1, 1), np.int64))[0] == table[0]).all()
    second.release_memory()
    del second
    gc.collect()
    assert used(libraries) <= at_first


def test_the_pool_keeps_to_its_limit_and_can_be_emptied(
    chained: Path, libraries: tuple[ctypes.CDLL, ctypes.CDLL]
) -> None:
    model = load(chained, device="cuda")
    device = device_at(0)
    model.release_memory()
    before, kept = used(libraries), device.limit
    device.limit = 1 << 20
    try:
        most = 0
        for n in range(1, 4096, 120):
            model(np.ones((n, 4), np.float32))
            most = max(most, used(libraries) - before)
            memory = model.gpu_memory()
            assert memory is not None and memory.pool <= memory.limit
        assert 0 < most < 3 << 20
    finally:
        device.limit = kept
    assert model.release_memory() > 0
    assert used(libraries) <= before
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(model(x), by_hand(x), rtol=1e-5)


def test_a_model_on_the_cpu_has_no_gpu_memory(added: Path) -> None:
    model = load(added, device="cpu")
    assert model.gpu_memory() is None
    model.synchronize()


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_limit_of_the_hosts_memory_is_refused_on_a_gpu_before_anything_is_brought_there(
    added: Path, device: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring(*args: Any) -> None:
        raise AssertionError("weights were brought to the GPU")

    monkeypatch.setattr(Device, "upload", bring)
    with pytest.raises(UsageError, match=r"TC008.*is of the host's memory"):
        load(added, device=device, memory_limit=limit)


# --- failures -------------------------------------------------------------------------------------


def test_a_kernel_that_fails_is_told_by_the_call_that_waits(
    chained: Path, driver: Callable[..., None]
) -> None:
    driver(lazy="1")
    model = load(chained, device="cuda")
    x = np.ones((5, 4), np.float32)
    model(x)
    driver(fail="softmax")
    with pytest.raises(InternalError, match="cudaErrorIllegalAddress") as caught:
        model(x)
    assert caught.value.code == "TC601"


def test_a_kernel_that_fails_later_is_told_by_synchronize_and_by_the_next_call(
    chained: Path, driver: Callable[..., None], libraries: tuple[ctypes.CDLL, ctypes.CDLL]
) -> None:
    model = load(chained, device="cuda")
    there = on_device(np.ones((5, 4), np.float32))
    for tell in (model.synchronize, lambda: model(there)):
        driver(lazy="1", fail="softmax")
        model(there)
        libraries[1].cudaDeviceSynchronize()
        with pytest.raises(InternalError, match="ended in cudaErrorIllegalAddress") as caught:
            tell()
        assert "TCEXPORT_CUDA_BLOCKING=1" in str(caught.value)
        libraries[0].standin_recover()
        driver(fail="")
        np.testing.assert_allclose(
            to_host(model(there)), by_hand(np.ones((5, 4), np.float32)), rtol=1e-5
        )


def test_blocking_calls_tell_at_once(
    chained: Path,
    driver: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    libraries: tuple[ctypes.CDLL, ctypes.CDLL],
) -> None:
    monkeypatch.setenv("TCEXPORT_CUDA_BLOCKING", "1")
    model = load(chained, device="cuda")
    there = on_device(np.ones((5, 4), np.float32))
    driver(lazy="1", fail="softmax")
    with pytest.raises(InternalError, match="cudaErrorIllegalAddress"):
        model(there)
    libraries[0].standin_recover()  # or TVM ends the process when it cannot free `there`


def test_a_call_that_does_not_fit_says_so_and_the_next_one_runs(
    chained: Path, driver: Callable[..., None], libraries: tuple[ctypes.CDLL, ctypes.CDLL]
) -> None:
    model = load(chained, device="cuda")
    x = np.ones((4, 4), np.float32)
    model(x)
    model.release_memory()
    driver(memory=used(libraries) + 20_000)
    with pytest.raises(InternalError, match="TC601"):
        model(np.ones((4000, 4), np.float32))
    driver(memory=1 << 30)
    np.testing.assert_allclose(model(x), by_hand(x), rtol=1e-5)


def test_a_forked_child_is_told_to_load_anew(added: Path, kernels: Path) -> None:
    code = f"""
import os, numpy as np
from tcexport.runtime import load
model = load({str(added)!r}, device="cuda")
x = np.ones((2, 4), np.float32)
model(x)
if os.fork() == 0:
    try:
        model(x)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    environment = os.environ | {"LD_LIBRARY_PATH": str(standin.build_driver())}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "the process was forked after cuda:0 was used" in done.stdout, done.stderr
