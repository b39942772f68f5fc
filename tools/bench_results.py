"""What a benchmark found, as data, and the numbers that follow from it."""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from ..artifacts.platforms import CPU_LEVELS
from .bench_names import BUNDLE
from .bench_sizes import Sizes

_PACKAGES = ("tcexport", "numpy", "torch", "onnxruntime", "onnx", "onnxscript", "transformers")


@dataclass(frozen=True)
class Machine:
    """Where the numbers come from. ``load`` is the system's load average over the last minute when
    the benchmark began: what else was running."""

    cpu: str
    cores: int
    level: str
    memory_bytes: int
    system: str
    load: float
    versions: dict[str, str]


@dataclass(frozen=True)
class Timing:
    """One runtime at one size.

    Attributes:
        first: seconds of the first call at this size, compilation included.
        samples: seconds of one call, one number for each burst.
        error: the largest absolute difference from eager; None where nothing was compared.
        right: whether it agrees with eager; None where nothing was compared.
        check: seconds of the bundle's check of a call alone.
        failure: what it said instead of an answer; "" where it worked.
        compiled: how many graphs the first call compiled.
    """

    sizes: Sizes
    first: float = 0.0
    samples: tuple[float, ...] = ()
    error: float | None = None
    right: bool | None = None
    check: float | None = None
    failure: str = ""
    compiled: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third: half of the bursts lie between them."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third


@dataclass(frozen=True)
class RuntimeResult:
    """One runtime.

    Attributes:
        skipped, failure: why it was not started; what it said when it could not be loaded.
        build: seconds of building what it loads (AOTInductor, ONNX Runtime), or of the calls that
            came before those that are timed; None where it loads the source.
        built: how many graphs these calls compiled.
        start: seconds from the start of its process until it was loaded.
        peak: bytes of resident memory at most; None where the system does not tell.
    """

    name: str
    skipped: str = ""
    failure: str = ""
    build: float | None = None
    start: float = 0.0
    peak: int | None = None
    notes: dict[str, Any] | None = None
    timings: tuple[Timing, ...] = ()
    built: int = 0

    @property
    def first_answer(self) -> float | None:
        """Seconds from the start of its process to its first answer; None where it gave none."""
        worked = [each for each in self.timings if not each.failure]
        return self.start + worked[0].first if worked else None

    @property
    def compilations(self) -> int:
        """How many graphs were compiled while it was in use, its warming included."""
        return self.built + sum(each.compiled for each in self.timings)

    @property
    def first_calls(self) -> float:
        """Seconds that its first calls at all sizes took longer than later ones: compilation, where
        that is left to them."""
        worked = [each for each in self.timings if each.samples]
        return sum(max(0.0, each.first - each.median) for each in worked)


@dataclass(frozen=True)
class Results:
    """A whole benchmark: every runtime at every size, in the order in which they were asked for.
    ``source_sha256``: of the source that the bundle was made from, as the bundle says."""

    bundle: str
    model: str
    against: str | None
    threads: int
    rounds: int
    machine: Machine
    notes: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    runtimes: tuple[RuntimeResult, ...]
    source_sha256: str = ""

    def runtime(self, name: str) -> RuntimeResult | None:
        return next((each for each in self.runtimes if each.name == name), None)

    def ratio(self, peer: str, number: int) -> float | None:
        """How many times longer than the bundle a peer takes at size ``number``: the median over
        rounds, in each of which both ran side by side. None unless both were timed."""
        ours, theirs = self.runtime(BUNDLE), self.runtime(peer)
        if ours is None or theirs is None or not ours.timings or not theirs.timings:
            return None
        pairs = list(
            zip(theirs.timings[number].samples, ours.timings[number].samples, strict=False)
        )
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def counts(self, peer: str, number: int) -> bool:
        """Whether a ratio means something: both answers were compared with eager's, and right."""
        found = (self.runtime(BUNDLE), self.runtime(peer))
        return all(each is not None and bool(each.timings[number].right) for each in found)

    def mean_ratio(self, peer: str) -> tuple[float | None, int]:
        """The geometric mean of a peer's ratios that count, and over how many sizes."""
        ratios = [
            ratio
            for number in range(len(self.sizes))
            if (ratio := self.ratio(peer, number)) is not None and self.counts(peer, number)
        ]
        if not ratios:
            return None, 0
        return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)), len(ratios)

    @property
    def peers(self) -> Sequence[RuntimeResult]:
        return [each for each in self.runtimes if each.name != BUNDLE]


def as_data(results: Results) -> dict[str, Any]:
    """Results as plain data for JSON, with medians, quartiles and ratios worked out. Times are in
    seconds, memory in bytes."""
    data: dict[str, Any] = msgspec.to_builtins(results)
    for runtime, told in zip(results.runtimes, data["runtimes"], strict=True):
        told["first_answer"] = runtime.first_answer
        told["first_calls"] = runtime.first_calls
        told["compilations"] = runtime.compilations
        for number, (timing, each) in enumerate(zip(runtime.timings, told["timings"], strict=True)):
            if timing.samples:
                each["median"], each["quartiles"] = timing.median, list(timing.quartiles)
                if runtime.name != BUNDLE:
                    each["ratio"] = results.ratio(runtime.name, number)
                    each["counts"] = results.counts(runtime.name, number)
        if runtime.name != BUNDLE:
            mean, count = results.mean_ratio(runtime.name)
            told["mean_ratio"] = {"geometric_mean": mean, "sizes": count}
    return data


def this_machine() -> Machine:
    """The machine that this process runs on."""
    from ..runtime import machine as runtime_machine
    from ..runtime.threads import usable_cores

    here = runtime_machine.this_machine()
    levels = [
        level
        for level in CPU_LEVELS.values()
        if level.platform == here.platform and here.flags.issuperset(level.flags)
    ]
    highest = max(levels, key=lambda level: level.rank).name if levels else here.machine
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # what is not there has no version
    return Machine(
        cpu=_cpu_name() or here.machine,
        cores=usable_cores(),
        level=highest,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()}, {here}",
        load=round(os.getloadavg()[0], 2),
        versions=versions,
    )


def _cpu_name() -> str:
    """The model that /proc/cpuinfo names; "" where it names none (aarch64)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    numbers = {
        key: value.group(1)
        for key in ("cpu family", "model", "stepping")
        if (value := re.search(rf"^{key}\s*:\s*(\d+)$", text, re.M))
    }
    if not found:
        return ""
    # A virtual machine's name says little; family and model tell the generation.
    return f"{found[1].strip()} ({', '.join(f'{key} {value}' for key, value in numbers.items())})"
