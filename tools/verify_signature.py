"""``tcexport verify-signature``: whether a trusted key signed a bundle. It runs nothing of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import click

from ..artifacts.container import open_bundle
from ..artifacts.signature import key_list, verify_signature


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Public keys to trust: a PEM file or a key list. Repeatable.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def command(bundle: Path, keys: tuple[Path, ...], form: str) -> None:
    """Verify that a trusted key signed BUNDLE, every byte of it (exit status 3 if not)."""
    trusted = key_list(keys)
    found: list[tuple[bytes, str]] = []

    def accept(path: Path, data: memoryview) -> None:
        digest = hashlib.sha256(data).digest()
        found.append((digest, verify_signature(path, digest, trusted)))

    with open_bundle(bundle, accept=accept) as opened:
        opened.verify()
    ((digest, key),) = found
    if form == "json":
        click.echo(
            json.dumps({"bundle": str(bundle), "sha256": digest.hex(), "key": key}, indent=1)
        )
    else:
        click.echo(f"{bundle}: sha256 {digest.hex()}, signed by key {key}")
