"""CUDA graphs on the stand-in, which keeps what a stream is given while it is captured and runs none
of it: numbers of replays, results that callers hold, sizes, refusals, memory, and what fails."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcexport.artifacts.errors import GuardError, InternalError, UsageError
from tcexport.runtime import load
from tcexport.runtime.cuda import device_at
from tcexport.runtime.library import load_ffi

from .bundles import gpu_compiled, pack_gpu
from .small import TABLE, added_contract, by_hand, on_device, strided, to_host, used

pytestmark = pytest.mark.usefixtures("sound")
LAUNCHES, REPLAYS, GRAPHS = 0, 5, 6
Libraries = tuple[ctypes.CDLL, ctypes.CDLL]


def drawn(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 4), dtype=np.float32)


@pytest.mark.parametrize("lazy", ["", "1"])
def test_the_third_call_at_a_size_is_a_launch_of_a_graph(
    chained: Path, driver: Callable[..., None], count: Callable[[int], int], lazy: str
) -> None:
    driver(lazy=lazy)
    plain = load(chained, device="cuda")
    model = load(chained, device="cuda", cuda_graphs=True)
    for number in range(5):
        x = drawn(33, number)
        wanted = plain(x)
        before = count(LAUNCHES), count(REPLAYS)
        np.testing.assert_array_equal(model(x), wanted)
        launches, replays = count(LAUNCHES) - before[0], count(REPLAYS) - before[1]
        # made, recorded and launched, launched
        assert (launches > 0, replays) == [(True, 0), (True, 1), (False, 1)][min(number, 2)]
    assert model.metrics.replays == 3
    assert plain.metrics.replays == 0


def test_each_size_has_a_graph_of_its_own(chained: Path, count: Callable[[int], int]) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    for seed in range(4):
        for n in (1, 40, 41, 300, 7):
            x = drawn(n, seed)
            np.testing.assert_allclose(model(x), by_hand(x), rtol=1e-5)
    memory = model.gpu_memory()
    assert memory is not None and memory.graphs == count(GRAPHS) == 5
    assert 0 < memory.graph_bytes <= memory.pool + 5 * 8192
    assert model.metrics.replays == 10


def test_sizes_beyond_the_number_asked_for_replace_those_used_longest_ago(
    chained: Path, count: Callable[[int], int]
) -> None:
    model = load(chained, device="cuda", cuda_graphs=2)
    for n in (1, 1, 2, 2, 1, 1):
        model(drawn(n))
    assert (count(GRAPHS), model.metrics.replays) == (2, 2)
    model(drawn(3))  # noted, in place of 2
    assert count(GRAPHS) == 1
    model(drawn(1))
    assert model.metrics.replays == 3
    model(drawn(3))
    assert count(GRAPHS) == 2
    before = count(REPLAYS)
    for _ in range(3):
        for n in (4, 5, 6):  # come back too late: they are not recorded again and again
            np.testing.assert_allclose(model(drawn(n)), by_hand(drawn(n)), rtol=1e-5)
    assert count(REPLAYS) == before
    assert count(GRAPHS) == 0


@pytest.mark.parametrize("lazy", ["", "1"])
def test_results_on_the_device_are_not_written_over(
    chained: Path, driver: Callable[..., None], lazy: str
) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    other = load(chained, device="cuda", cuda_graphs=True)
    inputs = [drawn(50 + number % 2, number) for number in range(12)]
    tensors = [on_device(x) for x in inputs]
    driver(lazy=lazy)
    held = [each(tensor) for tensor in tensors for each in (model, other)]
    assert len({tensor.data_ptr() for tensor in held}) == len(held)
    for number, got in enumerate(held):
        np.testing.assert_allclose(to_host(got), by_hand(inputs[number // 2]), rtol=1e-5)
    assert model.metrics.replays == other.metrics.replays == 8
    assert model.metrics.copies == 0


def test_what_a_graph_computes_with_is_given_to_nobody_else(chained: Path) -> None:
    """Not even once the call that was recorded has ended and its memory would be free."""
    plain = load(chained, device="cuda")
    model = load(chained, device="cuda", cuda_graphs=True)
    x = drawn(64)
    for _ in range(2):
        model(x)
    held = [plain(on_device(drawn(64, seed))) for seed in range(8)]
    for seed in range(8):
        np.testing.assert_allclose(model(drawn(64, 99)), by_hand(drawn(64, 99)), rtol=1e-5)
        np.testing.assert_allclose(to_host(held[seed]), by_hand(drawn(64, seed)), rtol=1e-5)
    assert model.metrics.replays == 8


def test_results_that_are_arguments_or_weights_are_the_callers_own(gathered: Path) -> None:
    model = load(gathered, device="cuda", cuda_graphs=True)
    kept = []
    for number in range(4):
        ids = np.arange(6).reshape(2, 3) + number
        there = on_device(ids)
        kept.append((ids, [to_host(each) for each in model(there)], model(there)))
        rows, again, table = model(ids)
        np.testing.assert_array_equal(rows, TABLE[ids])
        np.testing.assert_array_equal(again, ids)
        table[:] = again[:] = 0
    for ids, copied, results in kept:
        for found in (copied, [to_host(each) for each in results]):
            for got, wanted in zip(found, (TABLE[ids], ids, TABLE), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_guards_are_held_at_each_call(gathered: Path, count: Callable[[int], int]) -> None:
    model = load(gathered, device="cuda", cuda_graphs=True)
    ids = np.array([[1, 511], [0, 7]])
    for _ in range(3):
        model(ids)
    assert model.metrics.replays == 1
    before = count(LAUNCHES), count(REPLAYS)
    for bad in (np.array([[1, 512], [0, 7]]), np.array([[1, -1], [0, 7]])):
        for value in (bad, on_device(bad)):
            with pytest.raises(GuardError, match="TC309"):
                model(value)
    with pytest.raises(GuardError, match="TC304"):
        model(ids.astype(np.int32))
    assert (count(LAUNCHES), count(REPLAYS)) == before
    np.testing.assert_array_equal(model(ids)[0], TABLE[ids])


def test_inputs_that_are_strided_or_not_aligned_are_replayed_and_counted(chained: Path) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    x = drawn(8)
    for _ in range(3):
        np.testing.assert_allclose(
            to_host(model(strided(on_device(x)))), by_hand(x[::2]), rtol=1e-5
        )
        np.testing.assert_allclose(to_host(model(on_device(x, pad=4))), by_hand(x), rtol=1e-5)
    assert model.metrics.replays == 2
    assert (model.metrics.copies, model.metrics.copied_bytes) == (6, 3 * (x.nbytes + x.nbytes // 2))


def test_graphs_are_launched_on_the_callers_stream_and_keep_the_order_of_calls(
    chained: Path, driver: Callable[..., None], libraries: Libraries
) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    for _ in range(2):
        model(drawn(40))
    driver(lazy="1")
    streams = [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        assert not libraries[1].cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    inputs = [drawn(40, seed) for seed in range(4)]
    tensors = [on_device(x) for x in inputs]
    ffi, results = load_ffi(), []
    for number, tensor in enumerate(tensors):
        with ffi.use_raw_stream(ffi.device("cuda:0"), streams[number % 2].value or 0):
            results.append(model(tensor))
        assert libraries[1].cudaStreamQuery(streams[number % 2]) == 600
    assert model.metrics.replays == 4
    for number in (3, 2, 1, 0):
        got = to_host(results[number], stream=streams[number % 2].value or 0)
        np.testing.assert_allclose(got, by_hand(inputs[number]), rtol=1e-5)


def test_many_threads_share_the_graphs(chained: Path, driver: Callable[..., None]) -> None:
    driver(lazy="1")
    models = [load(chained, device="cuda", cuda_graphs=3) for _ in range(2)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(12):
            x = drawn((5, 6, 60, 5)[step % 4], 100 * seed + step)
            if not np.allclose(models[step % 2](x), by_hand(x), rtol=1e-5):
                wrong.append(step)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(model.metrics.calls for model in models) == 48
    assert all(model.metrics.replays > 5 for model in models)


def test_graphs_are_released_and_recorded_anew(
    chained: Path, count: Callable[[int], int], libraries: Libraries
) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    model.release_memory()
    at_first = used(libraries)
    for n in (2000, 2000, 100, 100, 2000):
        model(drawn(n))
    assert count(GRAPHS) == 2
    memory = model.gpu_memory()
    assert memory is not None and memory.graph_bytes > 2 * drawn(2000).nbytes
    assert model.release_memory() > 0
    assert (count(GRAPHS), used(libraries)) == (0, at_first)
    memory = model.gpu_memory()
    assert memory is not None and (memory.graphs, memory.graph_bytes) == (0, 0)
    for _ in range(3):
        np.testing.assert_allclose(model(drawn(100)), by_hand(drawn(100)), rtol=1e-5)
    assert count(GRAPHS) == 1


def test_graphs_of_different_sizes_and_models_share_what_lies_between(chained: Path) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    model.release_memory()
    sizes = []
    for n in range(2000, 2008):
        for _ in range(2):
            model(drawn(n))
        memory = model.gpu_memory()
        assert memory is not None
        sizes.append(memory.graph_bytes - sum(-(-m * 16 // 256) * 256 for m in range(2000, n + 1)))
    assert sizes[-1] <= 2 * sizes[0]
    second = load(chained, device="cuda", cuda_graphs=True)
    for _ in range(2):
        second(drawn(2000))
    shared = second.gpu_memory()
    assert shared is not None and shared.graph_bytes <= sizes[-1] + 2000 * 16 + 256


def test_graphs_leave_with_their_model(
    chained: Path, count: Callable[[int], int], libraries: Libraries
) -> None:
    gc.collect()
    model = load(chained, device="cuda", cuda_graphs=True)
    result = [model(on_device(drawn(30))) for _ in range(3)][-1]
    assert count(GRAPHS) == 1
    del model
    gc.collect()
    assert count(GRAPHS) == 0
    assert device_at(0).arena() is None
    np.testing.assert_allclose(to_host(result), by_hand(drawn(30)), rtol=1e-5)


def test_graphs_beyond_the_limit_of_the_pool_are_given_up_and_that_is_said(
    chained: Path, count: Callable[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    model.release_memory()
    device = device_at(0)
    before, device.limit = device.limit, 40_000
    try:
        with caplog.at_level(logging.WARNING, "tcexport.device"):
            for seed in range(5):
                x = drawn(2000, seed)
                np.testing.assert_allclose(model(x), by_hand(x), rtol=1e-5)
    finally:
        device.limit = before
    assert count(GRAPHS) == 0
    (line,) = [each.getMessage() for each in caplog.records]
    assert "beyond its limit, 40000 bytes" in line


# --- what cannot be recorded ----------------------------------------------------------------------


def required_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.name == "tcexport.device" and record.levelno == logging.WARNING
    message = record.getMessage()
    assert "calls are queued kernel by kernel, as without" in message
    return message


def test_a_driver_that_cannot_record_is_said_once_and_calls_go_on(
    chained: Path,
    driver: Callable[..., None],
    count: Callable[[int], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver(capture="0")
    model = load(chained, device="cuda", cuda_graphs=True)
    for seed in range(4):
        for n in (20, 30):
            np.testing.assert_allclose(model(drawn(n, seed)), by_hand(drawn(n, seed)), rtol=1e-5)
            got = to_host(model(on_device(drawn(n, seed))))
            np.testing.assert_allclose(got, by_hand(drawn(n, seed)), rtol=1e-5)
    assert "cudaStreamBeginCapture answers cudaErrorNotSupported" in required_warning(caplog)
    assert (count(GRAPHS), model.metrics.replays) == (0, 0)


def read_on_the_host(builder: Any) -> None:
    """``main(x[n, 4]) = tanh(x)``, or ``x + x`` where the first value of x is above 0."""
    from tvm import relax, tirx

    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        first = builder.emit(relax.op.strided_slice(x, [0, 1], [0, 0], [1, 1]))
        is_above = builder.emit(relax.op.greater(first, relax.const(0.0, "float32")))
        flag = builder.emit(relax.op.reshape(is_above, ()))
        then = relax.SeqExpr([], relax.op.add(x, x))
        other = relax.SeqExpr([], relax.op.tanh(x))
        out = builder.emit(relax.If(flag, then, other))
        builder.emit_func_output(out)


def test_a_model_that_reads_values_on_the_host_is_never_recorded(
    kernels: Path, tmp_path: Path, count: Callable[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    library = gpu_compiled(read_on_the_host, kernels)
    path = pack_gpu(tmp_path / "h.tcpkg", added_contract(), library)
    model = load(path, device="cuda", cuda_graphs=True)
    for seed in range(6):
        x = drawn(9, seed)
        wanted = x + x if x[0, 0] > 0 else np.tanh(x)
        np.testing.assert_allclose(model(x), wanted, rtol=1e-5)
    assert "vm.builtin.read_if_cond, which may read values" in required_warning(caplog)
    assert count(GRAPHS) == 0


def test_memory_that_is_a_threads_is_a_reason_not_to_record(
    chained: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tcexport.runtime.gpu_graphs._WORKSPACE", b"\x7fELF")
    model = load(chained, device="cuda", cuda_graphs=True)
    for _ in range(3):
        np.testing.assert_allclose(model(drawn(9)), by_hand(drawn(9)), rtol=1e-5)
    assert "memory that belongs to a thread" in required_warning(caplog)
    assert model.metrics.replays == 0


def test_a_kernel_that_fails_in_a_graph_is_told_by_the_call_that_waits(
    chained: Path, driver: Callable[..., None]
) -> None:
    driver(lazy="1")
    model = load(chained, device="cuda", cuda_graphs=True)
    for _ in range(3):
        model(drawn(5))
    driver(fail="softmax")
    with pytest.raises(InternalError, match="cudaErrorIllegalAddress"):
        model(drawn(5))


def test_a_call_that_does_not_fit_beside_the_graphs_says_so_and_the_next_one_runs(
    chained: Path, driver: Callable[..., None], libraries: Libraries
) -> None:
    model = load(chained, device="cuda", cuda_graphs=True)
    for _ in range(3):
        model(drawn(4))
    driver(memory=used(libraries) + 20_000)
    with pytest.raises(InternalError, match="TC60"):
        model(drawn(4000))
    driver(memory=1 << 30)
    np.testing.assert_allclose(model(drawn(4)), by_hand(drawn(4)), rtol=1e-5)
    assert model.metrics.replays == 2


@pytest.mark.parametrize("asked", [-1, 1.5, "yes", None])
def test_what_is_no_number_of_graphs_is_refused(added: Path, asked: Any) -> None:
    with pytest.raises(UsageError, match=r"TC008.*cuda_graphs"):
        load(added, device="cuda", cuda_graphs=asked)


def test_graphs_on_the_cpu_are_refused(added: Path, driver: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match=r"TC008.*cuda_graphs=True is of a GPU"):
        load(added, device="cpu", cuda_graphs=True)
    driver(devices="")
    model = load(added, device="auto", cuda_graphs=True)
    assert model.device == "cpu" and model.fallback is not None
