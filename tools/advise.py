"""``tcexport advise``: which variants pay, by measuring them beside the general code."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from ..artifacts.container import open_bundle
from ..artifacts.contract import Contract
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.manifest import GENERAL, Manifest, contract_of
from ..artifacts.turns import ratio_of
from .advise_measure import Pair, measure
from .progress import Progress
from .sources import output_options
from .trial import Again, export_with

CALLS = "calls"


@dataclass(frozen=True)
class Seen:
    """Sizes of all dims, and how many calls had them."""

    sizes: dict[str, int]
    calls: int


@dataclass(frozen=True)
class Row:
    """What was measured at some sizes: medians in seconds, and the quartiles of their ratio. ``pays``
    and ``slower``: beyond noise, see `Ratio`."""

    variant: str
    sizes: dict[str, int]
    calls: int
    general: float
    specialized: float
    ratio: float
    quartiles: tuple[float, float]
    pays: bool
    slower: bool


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--shapes",
    type=click.Path(path_type=Path),
    help="The sizes that calls have: a CSV file with a column for each dim and, if you like, "
    "`calls`; or the JSON of `model.seen`. By default those that the bundle's variants fix.",
)
@click.option(
    "--against",
    metavar="SOURCE",
    help="The source that BUNDLE was made from: sizes without a variant are exported with "
    "one, to try.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT=VALUE",
    help="With --against: an example input, as it was given to `export`.",
)
@click.option(
    "--axes",
    multiple=True,
    metavar="INPUT=NAME,…",
    help="With --against: names of axes, as they were given to `export`.",
)
@click.option("--train", is_flag=True, help="With --against: as it was given to `export`.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Look at so many sizes.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Worker threads of a call.")
@click.option(
    "--rounds", type=click.IntRange(min=4), default=24, show_default=True, help="Bursts of each."
)
@output_options
def command(
    bundle: Path,
    shapes: Path | None,
    against: str | None,
    inputs: tuple[str, ...],
    axes: tuple[str, ...],
    train: bool,
    most: int,
    threads: int | None,
    rounds: int,
    quiet: bool,
    verbose: bool,
    form: str,
) -> None:
    """Measure which variants of BUNDLE are faster than its general code, and say which pay.

    At each of the sizes the variant and the general code take turns in one process; only a ratio that
    holds in three quarters of the rounds counts. Measure on an idle machine.

    \b
      tcexport advise m.tcpkg
      tcexport advise m.tcpkg --shapes shapes.csv --against model.py
    """
    if against is None and (inputs or axes or train):
        raise UsageError(
            Diagnostic(
                "TC008",
                "--input, --axes and --train say how to export a source, and none is given",
                tries=("--against model.py",),
            )
        )
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    if manifest.variants and manifest.variants[-1].contract is not None:
        raise UsageError(
            Diagnostic(
                "TC008",
                f"{bundle} was exported with --cover: no code in it serves all sizes, to compare with",
                tries=("an export without --cover",),
            )
        )
    seen = _read(shapes, manifest.contract) if shapes is not None else _of_variants(manifest)
    seen = sorted(seen, key=lambda each: -each.calls)[:most]
    with (
        Progress(quiet) as progress,
        tempfile.TemporaryDirectory(prefix="tcexport-advise-") as place,
    ):
        pairs = _pairs(manifest, seen)
        trial, held = bundle, manifest
        notes: list[str] = []
        if any(pair is None for pair in pairs):
            if against is None:
                raise UsageError(
                    Diagnostic(
                        "TC008",
                        "these sizes have no variant in the bundle: "
                        + "; ".join(
                            _text(each.sizes)
                            for each, pair in zip(seen, pairs, strict=True)
                            if pair is None
                        ),
                        tries=("--against model.py, to export one and try",),
                    )
                )
            progress("export the variants to try", None)
            trial = Path(place) / "trial.tcpkg"
            again = Again(against, inputs, axes, train)
            export_with(again, manifest, [each.sizes for each in seen], trial)
            with open_bundle(trial) as opened:
                held = opened.manifest
            if held.provenance.source_sha256 != manifest.provenance.source_sha256:
                notes.append(
                    f"{against} is not what the bundle was made from: it has changed since"
                )
            pairs = _pairs(held, seen)
        rows = []
        for each, pair in zip(seen, pairs, strict=True):
            if pair is None:
                raise UsageError(
                    Diagnostic("TC008", f"no variant can be made for {_text(each.sizes)}")
                )
            progress(f"measure {_text(each.sizes)}", None)
            times = measure(trial, pair, rounds=rounds, threads=threads)
            rows.append(_row(pair.variant, each, times))
    if form == "json":
        told = {"rows": [asdict(row) for row in rows], "advice": advice(rows), "notes": notes}
        click.echo(json.dumps(told))
        return
    click.echo("\n".join([*(f"note: {note}" for note in notes), *_lines(rows), *advice(rows)]))


# --- the sizes ------------------------------------------------------------------------------------


def _read(path: Path, contract: Contract) -> list[Seen]:
    """Sizes from a file; equal ones are counted together.

    Raises:
        UsageError: TC008, a line that is not understood; TC006, a column that is no dim.
    """
    try:
        text = path.read_text()
        if path.suffix == ".json":
            rows: list[Mapping[str, Any]] = list(json.loads(text))
        else:
            rows = list(csv.DictReader(text.splitlines(), skipinitialspace=True))
    except (OSError, ValueError) as error:
        raise UsageError(Diagnostic("TC008", f"cannot read {path}: {error}")) from None
    names = [dim.name for dim in contract.dims]
    counted: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(rows, 1):
        unknown = [name for name in row if name not in (*names, CALLS)]
        missing = [name for name in names if name not in row]
        if unknown or missing:
            raise UsageError(
                Diagnostic(
                    "TC006",
                    f"{path}: no dim {unknown[0]!r:.80}" if unknown else f"{path}: no {missing[0]}",
                    notes=(f"columns: {', '.join(names)} and, if you like, {CALLS}",),
                )
            )
        try:
            key = tuple(int(row[name]) for name in names)
            calls = int(row.get(CALLS) or 1)
        except (TypeError, ValueError):
            raise UsageError(
                Diagnostic("TC008", f"{path}: row {number} has something that is no number")
            ) from None
        counted[key] = counted.get(key, 0) + calls
    if not counted:
        raise UsageError(Diagnostic("TC008", f"{path} holds no sizes"))
    return [Seen(dict(zip(names, key, strict=True)), calls) for key, calls in counted.items()]


def _of_variants(manifest: Manifest) -> list[Seen]:
    """The lowest sizes that each variant takes."""
    from .bench_strategies import lowest_of_variants

    found = [Seen(sizes, 1) for sizes in lowest_of_variants(manifest)]
    if not found:
        raise UsageError(
            Diagnostic(
                "TC008",
                "the bundle has no variants beside general code to compare them with",
                tries=("--shapes shapes.csv --against model.py",),
            )
        )
    return found


def _pairs(manifest: Manifest, seen: Sequence[Seen]) -> list[Pair | None]:
    """For each of the sizes, the variant that takes it; None where it is the general code."""
    return [
        next(
            (
                Pair(each.name, one.sizes)
                for each in manifest.variants
                if each.name != GENERAL and _takes(contract_of(manifest, each), one.sizes)
            ),
            None,
        )
        for one in seen
    ]


def _takes(contract: Contract, sizes: Mapping[str, int]) -> bool:
    from .bench_sizes import misfit

    return not misfit(contract, sizes)


# --- the answer -----------------------------------------------------------------------------------


def _row(variant: str, seen: Seen, times: Sequence[tuple[float, float]]) -> Row:
    general = sorted(one for one, _ in times)
    own = sorted(other for _, other in times)
    ratio, middle = ratio_of(times), len(times) // 2
    return Row(
        variant,
        seen.sizes,
        seen.calls,
        general[middle],
        own[middle],
        ratio.median,
        (ratio.low, ratio.high),
        ratio.faster,
        ratio.slower,
    )


def advice(rows: Sequence[Row]) -> list[str]:
    """What to type, with the expected gain; or that nothing pays."""
    paying = [row for row in rows if row.pays]
    lines = [
        f"{_text(row.sizes)}: slower than the general code, leave the variant out"
        for row in rows
        if row.slower
    ]
    if not paying:
        return [*lines, "no variant pays: at these sizes the general code is as fast, within noise"]
    total = sum(row.calls * row.general for row in rows)
    saved = sum(row.calls * (row.general - row.specialized) for row in paying)
    options = " ".join(
        f"--profile v{number}:{_text(row.sizes)}" for number, row in enumerate(paying)
    )
    return [
        *lines,
        f"{100 * saved / total:.1f} % of the time of these calls is saved by: {options}",
    ]


def _text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def _lines(rows: Sequence[Row]) -> list[str]:
    cells = [("sizes", "calls", "general", "variant", "ratio", "quartiles", "pays")]
    for row in rows:
        cells.append(
            (
                _text(row.sizes),
                str(row.calls),
                f"{1e6 * row.general:.1f} us",
                f"{1e6 * row.specialized:.1f} us",
                f"{row.ratio:.3f}",
                f"{row.quartiles[0]:.3f}..{row.quartiles[1]:.3f}",
                "yes" if row.pays else "no",
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(7)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
