"""``tcexport sign``: vouch for a bundle with a private key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from ..artifacts.container import open_bundle
from ..artifacts.signature import is_encrypted, sign


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="The private key as PEM: Ed25519, or P-256, P-384 or P-521 for the form of OpenSSF. Where it "
    "is encrypted, the passphrase is asked for.",
)
def command(bundle: Path, key: Path) -> None:
    """Sign BUNDLE: write BUNDLE.sig, or add a signature to it (BUNDLE.sigstore.json by an elliptic
    key).

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
    place, name = sign(path, digests[0], key, passphrase)
    click.echo(f"{bundle.with_name(place.name)}: sha256 {digests[0].hex()}, signed by key {name}")
