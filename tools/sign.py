"""``tcexport sign``: vouch for a bundle with a private key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from ..artifacts.container import open_bundle
from ..artifacts.signature import is_encrypted, sign, signature_path


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="The private key, an Ed25519 key as PEM. Where it is encrypted, the passphrase is asked for.",
)
def command(bundle: Path, key: Path) -> None:
    """Sign BUNDLE: write BUNDLE.sig, or add a signature to it.

    Every byte of the file is signed, and only a sound bundle is: its form and all digests are
    checked first.
    """
    passphrase = (
        click.prompt("Passphrase", hide_input=True, err=True).encode()
        if is_encrypted(key)
        else None
    )
    digests: list[bytes] = []
    with open_bundle(
        bundle, accept=lambda _, data: digests.append(hashlib.sha256(data).digest())
    ) as opened:
        opened.verify()
        path = opened.path
    name = sign(path, digests[0], key, passphrase)
    click.echo(f"{signature_path(bundle)}: sha256 {digests[0].hex()}, signed by key {name}")
