"""What the small things cost, beside other runtimes: ``python -m tcexport.tools.small_calls``.

Exports ``x + 1`` and an MLP of 16, and times a call of 4 rows with one thread: the bundle with numpy
arrays as numpy makes them, the bundle with torch tensors, and each peer that is installed. Every
runtime has a process of its own, and they take turns (`bench_measure`). Also: from the start of a
process to its first answer, and how long `load` takes once Python and numpy are there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from .bench_measure import measure
from .bench_names import AOTI, BUNDLE, BUNDLE_TORCH, EAGER, EXECUTORCH, ONNXRUNTIME
from .bench_report import machine_lines, time_text
from .bench_results import RuntimeResult
from .progress import Progress

_MODELS = {"x + 1": "plus_one.py", "MLP of 16": "mlp16.py"}
_SIZES = {"n": 4}
_LOADS = 5  # processes that time `load`
_LOAD = """
import sys, time
import numpy
import tcexport
from tcexport.runtime import load
before = time.perf_counter()
model = load(sys.argv[1], device="cpu")
first = time.perf_counter()
again = load(sys.argv[1], device="cpu")
print(first - before, time.perf_counter() - first)
"""


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
@click.option(
    "--build/--no-build",
    default=True,
    help="Also AOTInductor, ONNX Runtime and ExecuTorch, those that are installed: minutes.",
)
def command(rounds: int, build: bool) -> None:
    """Print a table for each model."""
    runtimes = [BUNDLE, BUNDLE_TORCH, EAGER, *([AOTI, ONNXRUNTIME, EXECUTORCH] if build else [])]
    with tempfile.TemporaryDirectory(prefix="tcexport-small-") as folder, Progress(False) as report:
        for number, (title, file) in enumerate(_MODELS.items()):
            source = Path(__file__).parent / "benchmarks" / file
            bundle = Path(folder) / f"{source.stem}.tcpkg"
            _export(source, bundle)
            results = measure(
                bundle,
                against=str(source),
                inputs=(),
                runtimes=runtimes,
                sizes=[_SIZES],
                threads=1,
                rounds=rounds,
                progress=report,
            )
            if not number:
                click.echo("\n".join(machine_lines(results.machine)))
            click.echo(f"\n{title}, 4 rows, 1 thread, {rounds} rounds")
            for line in _rows(results.runtimes):
                click.echo(line)
            first, again = load_seconds(bundle)
            click.echo(f"  load: {time_text(first)} (again: {time_text(again)})")


def _export(source: Path, bundle: Path) -> None:
    command = [sys.executable, "-m", "tcexport", str(source), "--dynamic", "n=1..64", "-q"]
    subprocess.run([*command, "-o", str(bundle)], check=True, stdout=sys.stderr)


def _rows(runtimes: tuple[RuntimeResult, ...]) -> list[str]:
    ours = runtimes[0].timings[0].samples
    lines = []
    for each in runtimes:
        if each.skipped or each.failure or not each.timings or not each.timings[0].samples:
            lines.append(f"  {each.name:14} {each.skipped or each.failure or 'no answer'}")
            continue
        timing = each.timings[0]
        ratio = statistics.median(a / b for a, b in zip(timing.samples, ours, strict=True))
        wrong = "  WRONG" if timing.right is False else ""
        lines.append(
            f"  {each.name:14} {time_text(timing.median):>8} a call  {ratio:5.2f}x   "
            f"first answer after {time_text(each.first_answer or 0.0)}{wrong}"
        )
    return lines


def load_seconds(bundle: Path) -> tuple[float, float]:
    """Seconds of the first load of a process, and of the same once more; medians."""
    times = []
    for _ in range(_LOADS):
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, str(bundle)], check=True, capture_output=True, text=True
        )
        times.append([float(word) for word in done.stdout.split()])
    first, again = zip(*times, strict=True)
    return statistics.median(first), statistics.median(again)


if __name__ == "__main__":
    command()
