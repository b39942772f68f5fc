"""``tcexport diff``: what two bundles do not have in common. It runs nothing of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..artifacts.container import open_bundle
from ..artifacts.names import printable

if TYPE_CHECKING:
    from .differences import Difference


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.pass_context
def command(context: click.Context, first: Path, second: Path, form: str) -> None:
    """Show what differs between two bundles: contract, code, weights, versions.

    Exit status 0: the same bytes. 1: they differ.
    """
    from dataclasses import asdict

    from .differences import differences

    with open_bundle(first) as one, open_bundle(second) as two:
        one.verify()
        two.verify()
        found = list(differences(one, two))
    if form == "json":
        click.echo(json.dumps({"differences": [asdict(each) for each in found]}, indent=1))
    else:
        _print(found)
    context.exit(1 if found else 0)


def _print(found: Sequence[Difference]) -> None:
    if not found:
        click.echo("the same: every byte")
    section = ""
    for each in found:
        if each.section != section:
            section = each.section
            click.echo(f"{section}:")
        if each.first is None:
            line = f"+ {each.what}: {each.second}"
        elif each.second is None:
            line = f"- {each.what}: {each.first}"
        else:
            line = f"  {each.what}: {each.first} -> {each.second}"
        click.echo(f"  {printable(line)}")
