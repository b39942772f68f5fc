"""Threads: as many as asked, the caller's affinity untouched, clear words after a fork."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tcexport.artifacts.errors import UsageError
from tcexport.runtime.threads import ENVIRONMENT, thread_count, usable_cores

from .test_library import python
from .test_signature import Key, signed_by

# numpy.testing is imported when it is first asked for: a child that is forked while another thread
# imports a module hangs when it asks for the same one, whoever wrote it (CPython's locks of modules).
USE = """
import numpy.testing
from tcexport.runtime import load
x = np.ones((64, 64), np.float32)
def call(model):
    np.testing.assert_array_equal(model(x, x), x @ x)
def threads():
    return len(os.listdir("/proc/self/task"))
"""


def test_the_callers_affinity_is_untouched(parallel: Path) -> None:
    script = (
        USE
        + """
before = os.sched_getaffinity(0)
for count in (1, 2, 3):
    model = load(path, num_threads=count)
    call(model)
    worker = threading.Thread(target=call, args=(model,))
    worker.start(); worker.join()
    tasks = set()
    for task in os.listdir("/proc/self/task"):
        try:
            tasks.add(frozenset(os.sched_getaffinity(int(task))))
        except ProcessLookupError:  # a worker of the thread that is over, just gone itself
            pass
    print(os.sched_getaffinity(0) == before, tasks == {frozenset(before)})
"""
    )
    assert set(python(script, parallel).split("\n")) == {"True True"}
    assert set(python("import tvm" + script, parallel).split("\n")) == {"True True"}


def test_worker_threads_are_as_many_as_asked(parallel: Path) -> None:
    script = (
        USE
        + """
start = threads()
one = load(path, num_threads=1)
call(one)
print(threads() - start)
def other():
    three, two = load(path, num_threads=3), load(path, num_threads=2)
    before = threads()
    call(two); call(three); call(two); call(one)
    print(threads() - before)
worker = threading.Thread(target=other)
worker.start(); worker.join()
"""
    )
    assert python(script, parallel).split() == ["0", "2"]


def test_models_with_other_counts_take_turns(parallel: Path) -> None:
    script = (
        USE
        + """
models = [load(path, num_threads=count) for count in (1, 2, 4, 3)]
import tvm_ffi
used = tvm_ffi.get_global_func("runtime.NumThreads")
for _ in range(2):
    for model in models:
        call(model)
        print(used())
"""
    )
    assert python(script, parallel).split() == ["1", "2", "4", "3"] * 2


def test_a_thread_that_ends_takes_its_workers_along(parallel: Path) -> None:
    script = (
        USE
        + """
model = load(path, num_threads=3)
call(model)
before = threads()
for _ in range(20):
    worker = threading.Thread(target=call, args=(model,))
    worker.start(); worker.join()
import time
deadline = time.monotonic() + 10
while threads() > before and time.monotonic() < deadline:
    time.sleep(0.01)
print(threads() - before)
"""
    )
    assert python(script, parallel) == "0"


def test_a_fork_before_the_first_call_works(parallel: Path) -> None:
    script = (
        USE
        + """
model = load(path, num_threads=2)
child = os.fork()
call(model)
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert python(script, parallel) == "0"


def test_a_fork_after_a_call_works_in_the_child_and_in_its_child(parallel: Path) -> None:
    script = (
        USE
        + """
model = load(path, num_threads=3)
call(model)
def in_child(depth):
    child = os.fork()
    if child == 0:
        call(model)
        assert threads() == 3, threads()
        worker = threading.Thread(target=call, args=(model,))
        worker.start(); worker.join()
        call(load(path, num_threads=1))
        if depth:
            in_child(depth - 1)
        sys.exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 7, status
in_child(1)
call(model)
print("well")
"""
    )
    assert python(script, parallel) == "well"


@pytest.mark.parametrize("last", ["", "call(model)", "call(load(path, num_threads=1))"])
def test_a_child_that_ends_with_sys_exit_ends(parallel: Path, last: str) -> None:
    """The destructor of a pool waits for workers, which a child does not have."""
    script = (
        USE
        + f"""
import time
model = load(path, num_threads=4)
call(model)
time.sleep(0.1)  # let the workers fall asleep
child = os.fork()
if child == 0:
    {last or "pass"}
    sys.exit(3)
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        print(os.waitstatus_to_exitcode(status))
        break
    time.sleep(0.02)
else:
    os.kill(child, 9)
"""
    )
    assert python(script, parallel) == "3"


def test_a_fork_while_other_threads_load_and_count_never_hangs(parallel: Path) -> None:
    script = (
        USE
        + """
import signal
ended = threading.Event()
def busy():
    while not ended.is_set():
        model = load(path, num_threads=2)
        call(model)
        model.metrics
workers = [threading.Thread(target=busy) for _ in range(3)]
for worker in workers: worker.start()
statuses = set()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        model = load(path, num_threads=2)
        call(model)
        os._exit(model.metrics.calls)
    statuses.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ended.set()
for worker in workers: worker.join()
print(statuses)
"""
    )
    assert python(script, parallel) == "{1}"


def test_loads_and_calls_import_nothing(parallel: Path) -> None:
    """A child that was forked while another thread imported a module hangs where it asks for that one:
    whatever a load or a call needs is there once tcexport.runtime is imported."""
    script = (
        USE
        + """
before = set(sys.modules)
model = load(path, num_threads=2, serves={"n": (1, 8)})
call(model)
x = np.ones((64, 64), np.float32)
model(x[:, ::-1], x)
for arguments in ((x,), (x.astype(float), x), (x[:3], x[:4]), (1, "x"), ([1], None)):
    try:
        model(*arguments)
    except Exception as error:
        assert error.code.startswith("TC3"), error
model.session()(x, x), model.metrics, model.release_memory()
print(sorted(set(sys.modules) - before))
"""
    )
    assert python(script, parallel) == "[]"


def test_a_fork_waits_for_loads_and_machines_of_other_threads(parallel: Path) -> None:
    """What takes locks of the loader or of TVM is never cut in two by a fork."""
    script = (
        USE
        + """
from tcexport.runtime import library, worker
within = threading.Event()
def loads():
    with library.LOADING:
        within.set()
        time.sleep(0.5)
        left.append(time.monotonic())
import time
left = []
thread = threading.Thread(target=loads)
thread.start()
within.wait()
child = os.fork()
if child == 0:
    os._exit(0)
assert left and time.monotonic() >= left[0]
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
taken = []
class Watched:
    def __enter__(self): taken.append(sys._getframe(1).f_code.co_name); return kept.__enter__()
    def __exit__(self, *error): return kept.__exit__(*error)
kept, library.LOADING = library.LOADING, Watched()
worker.LOADING = library.LOADING
call(load(path, num_threads=2))
print("load_alone" in taken, "_start" in taken)
"""
    )
    assert python(script, parallel).split() == ["0", "True", "True"]


@pytest.mark.parametrize(
    ("imported", "work"),
    [
        ("numpy.random", "model.warmup({'n': 2, 'k': 2, 'm': 2})"),
        ("cryptography.", "load(path, require_signature=key)"),
        ("concurrent.futures.thread", "asyncio.run(model.acall(x, x))"),
    ],
)
def test_a_fork_waits_for_what_other_threads_import(
    parallel: Path, tmp_path: Path, imported: str, work: str
) -> None:
    """A module that is imported in the middle of a fork could never be imported in the child."""
    signed = tmp_path / "m.tcpkg"
    shutil.copy(parallel, signed)
    key = Key(tmp_path, "mine")
    signed_by(signed, key)
    script = (
        USE.replace("import numpy.testing\n", "import asyncio, importlib.machinery, signal, time\n")
        + f"""
key, late = {str(key.public)!r}, {imported!r}
class Slow:
    def find_spec(self, name, path=None, target=None):
        if not name.startswith(late) or within.is_set():
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def slowly(module):
            within.set()
            time.sleep(0.5)
            execute(module)
        spec.loader.exec_module = slowly
        return spec
model, within = load(path, num_threads=1), threading.Event()
assert not any(name.startswith(late) for name in sys.modules)
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: {work})
thread.start()
assert within.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    {work}
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""
    )
    assert python(script, signed) == "3"


def test_without_a_way_to_start_workers_anew_a_fork_is_an_error_not_a_hang(parallel: Path) -> None:
    script = (
        USE
        + """
from tcexport.artifacts.errors import InternalError
from tcexport.runtime import threads as pools
pools.find_pool = lambda runtime: None  # as with a C library that does not tell where the pool lies
model = load(path, num_threads=2)
call(model)
child = os.fork()
if child == 0:
    try:
        call(model)
    except InternalError as error:
        assert "forked" in str(error)
        worker = threading.Thread(target=call, args=(model,))
        worker.start(); worker.join()
        call(load(path, num_threads=1))
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
call(model)
"""
    )
    assert python(script, parallel) == "7"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_whatever_starts_its_processes(
    parallel: Path, tmp_path: Path, method: str
) -> None:
    script = tmp_path / "service.py"
    script.write_text(
        f"""
import multiprocessing, sys
import numpy as np
from tcexport.runtime import load

model = load(sys.argv[1], num_threads=2)  # again in the processes of spawn and forkserver

def answer(size):
    x = np.full((size, size), 0.5, np.float32)
    return float(model(x, x).sum())

if __name__ == "__main__":
    before = answer(8)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map_async(answer, [8] * 6).get(60) == [before] * 6
    print(answer(8) == before)
"""
    )
    done = subprocess.run(
        [sys.executable, str(script), str(parallel)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "True\n", done.stderr[-2000:]


def test_idle_workers_do_not_burn_the_cpu(parallel: Path) -> None:
    script = (
        USE
        + """
import time
model = load(path, num_threads=2)
call(model)
time.sleep(0.05)
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before < 0.05)
"""
    )
    assert python(script, parallel) == "True"


def test_the_users_own_settings_of_tvm_stand(parallel: Path) -> None:
    script = USE + "call(load(path))\nprint(os.environ['TVM_THREAD_POOL_SPIN_COUNT'])"
    assert python(script, parallel, TVM_THREAD_POOL_SPIN_COUNT="77") == "77"


def test_the_count_comes_from_the_argument_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert thread_count(None) == usable_cores()
    monkeypatch.setenv(ENVIRONMENT, "5")
    assert thread_count(None) == 5
    assert thread_count(3) == 3


def test_no_more_cores_than_the_affinity_allows() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("count", [0, -1, 1025, "two", 1.5, True])
def test_bad_counts_are_refused(count: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"TC008.*num_threads"):
        thread_count(count)
    monkeypatch.setenv(ENVIRONMENT, str(count))
    with pytest.raises(UsageError, match=f"TC008.*{ENVIRONMENT}"):
        thread_count(None)
