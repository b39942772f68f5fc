"""Where the time of a call goes, kernel by kernel: ``python -m tcexport.tools.kernel_times M.tcpkg``.

The bundle is called with drawn inputs of the sizes asked for; TVM's VM tells of every function that it
calls, and the time between its two words is taken, without that of what it calls in turn (some
microseconds of each are the telling). The median over the calls is shown, by function, the dearest
first. ``--variant NAME`` calls the code of that variant (``general``: the general code), also at sizes
that another variant serves.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..artifacts.errors import TcexportError
from .bench_report import time_text
from .bench_sizes import parse_sizes, sizes_text

_WARM = 3


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--sizes", "text", default="", help="Such as batch=1,seq=128; others at their lowest."
)
@click.option("--variant", help="The variant whose code is called; by default the one that serves.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--calls", type=click.IntRange(min=1), default=30, show_default=True)
def command(bundle: Path, text: str, variant: str | None, threads: int, calls: int) -> None:
    """Print the time of every kernel of a call."""
    try:
        found = kernel_times(bundle, text, variant, threads, calls)
    except TcexportError as error:
        click.echo(error, err=True)
        raise SystemExit(error.exit_status) from None
    total, rows = found
    sums = sum(seconds for _, _, seconds in rows)
    click.echo(f"a call: {time_text(total)}; in kernels: {time_text(sums)}")
    width = max(len(name) for name, _, _ in rows)
    for name, count, seconds in rows:
        share = 100 * seconds / sums
        click.echo(f"{name:<{width}}  {count:4d} x  {time_text(seconds):>9}  {share:5.1f} %")


def kernel_times(
    bundle: Path, sizes: str, variant: str | None, threads: int, calls: int
) -> tuple[float, list[tuple[str, int, float]]]:
    """The seconds of a call without being told of, and (function, calls of it, seconds of all of them)
    of one call, medians each.

    Raises:
        TcexportError: a file, sizes or a variant that do not fit.
    """
    from ..runtime import load
    from ..runtime.drawn import drawn_call
    from ..runtime.library import load_ffi
    from ..runtime.warmup import completed

    model = load(bundle, device="cpu", num_threads=threads, variant=variant)
    point = completed(model.contract, parse_sizes(sizes, model.contract) if sizes else {})
    args, kwargs = drawn_call(model.contract, point)
    call: Callable[..., Any] = model
    if model.states:
        call = session = model.session()
        if model.manifest.generator:
            session.seed(0)
    plain = []
    for _ in range(_WARM + calls):
        start = time.perf_counter()
        call(*args, **kwargs)
        plain.append(time.perf_counter() - start)

    begun: list[list[float]] = []  # of the calls under way: when, and the seconds of those inside
    of_call: dict[str, list[float]] = defaultdict(list)

    def tell(_: Any, name: str, before: bool, *__: Any) -> int:
        now = time.perf_counter()
        if before:
            begun.append([time.perf_counter(), 0.0])
        else:
            start, inside = begun.pop()
            of_call[str(name)].append(now - start - inside)
            if begun:
                begun[-1][1] += now - start
        return 0

    worker = model._calls.local.worker
    worker.vm["set_instrument"](load_ffi().convert_func(tell))
    several: list[dict[str, list[float]]] = []
    for _ in range(calls):
        of_call.clear()
        call(*args, **kwargs)
        several.append({name: list(times) for name, times in of_call.items()})
    rows = [
        (name, len(times), statistics.median(sum(each.get(name, ())) for each in several))
        for name, times in several[0].items()
    ]
    rows.sort(key=lambda row: -row[2])
    click.echo(f"{bundle.name} at {sizes_text(point)}, {threads} threads", err=True)
    return statistics.median(plain[_WARM:]), rows


if __name__ == "__main__":
    command()
