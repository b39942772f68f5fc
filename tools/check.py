"""``tcexport check``: trace only, to see the contract that an export would have."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from .failures import print_diagnostics
from .progress import Progress
from .sources import Asked, load, output_options, source_arguments
from .tables import dim_lines, guard_rows

if TYPE_CHECKING:
    from ..exporter.export import CheckReport


@click.command()
@source_arguments
@output_options
def command(asked: Asked, quiet: bool, verbose: bool, form: str) -> None:
    """Trace SOURCE and show the contract, without building anything.

    SOURCE and its options are those of `tcexport export`.
    """
    with Progress(quiet) as progress, redirect_stdout(sys.stderr):
        source, dynamic = load(asked, progress)
        from ..exporter.export import check

        found = check(source, dynamic=dynamic, narrow=asked.narrow, progress=progress)
    if form == "json":
        click.echo(json.dumps(_as_json(found), indent=1))
        return
    print_diagnostics(found.notes)
    for line in dim_lines(found.contract.dims):
        click.echo(line)
    for guard, origin in guard_rows(found.contract):
        click.echo(f"guard: {guard}   ({origin})")


def _as_json(found: CheckReport) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(found)
    return data
