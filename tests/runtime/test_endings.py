"""Long lives and ends: many threads, many loads, Ctrl-C, a process that ends while calls run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcexport.runtime import load
from tcexport.tools.soak import draw_cases, soak

from .test_library import PRELUDE, python
from .test_threads import USE


def test_sixteen_threads_of_mixed_sizes_get_one_threads_bits(parallel: Path) -> None:
    model = load(parallel, num_threads=1)
    told: list[str] = []
    wrong, _ = soak(model, draw_cases(model), threads=16, seconds=3, tell=told.append)
    assert wrong == 0 and len(told) == 1
    assert model.metrics.calls > 500


def test_a_soak_notices_a_wrong_bit(parallel: Path) -> None:
    model = load(parallel, num_threads=1)
    cases = draw_cases(model, count=4)
    cases[0].answer[0] = bytes(len(cases[0].answer[0]))
    wrong, _ = soak(model, cases, threads=2, seconds=0.5, tell=lambda line: None)
    assert wrong > 0


def test_an_interrupt_comes_after_the_call_and_the_model_lives_on(parallel: Path) -> None:
    script = (
        PRELUDE
        + USE
        + """
model = load(path, num_threads=2)
x = np.ones((900, 900), np.float32)
print("ready", flush=True)
count = 0
try:
    while True:
        model(x, x)
        count += 1
except KeyboardInterrupt:
    call(model)
    print("interrupted", model.metrics.calls in (count + 1, count + 2))
"""
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(parallel)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.stdout.read() == "interrupted True\n"
    assert child.wait(30) == 0


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("how", ["model(x, x)", "load(path, num_threads=1)(x, x)"])
def test_a_process_ends_while_daemon_threads_call(
    parallel: Path, num_threads: int, how: str
) -> None:
    """Python ends such threads where they next ask for the interpreter: within compiled code that
    would abort the process."""
    script = (
        USE
        + f"""
import atexit, time
model = load(path, num_threads={num_threads})
x = np.ones((64, 64), np.float32)
atexit.register(lambda: print("and at exit", float(model(x, x)[0, 0]), flush=True))
def forever():
    while True:
        {how}
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
"""
    )
    for _ in range(2):
        assert python(script, parallel) == "and at exit 64.0"
