"""Signatures: who vouches for a bundle, in a file beside it.

``m.tcpkg.sig`` is JSON: the SHA-256 of the whole bundle, every byte of it, and one or more Ed25519
signatures (RFC 8032) of that digest behind a text of our own, so that none made for another purpose
counts. Elliptic keys (ECDSA) make and verify the form of OpenSSF instead: see `openssf`. Keys are PEM
files as OpenSSL writes them. A *key list* is a text file of public keys and of lines ``revoked
<SHA-256> <reason>``, of a key or of a bundle. Needs the package cryptography (``tcexport[sign]``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from .errors import BundleError, Diagnostic, UsageError
from .openssf import (
    CURVES,
    NotSigned,
    elliptic_id,
    openssf_path,
    pem_of,
    signature_text,
    verify_text,
)

SUFFIX = ".sig"
MAX_SIGNATURES = 16
MAX_FILE_BYTES = 1 << 20
_CONTEXT = b"tcexport bundle signature 1\n"
_ID = re.compile(r"[0-9a-f]{64}")
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n?", re.DOTALL)
_REVOKED = re.compile(r"revoked\s+([0-9a-f]{64})(?:\s+(.*))?")

_WANTED = "neither an Ed25519 key nor one on P-256, P-384 or P-521"

KeySource: TypeAlias = "str | os.PathLike[str] | bytes"
TrustedKeys: TypeAlias = "KeySource | Sequence[KeySource]"


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``key``: the id of the public key; ``value``: 64 bytes in Base64."""

    key: str
    value: str


class _SignatureFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tcexport signature 1"]
    sha256: str
    signatures: tuple[_Signature, ...]


@dataclass(frozen=True)
class KeyList:
    """Public keys by their ids, and what is revoked (ids of keys, SHA-256 of bundles) with the reason.

    ``trusted`` are Ed25519 keys, 32 bytes each, with the SHA-256 of these as id; ``elliptic`` are PEM
    forms, with the SHA-256 of these."""

    trusted: dict[str, bytes]
    revoked: dict[str, str]
    elliptic: dict[str, bytes] = field(default_factory=dict)


def signature_path(path: Path) -> Path:
    """Where the signatures of a bundle lie: ``m.tcpkg.sig``."""
    return path.with_name(path.name + SUFFIX)


def key_id(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()


# --- keys -----------------------------------------------------------------------------------------


def key_list(keys: TrustedKeys) -> KeyList:
    """The keys of files (PEM, or key lists) and of bytes (PEM, or the 32 bytes of a key).

    Raises:
        UsageError: TC014, a file cannot be read or is no such thing, or there is no key at all;
            TC011, the package cryptography is not installed.
    """
    _require_cryptography()
    sources = [keys] if isinstance(keys, (str, bytes, os.PathLike)) else list(keys)
    keys_of = KeyList({}, {})
    for source in sources:
        if isinstance(source, bytes) and len(source) == 32:
            keys_of.trusted[key_id(source)] = source
        elif isinstance(source, bytes):
            _add_listed(source, "the key given", keys_of)
        elif isinstance(source, (str, os.PathLike)):
            _add_listed(_read_key_file(Path(source)), str(Path(source)), keys_of)
        else:
            raise _bad_key(f"a key is a path or bytes, not a {type(source).__name__}")
    if not keys_of.trusted and not keys_of.elliptic:
        raise _bad_key("there is no public key among what is to be trusted")
    return keys_of


def _add_listed(data: bytes, where: str, keys: KeyList) -> None:
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise _bad_key(f"{where} is not text: neither PEM nor a key list") from None
    for block in _PEM.finditer(text):
        _add_public(block.group(0).encode(), block.group(1), where, keys)
    for line in _PEM.sub("", text).splitlines():
        words = line.partition("#")[0].strip()
        found = _REVOKED.fullmatch(words)
        if found is not None:
            keys.revoked[found.group(1)] = found.group(2) or "no reason is given"
        elif words:
            raise _bad_key(
                f"{where}: {words[:60]!r} is neither a PEM key nor `revoked SHA256 reason`"
            )


def _add_public(pem: bytes, label: str, where: str, keys: KeyList) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if "PRIVATE" in label:
        raise _bad_key(f"{where} holds a private key; what is trusted is the public one")
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _bad_key(f"{where}: not a public key: {str(error).splitlines()[0]:.80}") from None
    if isinstance(key, Ed25519PublicKey):
        keys.trusted[key_id(key.public_bytes_raw())] = key.public_bytes_raw()
    elif isinstance(key, EllipticCurvePublicKey) and key.curve.name in CURVES:
        keys.elliptic[elliptic_id(pem_of(key))] = pem_of(key)
    else:
        raise _bad_key(f"{where}: {_WANTED}")


def _read_key_file(path: Path) -> bytes:
    try:
        return _read_small(path)
    except OSError as error:
        raise _bad_key(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise _bad_key(f"cannot read {path}: {error}") from None


def _read_small(path: Path) -> bytes:
    """A regular file of at most `MAX_FILE_BYTES`; never waits, as for a pipe."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError("it is too large")
    return data


def _bad_key(message: str) -> UsageError:
    return UsageError(
        Diagnostic("TC014", message, tries=("tcexport keygen NAME   (NAME.pub, NAME.key)",))
    )


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError(
            Diagnostic(
                "TC011",
                "signatures need what is not installed here: cryptography",
                notes=("nothing was taken for signed",),
                tries=("pip install 'tcexport[sign]'",),
            )
        )


def make_key(passphrase: bytes | None = None) -> tuple[bytes, bytes]:
    """A new key as PEM: the private (PKCS #8, encrypted with a passphrase) and the public one."""
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    guarded: Any = forms.BestAvailableEncryption(passphrase) if passphrase else forms.NoEncryption()
    private = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, guarded)
    public = key.public_key().public_bytes(
        forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public


def is_encrypted(key_file: Path) -> bool:
    """Whether a private key needs a passphrase.

    Raises:
        UsageError: TC014, it cannot be read.
    """
    text = _read_key_file(key_file)
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in text or b"Proc-Type: 4,ENCRYPTED" in text


# --- signing and verifying ------------------------------------------------------------------------


def sign(
    path: Path, digest: bytes, key_file: Path, passphrase: bytes | None = None
) -> tuple[Path, str]:
    """Add a signature by the private key in ``key_file`` to the file beside the bundle.

    Signatures of the same bytes by other keys stay there; those of other bytes are gone. One by an
    elliptic key has a file of its own (`openssf_path`), in place of what was there.

    Args:
        digest: the SHA-256 of the bundle, 32 bytes.

    Returns:
        The file with the signature, and the id of the key.

    Raises:
        UsageError: TC014, not a private key of these kinds, or the passphrase does not fit; TC012,
            the signature cannot be written; TC011.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read_key_file(key_file), passphrase)
    except (TypeError, ValueError) as error:
        raise _bad_key(f"{key_file}: {str(error).splitlines()[0]:.80}") from None
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in CURVES:
        _write(openssf_path(path), signature_text(path.name, digest, key))
        return openssf_path(path), elliptic_id(pem_of(key.public_key()))
    if not isinstance(key, Ed25519PrivateKey):
        raise _bad_key(f"{key_file}: {_WANTED}")
    name = key_id(key.public_key().public_bytes_raw())
    value = base64.b64encode(key.sign(_CONTEXT + digest)).decode()
    others: list[_Signature] = []
    place = signature_path(path)
    if place.exists():
        found = _read_signatures(path)
        if found.sha256 == digest.hex():
            others = [each for each in found.signatures if each.key != name]
    signatures = sorted([*others, _Signature(name, value)], key=lambda each: each.key)
    if len(signatures) > MAX_SIGNATURES:
        raise UsageError(Diagnostic("TC012", f"{place} holds {MAX_SIGNATURES} signatures already"))
    made = _SignatureFile("tcexport signature 1", digest.hex(), tuple(signatures))
    _write(place, msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return place, name


def _write(place: Path, data: bytes) -> None:
    from .container import publish

    draft = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(Diagnostic("TC012", f"cannot write {place}: {reason}")) from None
    publish(draft, place)


def verify_signature(path: Path, digest: bytes, keys: KeyList) -> str:
    """The id of a trusted key that signed the bundle whose SHA-256 is ``digest``.

    Raises:
        BundleError: TC408, there is no signature, or none by a trusted key, or not of these bytes;
            TC409, the bundle is revoked, or every trusted key that signed it.
    """
    if digest.hex() in keys.revoked:
        raise BundleError(Diagnostic("TC409", f"{path} is revoked: {keys.revoked[digest.hex()]}"))
    ways = [
        (way, place)
        for way, wanted, place in (
            (_verify_ours, keys.trusted, signature_path(path)),
            (_verify_openssf, keys.elliptic, openssf_path(path)),
        )
        if wanted
    ]
    there = [way for way, place in ways if os.path.lexists(place)] or [ways[0][0]]
    failures = []
    for way in there:
        try:
            return way(path, digest, keys)
        except BundleError as error:
            failures.append(error)
    raise failures[0]


def _verify_openssf(path: Path, digest: bytes, keys: KeyList) -> str:
    text = _read_beside(path, openssf_path(path))
    try:
        return verify_text(text, digest, keys.elliptic, keys.revoked)
    except NotSigned as error:
        if error.revoked:
            raise _by_revoked(path, error.revoked, keys) from None
        raise _not_trusted(path, str(error), *error.notes) from None


def _verify_ours(path: Path, digest: bytes, keys: KeyList) -> str:
    found = _read_signatures(path)
    if found.sha256 != digest.hex():
        raise _not_trusted(
            path,
            "its signature is of other bytes",
            f"signed: sha256 {found.sha256}",
            f"here:   sha256 {digest.hex()}",
        )
    revoked = [each.key for each in found.signatures if each.key in keys.revoked]
    candidates = [
        each for each in found.signatures if each.key in keys.trusted and each.key not in revoked
    ]
    for each in candidates:
        if _holds(keys.trusted[each.key], each.value, digest):
            return each.key
    if candidates:
        raise _not_trusted(path, f"the signature by key {candidates[0].key} is not valid")
    if revoked:
        raise _by_revoked(path, revoked[0], keys)
    raise _not_trusted(
        path,
        "it is not signed by a trusted key",
        *(f"signed by key {each.key}" for each in found.signatures),
        *(f"trusted: key {name}" for name in sorted(keys.trusted.keys() - keys.revoked.keys())[:8]),
    )


def _by_revoked(path: Path, key: str, keys: KeyList) -> BundleError:
    return BundleError(
        Diagnostic(
            "TC409",
            f"{path} is signed by key {key}, which is revoked: {keys.revoked[key]}",
            tries=("fetch a file that is signed by another key",),
        )
    )


def _holds(public: bytes, value: str, digest: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            base64.b64decode(value, validate=True), _CONTEXT + digest
        )
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _read_signatures(path: Path) -> _SignatureFile:
    place = signature_path(path)
    data = _read_beside(path, place)
    try:
        found = msgspec.json.decode(data, type=_SignatureFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_trusted(path, f"{place.name} is not a signature: {error}") from None
    names = [each.key for each in found.signatures]
    if not 0 < len(names) <= MAX_SIGNATURES or len(set(names)) != len(names):
        raise _not_trusted(path, f"{place.name}: none, too many, or two signatures of one key")
    if not all(_ID.fullmatch(each) for each in (found.sha256, *names)):
        raise _not_trusted(path, f"{place.name}: a SHA-256 that is none")
    return found


def _read_beside(path: Path, place: Path) -> bytes:
    try:
        return _read_small(place)
    except FileNotFoundError:
        raise _not_trusted(path, f"it is not signed: there is no {place.name} beside it") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _not_trusted(path, f"cannot read {place.name}: {reason}") from None
    except ValueError as error:
        raise _not_trusted(path, f"cannot read {place.name}: {error}") from None


def _not_trusted(path: Path, reason: str, *notes: str) -> BundleError:
    return BundleError(
        Diagnostic(
            "TC408",
            f"{path} is not trusted: {reason}",
            notes=notes,
            tries=(f"tcexport sign {path} --key NAME.key   (if you vouch for it)",),
        )
    )
