"""``tcexport inspect``: what a bundle takes, guards, gives and holds. It runs nothing of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import click

from ..artifacts.container import open_bundle
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import render
from ..artifacts.manifest import Manifest, Member, contract_of, memory_unknown
from ..artifacts.names import printable
from ..artifacts.platforms import CPU_LEVELS, MACOS
from .failures import in_colour
from .partition import VARIANT_HEADS, svg, variant_rows
from .pictures import require_svg
from .tables import guard_rows, input_rows, limits, output_rows, size_text


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--guards", is_flag=True, help="Only the guards.")
@click.option(
    "--partition",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw which variant serves which sizes.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Tables, or the manifest as JSON.",
)
def command(bundle: Path, guards: bool, partition: Path | None, form: str) -> None:
    """Show inputs, dims, guards, outputs, variants, targets, members and provenance of BUNDLE."""
    if partition is not None:
        require_svg("--partition", partition)
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
    if partition is not None:
        _draw(manifest, bundle, partition)
    if form == "json":
        click.echo(json.dumps(_as_json(manifest, guards), indent=1))
        return
    if guards:
        _table("guards", ("guard", "from"), guard_rows(manifest.contract))
        return
    click.echo(f"{bundle}: {manifest.model}, format {manifest.format_version}")
    for title, heads, rows in _tables(manifest):
        _table(title, heads, rows)


def _draw(manifest: Manifest, bundle: Path, partition: Path) -> None:
    if not manifest.contract.dims:
        raise UsageError(
            Diagnostic("TC008", f"--partition: {bundle} has no dynamic dim, and nothing to draw")
        )
    try:
        partition.write_text(svg(manifest))
    except OSError as error:
        raise UsageError(
            Diagnostic("TC012", f"cannot write {partition}: {error.strerror or error}")
        ) from None


def _tables(manifest: Manifest) -> list[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]]:
    contract = manifest.contract
    provenance = manifest.provenance
    made = [
        ("tcexport", provenance.tcexport),
        ("source", f"{provenance.source}  sha256 {provenance.source_sha256 or '(in memory)'}"),
        *(
            (("commit", f"{provenance.commit}  {provenance.commit_state}"),)
            if provenance.commit
            else ()
        ),
        *(("option", f"{name}={value}") for name, value in provenance.options.items()),
        *(("version", f"{name} {value}") for name, value in provenance.versions.items()),
        ("linker", provenance.linker),
        *((("weights", f"sha256 {update}"),) if (update := provenance.weights_sha256) else ()),
    ]
    states = [
        (each.name, each.dtype, str(list(each.shape)), each.initial or "zeros")
        for each in manifest.states
    ]
    return [
        ("inputs", ("path", "dtype", "shape"), input_rows(contract)),
        (
            "dims",
            ("name", "range", "limited by"),
            [(dim.name, dim.span(), limits(dim)) for dim in contract.dims],
        ),
        ("guards", ("guard", "from"), guard_rows(contract)),
        *([("state", ("name", "dtype", "shape", "starts as"), states)] if states else []),
        ("outputs", ("path", "dtype", "shape"), output_rows(contract)),
        ("memory of a call", ("bytes at once", "within the ranges"), _memory_rows(manifest)),
        *(
            (("variants, in the order of trial", VARIANT_HEADS, variant_rows(manifest)),)
            if manifest.variants
            else ()
        ),
        (
            "targets",
            ("name", "machine", "level", "needs", "library"),
            [
                (
                    each.name,
                    f"{each.system}-{each.machine}",
                    each.level,
                    f"{'macOS' if each.system == MACOS else 'glibc'} {each.libc}",
                    each.library,
                )
                for each in manifest.targets
            ],
        ),
        *_untested(manifest),
        *_gpu_tables(manifest),
        (
            "members",
            ("name", "size", "sha256"),
            [(each.name, size_text(each.size), each.sha256[:16]) for each in _files(manifest)],
        ),
        ("provenance", ("what", "value"), made),
    ]


def _memory_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """What the compiled function allocates, beside arguments and weights; the largest sum counts."""
    from ..artifacts.parts import box_of  # with numpy, which --help does without
    from ..artifacts.prove import bounds

    parts = [
        (f"{each.name}: ", each.memory, contract_of(manifest, each)) for each in manifest.variants
    ]
    rows = []
    for name, memory, contract in parts or [("", manifest.memory, manifest.contract)]:
        if memory is None:
            rows.append((f"{name}not known", memory_unknown(manifest)))
            continue
        box = box_of(contract.dims)
        for each in memory:
            most = bounds(each, box)[1]
            within = "without end" if most == inf else f"<= {size_text(int(most))}"
            rows.append((f"{name}{render(each)}", within))
    return rows


def _files(manifest: Manifest) -> list[Member]:
    """The members, and the file beside the bundle, if there is one."""
    beside = manifest.external_weights
    if beside is None:
        return list(manifest.members)
    return [*manifest.members, Member(f"{beside.name}, beside it", beside.size, beside.sha256)]


def _untested(
    manifest: Manifest,
) -> list[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]]:
    """The targets whose code no test of this tcexport runs on a machine, where there are some."""
    rows = [
        (each.name, CPU_LEVELS[each.level].untested)
        for each in manifest.targets
        if each.level in CPU_LEVELS and CPU_LEVELS[each.level].untested
    ]
    return [("untested code", ("target", "such code was"), rows)] if rows else []


def _gpu_tables(
    manifest: Manifest,
) -> list[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]]:
    """The GPU code in the targets, where there is some."""
    rows = [
        (
            each.name,
            " ".join(each.cuda.architectures) or "none",
            each.cuda.ptx or "none",
            max(each.cuda.driver, each.cuda.ptx_driver),
            str(len(each.cuda.kernels)),
            each.cuda.compiler,
        )
        for each in manifest.targets
        if each.cuda is not None
    ]
    heads = ("target", "machine code", "PTX", "driver for CUDA", "kernels", "compiler")
    return [("gpu code", heads, rows)] if rows else []


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo()
    if not rows:
        click.echo(f"{title}: none")
        return
    if in_colour(sys.stdout):
        _rich_table(title, heads, rows)
        return
    click.echo(f"{title}:")
    lines = [list(heads), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  " + "  ".join(padded).rstrip())


def _rich_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, title=title, title_justify="left", title_style="bold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    Console(highlight=False).print(table)


def _as_json(manifest: Manifest, guards: bool) -> Any:
    import msgspec

    data = msgspec.to_builtins(manifest)
    if guards:
        return {
            name: data["contract"][name] for name in ("guards", "index_guards", "computed_guards")
        }
    return data
