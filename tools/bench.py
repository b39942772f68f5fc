"""``tcexport bench``: a bundle timed beside eager, torch.compile, AOTInductor and ONNX Runtime."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..artifacts.container import open_bundle
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.names import suggestions
from .bench_level import LEVELS
from .bench_names import BUNDLE, RUNTIMES
from .pictures import require_svg
from .progress import Progress
from .sources import output_options

if TYPE_CHECKING:
    from .bench_results import Results

_BUNDLE_FAILED = 5


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--against",
    metavar="SOURCE",
    help="The source that BUNDLE was made from: its model runs beside the bundle, and eager's "
    "answers are what every runtime is compared with.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT=VALUE",
    help="An example input of SOURCE, as it was given to `export`.",
)
@click.option(
    "--sizes",
    "sizes",
    multiple=True,
    metavar="NAME=SIZE,…",
    help="A size to time, `batch=1,seq=16`. Repeatable. By default the smallest, the example's, a "
    "medium one and the largest that is affordable.",
)
@click.option(
    "--runtimes",
    metavar="NAME,…",
    help=f"Which of {','.join(RUNTIMES)}; by default all that there is a source for.",
)
@click.option(
    "--strategies",
    is_flag=True,
    help="Compare what there is to do about sizes: eager, torch.compile (as it is, dynamic=True, and "
    "warmed for every size), one code for all sizes, and variants for these --sizes.",
)
@click.option(
    "--axes", multiple=True, metavar="INPUT=NAME,…", help="With --strategies: as `export`."
)
@click.option("--train", is_flag=True, help="With --strategies: as `export`.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Worker threads of every runtime; by default what the bundle's runtime would take.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="Hold every runtime to what this CPU level has, as on a machine without AVX-512.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Bursts of each runtime at each size.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Where to draw the ratios, as an SVG."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write the results as JSON. In m.bench.json, `check` and `export` of m.tcpkg find "
    "them for their advice.",
)
@output_options
@click.pass_context
def command(
    context: click.Context,
    bundle: Path,
    against: str | None,
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    runtimes: str | None,
    strategies: bool,
    axes: tuple[str, ...],
    train: bool,
    threads: int | None,
    level: str | None,
    rounds: int,
    plot: Path | None,
    output: Path | None,
    quiet: bool,
    verbose: bool,
    form: str,
) -> None:
    """Time BUNDLE, alone or beside other runtimes of the same model.

    Each runtime has a process of its own and the same number of threads; they take turns, a burst
    of calls each. Medians, quartiles, and how many times longer than the bundle the others take. A
    runtime whose answer is not eager's is marked, and its time counts for nothing.

    \b
      tcexport bench m.tcpkg --against model.py
      tcexport bench m.tcpkg --against model.py --strategies --sizes seq=128 --sizes seq=512
      tcexport bench m.tcpkg --against model.py --sizes batch=1,seq=16 --sizes batch=4,seq=128 \\
          --threads 2 --plot ratios.svg -o results.json
    """
    with open_bundle(bundle) as opened:
        contract = opened.manifest.contract
    from ..runtime.threads import thread_count
    from .bench_measure import measure
    from .bench_plot import svg
    from .bench_report import text_lines
    from .bench_results import as_data
    from .bench_sizes import parse_sizes

    if strategies:
        _require_alone(runtimes, against, level)
    elif axes or train:
        raise UsageError(
            Diagnostic("TC008", "--axes and --train are for the export that --strategies makes")
        )
    wanted = _runtimes(runtimes, against)
    if plot is not None:
        require_svg("--plot", plot)
    for path in (plot, output):
        if path is not None and not path.parent.is_dir():
            raise UsageError(
                Diagnostic("TC012", f"cannot write {path}: there is no folder {path.parent}")
            )
    at = [parse_sizes(each, contract) for each in sizes]
    lines_of: Callable[[Results], Iterator[str]] = text_lines
    with Progress(quiet) as progress, redirect_stdout(sys.stderr):
        if strategies:
            from .bench_strategies import compare, strategy_lines
            from .bench_strategies_plot import strategies_svg
            from .trial import Again

            lines_of, svg = strategy_lines, strategies_svg
            again = Again(against or "", inputs, axes, train)
            results = compare(
                bundle, again, at, threads=thread_count(threads), rounds=rounds, progress=progress
            )
        else:
            results = measure(
                bundle,
                against=against,
                inputs=inputs,
                runtimes=wanted,
                sizes=at,
                threads=thread_count(threads),
                rounds=rounds,
                progress=progress,
                level=level or "",
            )
    text = json.dumps(as_data(results), indent=1)
    click.echo(text if form == "json" else "\n".join(lines_of(results)))
    if output is not None:
        _write(output, text + "\n")
    if plot is not None:
        _write(plot, svg(results))
    if not _bundle_is_right(results):
        context.exit(_BUNDLE_FAILED)


def _require_alone(runtimes: str | None, against: str | None, level: str | None) -> None:
    if level is not None:
        raise UsageError(Diagnostic("TC008", "--level cannot be had with --strategies"))
    if runtimes is not None:
        raise UsageError(
            Diagnostic("TC008", "--strategies says what is timed, and so does --runtimes: give one")
        )
    if against is None:
        raise UsageError(
            Diagnostic(
                "TC008",
                "--strategies needs the model's source, to run it under torch",
                tries=("--against model.py",),
            )
        )


def _runtimes(typed: str | None, against: str | None) -> tuple[str, ...]:
    """The runtimes that are asked for, in the order of `RUNTIMES`."""
    if typed is None:
        return RUNTIMES if against is not None else (BUNDLE,)
    names = [name.strip() for name in typed.split(",")]
    for name in names:
        if name not in RUNTIMES:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"--runtimes {typed}: there is no runtime {name or '(nothing)'}",
                    notes=(f"runtimes: {', '.join(RUNTIMES)}",),
                    tries=tuple(f"--runtimes {each}" for each in suggestions(name, RUNTIMES)[:1]),
                )
            )
    peers = [name for name in names if name != BUNDLE]
    if peers and against is None:
        raise UsageError(
            Diagnostic(
                "TC008",
                f"--runtimes {typed}: {', '.join(peers)} cannot run without the model's source",
                tries=("--against model.py",),
            )
        )
    return tuple(name for name in RUNTIMES if name in (*names, BUNDLE))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(
            Diagnostic("TC012", f"cannot write {path}: {error.strerror or error}")
        ) from None


def _bundle_is_right(results: Results) -> bool:
    """Whether the bundle answered everywhere, and nowhere otherwise than eager."""
    ours = results.runtime(BUNDLE)
    return (
        ours is not None
        and not ours.failure
        and not any(each.failure or each.right is False for each in ours.timings)
    )
