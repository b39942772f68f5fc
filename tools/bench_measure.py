"""The measurement: every runtime in a process of its own, bursts of calls in turn, A B C A B C.

Processes, because thread pools within one spin against each other. In turn, because a machine is
not equally fast from one second to the next: in each round all runtimes meet the same weather.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..artifacts.container import open_bundle
from ..artifacts.contract import Contract
from ..artifacts.manifest import Manifest
from ..artifacts.weights import write_weights
from ..runtime.drawn import drawn_inputs
from .bench_judged import judged, outputs_file
from .bench_level import environment_of
from .bench_names import BUILT, BUNDLE, BUNDLE_GENERAL, COMPILE_WARMED, EAGER, NEEDS
from .bench_processes import Worker, WorkerFailed
from .bench_results import Machine, Results, RuntimeResult, Timing, this_machine
from .bench_runtimes import Spec, states_of
from .bench_sizes import (
    Sizes,
    default_sizes,
    size_to_trace,
    sizes_of_shapes,
    sizes_text,
)
from .progress import Report

SEED = 0
PAUSE = 0.03  # seconds between bursts: a pool that was just used goes on spinning for a while
BURST = 0.05  # seconds of one burst, about
WARM = 0.15  # seconds of calls that are not counted, at each size


@dataclass(frozen=True)
class General:
    """One code for all sizes: a bundle without variants, or a ``variant`` of one."""

    bundle: Path
    variant: str


@dataclass
class _Standing:
    """A runtime that takes part: its process while it lives, and what is known of it so far."""

    result: RuntimeResult
    worker: Worker | None = None
    timings: list[Timing] = field(default_factory=list)


def measure(
    bundle: Path,
    *,
    against: str | None,
    inputs: Sequence[str],
    runtimes: Sequence[str],
    sizes: Sequence[Sizes],
    threads: int,
    rounds: int,
    progress: Report,
    general: General | None = None,
    build: float | None = None,
    level: str = "",
) -> Results:
    """Time a bundle beside its peers.

    Args:
        against: the source, as `load_source` reads it; ``inputs`` are its ``--input`` options.
        runtimes: which of `RUNTIMES`; where there is a source, eager is asked for its answers even
            if it is not among them.
        sizes: where to time them; none: chosen from the contract.
        rounds: how many bursts of each runtime at each size.
        general: what `bundle-general` is; it is left out where there is none.
        build: seconds that the export of the bundle took, where that is known.
        level: the CPU level that all are held to, one of `bench_level.LEVELS`; "" for all there is.

    Raises:
        BundleError: the file is no bundle.
        UsageError: no size could be chosen; ``level`` is beyond what this machine can do.
    """
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    machine = this_machine()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tcexport-bench-")))
        common = Spec(
            runtime=BUNDLE,
            bundle=str(Path(bundle).resolve()),
            against=None if against is None else _absolute(against),
            inputs=tuple(inputs),
            threads=threads,
            built=None,
            trace=None,
            folder=os.getcwd(),
        )
        environment = environment_of(level, folder) if level else {}
        race = _Race(manifest.contract, common, folder, progress, stack, general, environment)
        judge = [EAGER] if against is not None and EAGER not in runtimes else []
        standings = {
            name: race.start(name, seconds=build if name == BUNDLE else None)
            for name in [*runtimes, *judge]
            if name not in BUILT
        }
        if not sizes:
            eager = standings.get(EAGER)
            sizes = race.choose_sizes(eager.worker if eager else None)
        for name in runtimes:
            if name in BUILT:
                standings[name] = race.build_and_start(name, sizes)
        if COMPILE_WARMED in standings:
            race.warm(standings[COMPILE_WARMED], sizes)
        for number, each in enumerate(sizes):
            race.run(standings, each, number, rounds, tuple(judge))
        return Results(
            bundle=str(bundle),
            model=manifest.model,
            against=against,
            threads=threads,
            rounds=rounds,
            machine=replace(machine, level=level) if level else machine,
            notes=(*_held(level), *_changed(manifest, against), *_busy(machine)),
            sizes=tuple(sizes),
            runtimes=tuple(_finished(standings[name]) for name in runtimes),
            source_sha256=manifest.provenance.source_sha256,
        )


def _absolute(source: str) -> str:
    """``model.py:Net`` with the whole path: the processes start in another folder."""
    return os.path.abspath(source)


def _busy(machine: Machine) -> tuple[str, ...]:
    """A warning where others use the machine, too."""
    if machine.load <= machine.cores / 2:
        return ()
    return (
        f"other processes were busy (load average {machine.load} on {machine.cores} cores): "
        "short calls suffer from that more than long ones, and from one run to the next",
    )


def _held(level: str) -> tuple[str, ...]:
    if not level:
        return ()
    return (f"every runtime was held to the instructions of {level}: the processor has more",)


def _changed(manifest: Manifest, against: str | None) -> tuple[str, ...]:
    """A warning where the source is not the one that the bundle was made from."""
    import hashlib

    if against is None or not manifest.provenance.source_sha256:
        return ()
    path, colon, _ = against.rpartition(":")
    file = Path(path if colon and path.endswith(".py") else against)
    if not file.is_file():
        return ()  # what cannot be loaded says so itself
    if hashlib.sha256(file.read_bytes()).hexdigest() == manifest.provenance.source_sha256:
        return ()
    return (f"{file} is not the file that the bundle was made from: it has changed since",)


class _Race:
    """What all runtimes of one measurement share."""

    def __init__(
        self,
        contract: Contract,
        common: Spec,
        folder: Path,
        progress: Report,
        stack: ExitStack,
        general: General | None,
        environment: Mapping[str, str],
    ) -> None:
        self._contract = contract
        self._common = common
        self._folder = folder
        self._progress = progress
        self._stack = stack
        self._general = general
        self._environment = environment

    def start(
        self, name: str, built: Path | None = None, seconds: float | None = None
    ) -> _Standing:
        """Load a runtime in a process of its own. One that cannot be loaded stays, and says why."""
        missing = [each for each in NEEDS[name] if not importlib.util.find_spec(each)]
        if missing:
            packages = " ".join(missing)
            return _Standing(
                RuntimeResult(name, skipped=f"not installed: {packages} (pip install {packages})")
            )
        spec = replace(self._common, runtime=name, built=None if built is None else str(built))
        if name == BUNDLE_GENERAL:
            if self._general is None:
                reason = "exported with --cover: no code in it is for all sizes"
                return _Standing(RuntimeResult(name, skipped=reason))
            bundle = str(self._general.bundle.resolve())
            spec = replace(spec, bundle=bundle, variant=self._general.variant)
        result = RuntimeResult(name, build=seconds)
        try:
            worker = self._stack.enter_context(Worker(spec, self._folder, self._environment))
        except WorkerFailed as failure:
            return _Standing(replace(result, failure=str(failure)))
        return _Standing(replace(result, start=worker.started), worker)

    def build_and_start(self, name: str, sizes: Sequence[Sizes]) -> _Standing:
        """Export and compile in one process, load in another: only the second one counts."""
        if any(not importlib.util.find_spec(each) for each in NEEDS[name]):
            return self.start(name)
        trace = self._inputs(size_to_trace(self._contract, sizes), "trace")
        built = self._folder / BUILT[name]
        spec = replace(self._common, runtime=name, built=str(built), trace=str(trace))
        self._progress(f"build {name}", None)
        begun = time.perf_counter()
        try:
            with Worker(spec, self._folder, self._environment) as worker:
                notes = worker.ready["notes"]
        except WorkerFailed as failure:
            return _Standing(RuntimeResult(name, failure=f"not built: {failure}"))
        seconds = time.perf_counter() - begun
        self._progress(f"build {name}", seconds)
        standing = self.start(name, built, seconds)
        return replace(standing, result=replace(standing.result, notes=notes))

    def warm(self, standing: _Standing, sizes: Sequence[Sizes]) -> None:
        """Call a runtime once at every size, before any of its calls is timed."""
        if standing.worker is None:
            return
        seconds, compiled = 0.0, 0
        try:
            for number, each in enumerate(sizes):
                self._progress(f"warm {standing.result.name} at {sizes_text(each)}", None)
                inputs = self._inputs(each, f"{number}")
                answer = standing.worker.ask("warm", inputs=str(inputs))
                seconds, compiled = seconds + answer["seconds"], compiled + answer["compiled"]
        except WorkerFailed as failure:
            standing.worker = None
            standing.result = replace(standing.result, failure=str(failure))
            return
        standing.result = replace(standing.result, build=seconds, built=compiled)

    def choose_sizes(self, eager: Worker | None) -> list[Sizes]:
        """Sizes from the contract, and the example's where eager has loaded the source."""
        shapes = eager.ready["shapes"] if eager is not None else []
        example = sizes_of_shapes(self._contract, shapes) if shapes else None
        if not self._contract.dims:
            return [{}]
        try:
            with Worker(self._common, self._folder, self._environment) as probe:

                def seconds_at(sizes: Sizes) -> float:
                    file, outputs = self._inputs(sizes, "probe"), self._folder / "probe-outputs"
                    probe.ask("first", inputs=str(file), outputs=str(outputs))
                    outputs.unlink()
                    seconds: float = probe.ask("burst", count=1)["seconds"]
                    return seconds

                return default_sizes(self._contract, example, seconds_at)
        except WorkerFailed:
            # The bundle's own row will show the reason, at the smallest size.
            return [{dim.name: dim.lo for dim in self._contract.dims}]

    def _inputs(self, sizes: Sizes, name: str) -> Path:
        file = self._folder / f"{name}.inputs.safetensors"
        write_weights(file, drawn_inputs(self._contract, sizes, SEED))
        return file

    def run(
        self,
        standings: Mapping[str, _Standing],
        sizes: Sizes,
        number: int,
        rounds: int,
        untimed: Sequence[str],
    ) -> None:
        """Time all runtimes at one size."""
        stage = f"time {sizes_text(sizes)}"
        self._progress(stage, None)
        begun = time.perf_counter()
        inputs = self._inputs(sizes, f"{number}")
        taking_part = {name: each for name, each in standings.items() if each.worker is not None}
        # Eager goes first: the others are compared with its answers.
        ordered = sorted(taking_part, key=lambda name: name != EAGER)
        firsts = {name: self._first(taking_part[name], sizes, inputs) for name in ordered}
        # A state that calls move on would make other answers, too.
        eager = None if states_of(self._common.bundle) else standings.get(EAGER)
        worker = None if eager is None else eager.worker
        firsts = judged(firsts, self._contract, self._folder, worker)
        timed = {
            name: taking_part[name].worker
            for name, timing in firsts.items()
            if not timing.failure and name not in untimed
        }
        samples, failures = bursts(timed, rounds)
        for name, timing in firsts.items():
            if name in failures:
                timing = replace(timing, failure=failures[name])
            elif name in timed:
                timing = replace(timing, samples=tuple(samples[name]))
                if name == BUNDLE:
                    timing = replace(timing, check=_check(timed[name], inputs))
            taking_part[name].timings.append(timing)
        for file in self._folder.glob("*.outputs.safetensors"):
            file.unlink()
        self._progress(stage, time.perf_counter() - begun)

    def _first(self, standing: _Standing, sizes: Sizes, inputs: Path) -> Timing:
        assert standing.worker is not None
        outputs = outputs_file(self._folder, standing.result.name)
        try:
            answer = standing.worker.ask("first", inputs=str(inputs), outputs=str(outputs))
        except WorkerFailed as failure:
            return Timing(sizes, failure=str(failure))
        return Timing(sizes, first=answer["seconds"], compiled=answer["compiled"])


def bursts(
    workers: Mapping[str, Worker | None], rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of one call in each round of each runtime; and of those that failed, why."""
    samples: dict[str, list[float]] = {name: [] for name in workers}
    failures: dict[str, str] = {}
    counts: dict[str, int] = {}
    for turn in range(-1, rounds):
        for name, worker in workers.items():
            if worker is None or name in failures:
                continue
            time.sleep(PAUSE)
            try:
                if turn < 0:
                    counts[name] = _warm_up(worker)
                else:
                    samples[name].append(worker.ask("burst", count=counts[name])["seconds"])
            except WorkerFailed as failure:
                failures[name] = str(failure)
    return samples, failures


def _warm_up(worker: Worker) -> int:
    """Call until it is warm; how many calls make a burst."""
    begun = time.perf_counter()
    count, seconds = 1, 0.0
    while True:
        seconds = worker.ask("burst", count=count)["seconds"]
        if time.perf_counter() - begun > WARM:
            return max(1, min(1000, round(BURST / seconds)))
        count = min(2 * count, 1000)


def _check(worker: Worker | None, inputs: Path) -> float | None:
    assert worker is not None
    seconds: float | None = worker.ask("check", inputs=str(inputs))["seconds"]
    return seconds


def _finished(standing: _Standing) -> RuntimeResult:
    """What is known of a runtime at the end; one whose process died on the way has told why."""
    result = replace(standing.result, timings=tuple(standing.timings))
    if standing.worker is None:
        return result
    try:
        last = standing.worker.ask("end")
    except WorkerFailed:
        return result
    return replace(result, peak=last["peak"], notes={**(result.notes or {}), **last["notes"]})
