"""The results of a benchmark as text for a terminal, and as Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .bench_names import BUNDLE
from .bench_results import Machine, Results, RuntimeResult, Timing
from .bench_sizes import sizes_text
from .tables import size_text


def text_lines(results: Results) -> Iterator[str]:
    """The whole report, line by line."""
    yield from heading(results)
    yield from (f"warning: {note}" for note in results.notes)
    for number, sizes in enumerate(results.sizes):
        yield ""
        yield sizes_text(sizes)
        yield from aligned(
            [
                _size_row(results, runtime, number)
                for runtime in results.runtimes
                if len(runtime.timings) > number
            ]
        )
    if results.peers:
        yield ""
        yield "slower than the bundle by, geometric mean"
        yield from aligned([[each.name, _mean(results, each.name)] for each in results.peers])
    yield ""
    yield "runtimes"
    heads = ["", "first answer", "build", "first calls", "peak memory", ""]
    yield from aligned([heads, *(_runtime_row(each) for each in results.runtimes)])


def heading(results: Results) -> list[str]:
    """What was measured, and where."""
    beside = f" beside {results.against}" if results.against else ""
    return [
        f"{results.bundle} ({results.model}){beside}: "
        f"{results.threads} thread{'s' if results.threads > 1 else ''}, {results.rounds} rounds",
        *machine_lines(results.machine),
    ]


def machine_lines(machine: Machine) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return [
        f"{machine.cpu}, {machine.cores} cores, {machine.level}, "
        f"{size_text(machine.memory_bytes)}; load average {machine.load}",
        f"{machine.system}; {versions}",
    ]


def time_text(seconds: float) -> str:
    """``3.21 ms``, three digits that count."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        value = seconds * scale
        if value >= 1 or unit == "µs":
            break
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def _size_row(results: Results, runtime: RuntimeResult, number: int) -> list[str]:
    timing = runtime.timings[number]
    if timing.failure:
        return [runtime.name, f"failed: {timing.failure}"]
    first, third = timing.quartiles
    row = [runtime.name, time_text(timing.median), f"{time_text(first)} – {time_text(third)}"]
    row.append(ratio_text(results, runtime, number))
    row.append(verdict(timing))
    if timing.check is not None:
        row[-1] += f", check {time_text(timing.check)}"
    return row


def ratio_text(results: Results, runtime: RuntimeResult, number: int) -> str:
    """How many times longer than the bundle; in parentheses where the answers were not compared."""
    ratio = results.ratio(runtime.name, number) if runtime.name != BUNDLE else None
    if ratio is None:
        return ""
    return f"{ratio:.2f}x" if results.counts(runtime.name, number) else f"({ratio:.2f}x)"


def verdict(timing: Timing) -> str:
    """Whether the answer is eager's, and the error."""
    if timing.right is None or timing.error is None:
        return "not compared"
    return f"{'error' if timing.right else 'WRONG, error'} {timing.error:.1e}"


def _mean(results: Results, name: str) -> str:
    mean, count = results.mean_ratio(name)
    if mean is None:
        return "no size counts"
    of_all = f"   ({count} of {len(results.sizes)} sizes)" if count < len(results.sizes) else ""
    return f"{mean:.2f}x{of_all}"


def _runtime_row(runtime: RuntimeResult) -> list[str]:
    if runtime.skipped:
        return [runtime.name, f"skipped, {runtime.skipped}"]
    if runtime.failure:
        return [runtime.name, f"failed: {runtime.failure}"]
    first = runtime.first_answer
    return [
        runtime.name,
        "–" if first is None else time_text(first),
        "–" if runtime.build is None else time_text(runtime.build),
        "–" if first is None else time_text(runtime.first_calls),
        "–" if runtime.peak is None else size_text(runtime.peak),
        "; ".join(f"{name}: {value}" for name, value in (runtime.notes or {}).items()),
    ]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns. A row of two cells is a name and a sentence, which takes what room it needs."""
    widths: list[int] = []
    for row in rows:
        cells = row[:1] if len(row) == 2 else row
        widths += [0] * (len(cells) - len(widths))
        widths[: len(cells)] = [max(w, len(c)) for w, c in zip(widths, cells, strict=False)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        last = [*padded, *row[len(padded) :]]
        yield f"  {'  '.join(last)}".rstrip()


# --- Markdown ---------------------------------------------------------------------------------------


def markdown_lines(results: Results) -> Iterator[str]:
    """Two tables: time and ratios at each size; start, memory and compilation of each runtime."""
    yield from markdown_sizes(results)
    yield ""
    yield "| runtime | first answer | build | first calls | peak memory | notes |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for runtime in results.runtimes:
        row = _runtime_row(runtime)
        cells = row if len(row) > 2 else [row[0], *[""] * 4, row[1]]
        yield f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def markdown_sizes(results: Results) -> Iterator[str]:
    """A table: time and ratios at each size."""
    peers = results.peers
    yield f"| size | {BUNDLE} | check | error | {' | '.join(each.name for each in peers)} |"
    yield f"| {' | '.join(['---'] * (4 + len(peers)))} |"
    ours = results.runtime(BUNDLE)
    for number, sizes in enumerate(results.sizes):
        timing = ours.timings[number] if ours is not None and ours.timings else None
        cells = [sizes_text(sizes), *_our_cells(timing)]
        cells += [_peer_cell(results, each, number) for each in peers]
        yield f"| {' | '.join(cells)} |"
    means = [results.mean_ratio(each.name)[0] for each in peers]
    cells = ["" if mean is None else f"**{mean:.2f}**" for mean in means]
    yield f"| geometric mean | | | | {' | '.join(cells)} |"


def _our_cells(timing: Timing | None) -> list[str]:
    if timing is None:
        return ["–", "", ""]
    if timing.failure:
        return [_escaped(f"failed: {timing.failure}"), "", ""]
    error = "not compared" if timing.error is None else f"{timing.error:.0e}"
    return [
        time_text(timing.median),
        "" if timing.check is None else time_text(timing.check),
        error if timing.right is not False else f"WRONG, {error}",
    ]


def _peer_cell(results: Results, peer: RuntimeResult, number: int) -> str:
    if len(peer.timings) <= number:
        return "skipped" if peer.skipped else "failed"
    timing = peer.timings[number]
    if timing.failure:
        return _escaped(f"failed: {timing.failure}")
    ratio = results.ratio(peer.name, number)
    if ratio is None:
        return f"{time_text(timing.median)}, no ratio"
    if timing.right is False:
        return f"WRONG, error {timing.error:.0e}"
    return f"{ratio:.2f}" if results.counts(peer.name, number) else f"({ratio:.2f})"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
