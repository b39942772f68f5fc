"""``tcexport keygen``: a key pair to sign bundles with."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.signature import key_list, make_key


@click.command()
@click.argument("name", type=click.Path(path_type=Path))
@click.option(
    "--passphrase", is_flag=True, help="Ask for a passphrase that guards the private key."
)
def command(name: Path, passphrase: bool) -> None:
    """Make an Ed25519 key: NAME.key to sign with, NAME.pub to give away.

    NAME.key is readable by you alone. Nothing is overwritten.
    """
    private_file, public_file = (name.with_name(name.name + end) for end in (".key", ".pub"))
    for place in (private_file, public_file):
        if place.exists():
            raise _cannot_write(place, "it is there already")
    secret = None
    if passphrase:
        secret = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True).encode()
    private, public = make_key(secret)
    _write_new(private_file, private, 0o600)
    try:
        _write_new(public_file, public, 0o644)
    except UsageError:
        with suppress(OSError):
            private_file.unlink()
        raise
    (identity,) = key_list(public).trusted
    click.echo(f"{private_file}: the private key; keep it secret")
    click.echo(f"{public_file}: the public key {identity}")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise _cannot_write(path, (error.strerror or str(error)).lower()) from None


def _cannot_write(path: Path, reason: str) -> UsageError:
    return UsageError(Diagnostic("TC012", f"cannot write {path}: {reason}"))
