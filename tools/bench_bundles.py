"""Bundles beside each other: ``python -m tcexport.tools.bench_bundles a.tcpkg b.tcpkg``.

Each bundle runs with each number of threads, each in a process of its own, in turn (`bench_measure`).
The first is what the others are compared with: how many times its time they take. It answers what one
model costs in another dtype, or what a second thread is worth (``--threads 1 --threads 2``). Nothing is
compared with eager here.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ..artifacts.errors import TcexportError
from ..artifacts.weights import write_weights
from ..runtime.drawn import drawn_inputs
from ..runtime.threads import thread_count
from .bench_measure import SEED, bursts
from .bench_names import BUNDLE
from .bench_processes import Worker, WorkerFailed
from .bench_report import aligned, machine_lines, time_text
from .bench_results import this_machine
from .bench_runtimes import Spec, contract_of
from .bench_sizes import Sizes, parse_sizes, sizes_text


@dataclass(frozen=True)
class Entry:
    """A bundle with a number of threads."""

    bundle: Path
    threads: int

    def __str__(self) -> str:
        return f"{self.bundle.stem}, {self.threads} thread{'s' if self.threads > 1 else ''}"


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--threads", multiple=True, type=click.IntRange(min=1), help="Repeatable.")
@click.option("--sizes", "sizes", multiple=True, required=True, metavar="NAME=SIZE,…")
@click.option("--rounds", type=click.IntRange(min=2), default=10, show_default=True)
def main(
    bundles: tuple[Path, ...], threads: tuple[int, ...], sizes: tuple[str, ...], rounds: int
) -> None:
    """Print a table for each size."""
    try:
        _report(bundles, threads, sizes, rounds)
    except TcexportError as error:
        click.echo(error, err=True)
        raise SystemExit(error.exit_status) from None


def _report(
    bundles: Sequence[Path], threads: Sequence[int], sizes: Sequence[str], rounds: int
) -> None:
    entries = [
        Entry(bundle.resolve(), count)
        for bundle in bundles
        for count in threads or (thread_count(None),)
    ]
    at = [parse_sizes(each, contract_of(str(bundles[0]))) for each in sizes]
    click.echo("\n".join(machine_lines(this_machine())))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tcexport-bench-")))
        workers = [stack.enter_context(_started(entry, folder)) for entry in entries]
        ratios: list[list[float]] = [[] for _ in entries]
        for each in at:
            samples = _time(entries, workers, each, rounds, folder)
            click.echo(f"\n{sizes_text(each)}")
            for line in aligned(_rows(entries, samples, ratios)):
                click.echo(line)
    click.echo("\ntime over the first's, geometric mean")
    rows = [
        [f"{entry}", f"{statistics.geometric_mean(found):.2f}x", ""]
        for entry, found in zip(entries, ratios, strict=True)
    ]
    for line in aligned(rows):
        click.echo(line)


@contextmanager
def _told(entry: Entry) -> Iterator[None]:
    """Whatever the process of an entry fails with, said of it."""
    try:
        yield
    except WorkerFailed as failure:
        raise click.ClickException(f"{entry}: {failure}") from None


def _started(entry: Entry, folder: Path) -> Worker:
    spec = Spec(
        runtime=BUNDLE,
        bundle=str(entry.bundle),
        against=None,
        inputs=(),
        threads=entry.threads,
        built=None,
        trace=None,
        folder=str(Path.cwd()),
    )
    with _told(entry):
        return Worker(spec, folder)


def _time(
    entries: Sequence[Entry],
    workers: Sequence[Worker],
    sizes: Sizes,
    rounds: int,
    folder: Path,
) -> list[list[float]]:
    """Seconds of one call, in each round of each entry."""
    for number, (entry, worker) in enumerate(zip(entries, workers, strict=True)):
        inputs = folder / f"{number}.inputs.safetensors"
        write_weights(inputs, drawn_inputs(contract_of(str(entry.bundle)), sizes, SEED))
        with _told(entry):
            worker.ask("warm", inputs=str(inputs))
    found, failures = bursts({f"{n}": worker for n, worker in enumerate(workers)}, rounds)
    for name, reason in failures.items():
        raise click.ClickException(f"{entries[int(name)]}: {reason}")
    return [found[f"{number}"] for number in range(len(entries))]


def _rows(
    entries: Sequence[Entry], samples: Sequence[Sequence[float]], ratios: list[list[float]]
) -> list[list[str]]:
    rows = []
    for number, (entry, found) in enumerate(zip(entries, samples, strict=True)):
        # Round by round: all that took part in one have met the same weather.
        ratio = statistics.median(
            mine / first for mine, first in zip(found, samples[0], strict=True)
        )
        ratios[number].append(ratio)
        rows.append([f"{entry}", time_text(statistics.median(found)), f"{ratio:.2f}x"])
    return rows


if __name__ == "__main__":
    main()
