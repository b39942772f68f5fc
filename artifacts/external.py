"""Weights in a file beside the bundle, by its digest: several bundles of one model share it.

The file is named after its own SHA-256, so that it is never another one's, and what is there already
is not written again. It is written before the bundle that asks for it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from pathlib import Path

import msgspec

from .container import Bundle, open_bundle, publish, write_bundle
from .errors import Diagnostic, UsageError
from .manifest import WEIGHTS_NAME, Member, external_name
from .sbom import SBOM_NAME

_CHUNK = 1 << 20


def move_outside(path: Path, out: Path) -> Path | None:
    """Write the bundle at ``path`` to ``out`` with its weights in a file beside it.

    Returns:
        The file of the weights; None where the bundle has none, and ``out`` has the same bytes.

    Raises:
        BundleError: as `open_bundle`; the digests are checked. UsageError: TC012.
    """
    with open_bundle(path) as bundle:
        bundle.verify()
        if not bundle.has_weights:
            _rewrite(bundle, out, None)
            return None
        with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
            place = Path(folder) / "weights"
            place.write_bytes(bundle.view(WEIGHTS_NAME))
            member = keep_beside(place, out)
        _rewrite(bundle, out, member)
    return out.with_name(member.name)


def move_inside(path: Path, out: Path) -> None:
    """Write the bundle at ``path`` to ``out`` with its weights as a member. The file beside it stays.

    Raises:
        BundleError: as `open_bundle`; TC410. UsageError: TC012.
    """
    with open_bundle(path) as bundle:
        bundle.verify()
        _rewrite(bundle, out, None)


def keep_beside(weights: Path, out: Path) -> Member:
    """Put a file of weights beside the bundle ``out``, under its name by digest.

    Raises:
        UsageError: TC012, it cannot be written.
    """
    digest, size = hashlib.sha256(), 0
    with open(weights, "rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    member = Member(external_name(digest.hexdigest()), size, digest.hexdigest())
    place = out.with_name(member.name)
    if not _is_there(place, member):
        draft = place.with_name(f".{place.name}.{secrets.token_hex(6)}.part")
        try:
            with open(draft, "xb") as file, open(weights, "rb") as source:
                while chunk := source.read(_CHUNK):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            draft.unlink(missing_ok=True)
            reason = error.strerror or str(error)
            raise UsageError(Diagnostic("TC012", f"cannot write {place}: {reason}")) from None
        publish(draft, place)
    return member


def _is_there(place: Path, member: Member) -> bool:
    if not place.is_file() or place.stat().st_size != member.size:
        return False
    with open(place, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == member.sha256


def _rewrite(bundle: Bundle, out: Path, external: Member | None) -> None:
    """The bundle with its weights outside, or (None) inside."""
    manifest = msgspec.structs.replace(bundle.manifest, members=(), external_weights=external)
    names = [name for name in bundle.offsets if name not in (SBOM_NAME, WEIGHTS_NAME)]
    if external is None and bundle.has_weights:
        names.append(WEIGHTS_NAME)
    with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
        members: list[tuple[str, Path | bytes]] = []
        for number, name in enumerate(names):
            place = Path(folder) / str(number)
            place.write_bytes(bundle.view(name))
            members.append((name, place))
        write_bundle(out, manifest, members, bill=SBOM_NAME in bundle.offsets)
