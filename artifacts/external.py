"""Weights in a file beside the bundle, by its digest: several bundles of one model share it.

The file is named after its own SHA-256, so that it is never another one's, and what is there already
is not written again. It is written before the bundle that asks for it.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from .container import Bundle, Content, chunks, describe, open_bundle, publish, write_bundle
from .errors import Diagnostic, UsageError
from .manifest import WEIGHTS_NAME, Manifest, Member, external_name
from .sbom import SBOM_NAME
from .weights import Weight, write_weights


def move_outside(path: Path, out: Path) -> Path | None:
    """Write the bundle at ``path`` to ``out`` with its weights in a file beside it.

    Returns:
        The file of the weights; None where the bundle has none, and ``out`` has the same bytes.

    Raises:
        BundleError: as `open_bundle`; the digests are checked. UsageError: TC012.
    """
    with open_bundle(path) as bundle:
        bundle.verify()
        return rewrite(bundle, out, bundle.manifest, outside=True)


@contextmanager
def moved_outside(path: Path) -> Iterator[Callable[[], None]]:
    """Move the weights of the bundle at ``path`` into a file beside it, which goes again where what
    follows fails, or on a call of what is given, unless it was there before: another bundle's.

    Raises:
        BundleError, UsageError: as `move_outside`.
    """
    before = {each.name for each in path.parent.glob("weights-*.safetensors")}
    beside = move_outside(path, path)

    def drop() -> None:
        if beside is not None and beside.name not in before:
            beside.unlink(missing_ok=True)

    try:
        yield drop
    except BaseException:
        drop()
        raise


def move_inside(path: Path, out: Path) -> None:
    """Write the bundle at ``path`` to ``out`` with its weights as a member. The file beside it stays.

    Raises:
        BundleError: as `open_bundle`; TC410. UsageError: TC012.
    """
    with open_bundle(path) as bundle:
        bundle.verify()
        rewrite(bundle, out, bundle.manifest, outside=False)


def rewrite(
    bundle: Bundle,
    out: Path,
    manifest: Manifest,
    tensors: Mapping[str, Weight] | None = None,
    *,
    outside: bool,
) -> Path | None:
    """Write the members of a bundle to ``out`` under another manifest; ``out`` may be the bundle.

    Args:
        tensors: the weights, where they are not the bundle's own.
        outside: the weights go into a file beside ``out``.

    Returns:
        The file of the weights beside ``out``, if there is one.

    Raises:
        BundleError: TC410. UsageError: TC012.
    """
    beside: Member | None = None
    members: list[tuple[str, Content]] = [
        (name, bundle.view(name))
        for name in bundle.offsets
        if name not in (SBOM_NAME, WEIGHTS_NAME)
    ]
    with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
        if bundle.has_weights:
            weights: Content = Path(folder) / "weights"
            if tensors is None:
                weights = bundle.view(WEIGHTS_NAME)
            else:
                write_weights(Path(folder) / "weights", tensors)
            if outside:
                beside = _keep_beside(weights, out)
            else:
                members.append((WEIGHTS_NAME, weights))
        manifest = msgspec.structs.replace(manifest, members=(), external_weights=beside)
        write_bundle(out, manifest, members, bill=SBOM_NAME in bundle.offsets)
    return None if beside is None else out.with_name(beside.name)


def _keep_beside(weights: Content, out: Path) -> Member:
    """Put weights into a file beside the bundle ``out``, under its name by digest."""
    found, _ = describe(WEIGHTS_NAME, weights)
    member = msgspec.structs.replace(found, name=external_name(found.sha256))
    place = out.with_name(member.name)
    if not (place.is_file() and describe(member.name, place)[0] == member):
        draft = place.with_name(f".{place.name}.{secrets.token_hex(6)}.part")
        try:
            with open(draft, "xb") as file:
                for chunk in chunks(weights):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            draft.unlink(missing_ok=True)
            reason = error.strerror or str(error)
            raise UsageError(Diagnostic("TC012", f"cannot write {place}: {reason}")) from None
        publish(draft, place)
    return member
