"""Many threads on one model for a long time: ``python -m tcexport.tools.soak m.tcpkg --minutes 10``.

Each thread draws sizes and inputs within the contract from a seed of its own and compares every answer
with the one that a single thread gave before, bit by bit. In between, threads end and new ones begin,
calls outside of the contract are refused, and every minute a line tells calls per second and resident
memory. At the end the same calls are made once more behind one lock, to show what it would cost.
``--loads`` loads, calls and drops the model many times, and counts descriptors, maps and memory.

Exit status 1 where a number differs, memory grows, or something is left behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from ..artifacts.contract import AxisSource, Contract
from ..artifacts.errors import GuardError
from ..runtime import Model, load
from ..runtime.drawn import drawn_call
from ..runtime.structure import leaves_of
from .bench_sizes import misfit, sizes_text
from .served import served

_CASES = 24  # calls whose answers are known
_LARGEST = 64  # a dim is drawn up to here, or to the lowest size that is served
_LIFE = 500  # calls of a thread before another takes its place
_TIMED = 200  # calls of each thread that are timed with and without a lock
_GROWTH = 1.25  # of resident memory after the first tenth of the time


class Case:
    """A call, and the bits of its answer."""

    def __init__(self, model: Model, sizes: Mapping[str, int], seed: int) -> None:
        self.sizes = sizes
        self.args, self.kwargs = drawn_call(model.contract, sizes, seed)
        self.answer = self._bits(model)

    def _bits(self, model: Model) -> list[bytes]:
        result = served(model)(*self.args, **self.kwargs)
        return [np.asarray(leaf).tobytes() for leaf in leaves_of(model.contract.result, result)]

    def holds(self, model: Model) -> bool:
        """Whether the model gives the same bits again."""
        return self._bits(model) == self.answer


@click.command()
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False))
@click.option("--minutes", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--num-threads", type=click.IntRange(min=1), default=1, help="Of one call.")
@click.option("--loads", type=click.IntRange(min=0), default=1000, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="`cpu`, `cuda`, `cuda:1`.")
def command(
    bundle: str, minutes: float, threads: int, num_threads: int, loads: int, device: str
) -> None:
    """Call BUNDLE from many threads, then load it many times."""
    model = load(bundle, device=device, num_threads=num_threads)
    cases = draw_cases(model)
    for sizes in sorted({sizes_text(case.sizes) for case in cases}):
        click.echo(f"  {sizes}")
    wrong, grown = soak(model, cases, threads, 60 * minutes, click.echo)
    alone = throughput(model, cases, threads, contextlib.nullcontext())
    locked = throughput(model, cases, threads, threading.Lock())
    click.echo(f"{alone:.0f} calls/s, behind one lock {locked:.0f} calls/s: {alone / locked:.2f}x")
    del model, cases
    left = leaks(bundle, loads, num_threads, device) if loads else {}
    for what, (before, after) in left.items():
        click.echo(f"{what}: {before} before {loads} loads, {after} after")
    bad = [what for what, (before, after) in left.items() if after > _allowed(what, before)]
    if wrong or grown or bad:
        click.echo(f"failed: {wrong} wrong answers; " + ", ".join([*bad, *(["memory"] * grown)]))
        sys.exit(1)


def draw_cases(model: Model, count: int = _CASES) -> list[Case]:
    """Calls at mixed sizes, and what they give."""
    generator = random.Random(0)
    cases: list[Case] = []
    for seed in range(1000):
        sizes = _draw(model.contract, generator)
        if misfit(model.contract, sizes):
            continue
        try:
            cases.append(Case(model, sizes, seed))
        except GuardError:  # one that only the values tell
            continue
        if len(cases) == count:
            break
    if not cases:
        raise click.ClickException("no call within the contract was found by drawing")
    return cases


def _draw(contract: Contract, generator: random.Random) -> dict[str, int]:
    sizes = {}
    for dim in contract.dims:
        high = max(dim.lo, _LARGEST) if dim.hi is None else min(dim.hi, max(dim.lo, _LARGEST))
        if not isinstance(dim.source, AxisSource):
            high = dim.lo
        size = generator.randint(dim.lo, high)
        sizes[dim.name] = size - (size - dim.lo) % dim.step
    return sizes


def soak(
    model: Model,
    cases: list[Case],
    threads: int,
    seconds: float,
    tell: Callable[[str], Any],
) -> tuple[int, bool]:
    """Call from ``threads`` threads at once for ``seconds``.

    Returns:
        how many answers were wrong (an exception counts as one), and whether memory grew.
    """
    end = time.monotonic() + seconds
    wrong = [0]

    def work(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(_LIFE):
            if time.monotonic() > end:
                return
            try:
                if not generator.choice(cases).holds(model):
                    wrong[0] += 1
                if generator.random() < 0.02:
                    with contextlib.suppress(GuardError):
                        served(model)(*generator.choice(cases).args, None)
                        wrong[0] += 1
            except Exception as error:
                wrong[0] += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)

    def relay(number: int) -> None:
        """Threads one after the other, each with a VM of its own."""
        turn = 0
        while time.monotonic() < end:
            turn += 1
            worker = threading.Thread(target=work, args=(number * 1_000_003 + turn,))
            worker.start()
            worker.join()

    relays = [threading.Thread(target=relay, args=(number,)) for number in range(threads)]
    for each in relays:
        each.start()
    settled, told, begun, calls = 0, time.monotonic(), time.monotonic(), model.metrics.calls
    highest = 0
    while time.monotonic() < end:
        time.sleep(min(1.0, seconds / 20))
        passed = time.monotonic() - begun
        if not settled and passed > seconds / 10:
            settled = resident_bytes()
        highest = max(highest, resident_bytes()) if settled else 0
        if time.monotonic() - told > 60 or time.monotonic() >= end:
            told = time.monotonic()
            rate = (model.metrics.calls - calls) / passed
            memory = resident_bytes() / 1e6
            tell(f"{passed / 60:5.1f} min  {rate:.0f} calls/s  {memory:.0f} MB  {wrong[0]} wrong")
    for each in relays:
        each.join()
    return wrong[0], bool(settled) and highest > _GROWTH * settled


def throughput(model: Model, cases: list[Case], threads: int, lock: Any) -> float:
    """Calls per second of ``threads`` threads, each call under ``lock``."""
    start = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        start.wait()
        for turn in range(_TIMED):
            case = cases[(number + turn) % len(cases)]
            with lock:
                served(model)(*case.args, **case.kwargs)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for each in workers:
        each.start()
    start.wait()
    begun = time.perf_counter()
    for each in workers:
        each.join()
    return threads * _TIMED / (time.perf_counter() - begun)


# --- loading again and again ------------------------------------------------------------------------


def leaks(
    bundle: str, loads: int, num_threads: int = 1, device: str = "cpu"
) -> dict[str, tuple[int, int]]:
    """Descriptors, maps, threads and resident bytes before and after loading, calling and dropping a
    model ``loads`` times; before means after the first few, which bring what stays for good."""

    def once() -> None:
        model = load(bundle, device=device, num_threads=num_threads)
        model.warmup()

    for _ in range(10):
        once()
    before = _held()
    for _ in range(loads):
        once()
    after = _held()
    return {what: (before[what], after[what]) for what in before}


def _held() -> dict[str, int]:
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": threading.active_count(),
        "resident bytes": resident_bytes(),
    }


def _allowed(what: str, before: int) -> int:
    """The allocator's own maps and pages come and go a little."""
    return {"maps": before + 8, "resident bytes": before + (8 << 20)}.get(what, before)


def resident_bytes() -> int:
    """Resident memory of this process that is no file's."""
    found = re.search(r"^RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    command()
