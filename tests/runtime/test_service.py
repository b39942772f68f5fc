"""What a service needs of a model: calls that do not block a loop, warm-up, counters, quiet logs."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tcexport.artifacts.errors import GuardError, UsageError
from tcexport.runtime import load
from tcexport.runtime.prometheus import watch

from .conftest import WEIGHT
from .test_library import python

ROW = np.ones((2, 4), np.float32)
MANY = np.ones((65, 4), np.float32)
LARGE = np.ones((700, 700), np.float32)


# --- asyncio --------------------------------------------------------------------------------------


def test_the_loop_goes_on_while_a_call_runs(parallel: Path) -> None:
    model = load(parallel, num_threads=1)
    alone = model.warmup({"n": 700, "k": 700, "m": 700})[0]

    async def serve() -> int:
        turns = 0
        call = asyncio.ensure_future(model.acall(LARGE, LARGE))
        while not call.done():
            await asyncio.sleep(alone / 20)
            turns += 1
        np.testing.assert_array_equal(await call, np.full((700, 700), 700, np.float32))
        return turns

    assert asyncio.run(serve()) >= 5


def test_refusals_and_context_come_through(added: Path) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []
    model = load(added, on_violation=lambda args, kwargs, error: seen.append(variable.get()))
    strict = load(added)

    async def serve() -> None:
        variable.set("this request")
        np.testing.assert_array_equal(await strict.acall(x=ROW), ROW + WEIGHT)
        assert await model.acall(MANY) is None
        with pytest.raises(GuardError, match="n <= 64"):
            await strict.acall(MANY)

    asyncio.run(serve())
    assert seen == ["this request"]


def test_no_more_calls_at_once_than_there_is_room_for(parallel: Path) -> None:
    model = load(parallel, num_threads=64)
    before = set(threading.enumerate())

    async def serve() -> set[threading.Thread]:
        await asyncio.gather(*(model.acall(LARGE[:50, :50], LARGE[:50, :50]) for _ in range(8)))
        return set(threading.enumerate()) - before

    assert len(asyncio.run(serve())) == 1


def test_a_cancelled_call_frees_its_task_at_once_and_never_runs_if_it_waited(
    parallel: Path,
) -> None:
    model = load(parallel, num_threads=64)  # one call at a time

    async def serve() -> None:
        first = asyncio.ensure_future(model.acall(LARGE, LARGE))
        waiting = asyncio.ensure_future(model.acall(LARGE, LARGE))
        await asyncio.sleep(0)
        begun = time.perf_counter()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not first.done() and time.perf_counter() - begun < 1
        await first
        await model.acall(LARGE[:2, :2], LARGE[:2, :2])

    asyncio.run(serve())
    assert model.metrics.calls == 2


def test_a_forked_child_has_threads_of_its_own_for_its_loop(parallel: Path) -> None:
    script = """
import asyncio
from tcexport.runtime import load
model = load(path, num_threads=2)
x = np.ones((8, 8), np.float32)
async def serve():
    return float((await model.acall(x, x)).sum())
before = asyncio.run(serve())
child = os.fork()
if child == 0:
    import signal
    signal.alarm(20)
    sys.exit(asyncio.run(serve()) == before)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), asyncio.run(serve()) == before)
"""
    assert python(script, parallel) == "1 True"


def test_the_threads_go_with_the_model(added: Path) -> None:
    model = load(added)
    asyncio.run(model.acall(ROW))
    before = threading.active_count()
    del model
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() < before


# --- warm-up --------------------------------------------------------------------------------------


def test_a_warm_up_calls_at_each_of_the_sizes(gathered: Path) -> None:
    model = load(gathered)
    assert len(model.warmup()) == 1
    assert len(model.warmup({"b": 8})) == 1
    assert len(model.warmup([{"b": 2, "s": 512}, {"b": 8, "s": 0}])) == 2
    assert model.metrics.calls == 4


@pytest.mark.parametrize("sizes", [{"seq": 4}, {"b": "four"}, {"b": True}, [4], {"b": -3}])
def test_a_warm_up_at_what_is_no_size_is_refused(gathered: Path, sizes: object) -> None:
    with pytest.raises(UsageError, match=r"TC008.*warmup"):
        load(gathered).warmup(sizes)  # type: ignore[arg-type]


def test_a_warm_up_outside_of_the_contract_is_refused_as_a_call_is(gathered: Path) -> None:
    with pytest.raises(GuardError, match="b <= 8"):
        load(gathered).warmup({"b": 9})


# --- counters and logs ----------------------------------------------------------------------------


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_prometheus_shows_what_models_count_until_they_are_gone(
    added: Path, gathered: Path
) -> None:
    registry = CollectorRegistry()
    first, second = load(added), load(gathered)
    watch(first, "adder", registry)
    watch(second, "gatherer", registry)
    first(ROW)
    first(np.ones((4, 8), np.float32)[:, ::2])
    with pytest.raises(GuardError):
        first(MANY)
    lines = shown(registry)
    assert 'tcexport_calls_total{model="adder"} 2.0' in lines
    assert 'tcexport_calls_total{model="gatherer"} 0.0' in lines
    assert f'tcexport_copies_total{{model="adder"}} {float(first.metrics.copies)}' in lines
    assert 'tcexport_violations_total{code="TC301",model="adder"} 1.0' in lines
    guard = next(iter(first.metrics.guards))
    assert f'tcexport_guards_total{{guard="{guard}",model="adder"}} 1.0' in lines
    with pytest.raises(UsageError, match="another model"):
        watch(second, "adder", registry)
    del first
    gc.collect()
    assert [line for line in shown(registry) if "adder" in line] == []


def test_the_library_says_nothing_unless_it_is_asked(added: Path) -> None:
    script = "check(path)\nimport logging\nprint(logging.getLogger('tcexport').handlers)"
    assert python(script, added, PYTHONWARNINGS="error") == "[<NullHandler (NOTSET)>]"


def test_an_application_hears_of_loads_by_its_own_handlers(
    added: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tcexport.runtime"):
        model = load(added, num_threads=3)
        worker = threading.Thread(target=model, args=(ROW,), name="request 7")
        worker.start()
        worker.join()
    told = [record.getMessage() for record in caplog.records]
    assert any(f"{added}: loaded in " in line and "3 threads" in line for line in told)
    assert f"{added}: a VM for request 7" in told
    assert os.environ.get("TCEXPORT_LOGS") is None
