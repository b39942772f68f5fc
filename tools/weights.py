"""``tcexport weights``: what can be done to the weights of a bundle without compiling it again."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.group()
def command() -> None:
    """Change the weights of a bundle. Needs neither PyTorch nor a compiler."""


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("weights", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The bundle to write; it may be BUNDLE itself.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def update(bundle: Path, weights: Path, output: Path, form: str) -> None:
    """Put the parameters of WEIGHTS, a safetensors file of the model's `state_dict()`, into BUNDLE.

    They are packed as at export. Names, shapes and dtypes must be the model's; a value that the code
    or the contract was made for must be the same. What comes out is what an export with these weights
    gives. It is not compared with eager, and not signed.

    \b
      tcexport weights update m.tcpkg new.safetensors -o n.tcpkg
    """
    from ..artifacts.update import update_weights

    done = update_weights(bundle, weights, output)
    if form == "json":
        answer = {"path": str(output), "changed": done.changed, "kept": done.kept}
        click.echo(json.dumps(answer, indent=1))
        return
    click.echo(f"{len(done.changed)} stored tensors changed", err=True)
    if done.kept:
        click.echo(
            f"kept, for the code was made for them and {weights} has none: {', '.join(done.kept)}",
            err=True,
        )
    click.echo(str(output))


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def external(bundle: Path, output: Path) -> None:
    """Keep the weights of BUNDLE in a file beside OUTPUT, named by its digest.

    Bundles with the same weights share it.
    """
    from ..artifacts.external import move_outside

    beside = move_outside(bundle, output)
    click.echo(str(output))
    if beside is not None:
        click.echo(str(beside))


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def inside(bundle: Path, output: Path) -> None:
    """Make one file of BUNDLE and the weights beside it."""
    from ..artifacts.external import move_inside

    move_inside(bundle, output)
    click.echo(str(output))
