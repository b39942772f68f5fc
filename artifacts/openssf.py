"""OpenSSF model signing: signatures in the form that registries of models ask for.

``m.tcpkg.sigstore.json`` is what the package model-signing writes for a file and a key: a Sigstore
bundle that holds a DSSE envelope around an in-toto statement with the SHA-256 of the file
(https://github.com/sigstore/model-transparency, predicate ``model_signing/signature/v1.0``;
https://github.com/secure-systems-lab/dsse). Keys are elliptic: P-256, P-384, P-521. What is verified
here are the bytes that are loaded, which that package, given a path, cannot say. Signatures by
certificates and without keys need an authority to ask, and are refused. Needs the package cryptography.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

SUFFIX = ".sigstore.json"

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
CURVES = frozenset(_HASHES)


class NotSigned(ValueError):
    """Why a signature does not count. ``revoked`` is the key that made it, where that is why."""

    def __init__(self, reason: str, *notes: str, revoked: str = "") -> None:
        super().__init__(reason)
        self.notes = notes
        self.revoked = revoked


def openssf_path(path: Path) -> Path:
    """Where such a signature of a bundle lies."""
    return path.with_name(path.name + SUFFIX)


def elliptic_id(pem: bytes) -> str:
    """The id of a public key, as model-signing writes it: the SHA-256 of its PEM form."""
    return hashlib.sha256(pem).hexdigest()


def pem_of(key: Any) -> bytes:
    """A public key of the package cryptography as the PEM form that its id is made of."""
    from cryptography.hazmat.primitives import serialization as forms

    found: bytes = key.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    return found


# --- the file ---------------------------------------------------------------------------------------
# Fields that are not named here may be there: the format has many for other kinds of signatures.


class _PublicKey(msgspec.Struct):
    hint: str | None = None


class _Material(msgspec.Struct, rename="camel"):
    public_key: _PublicKey | None = None


class _Signature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: tuple[_Signature, ...]


class _SigstoreBundle(msgspec.Struct, rename="camel"):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope | None = None


class _Subject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _Resource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _Predicate(msgspec.Struct):
    serialization: dict[str, Any]
    resources: tuple[_Resource, ...]


class _Statement(msgspec.Struct, rename="camel"):
    subject: tuple[_Subject, ...]
    predicate_type: str
    predicate: _Predicate
    type_: str = msgspec.field(name="_type")


def signature_text(name: str, digest: bytes, key: Any) -> bytes:
    """The text of the file, as model-signing would write it.

    Args:
        name: of the bundle's file.
        digest: the SHA-256 of the bundle.
        key: an elliptic private key of the package cryptography, on one of `CURVES`.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": hashlib.sha256(digest).hexdigest()}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [],
            },
            "resources": [{"name": ".", "algorithm": "sha256", "digest": digest.hex()}],
        },
    }
    payload = msgspec.json.encode(statement)
    signature = key.sign(_to_sign(payload), ec.ECDSA(_hash_of(key.curve)))
    bundle = {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {
            "publicKey": {"hint": elliptic_id(pem_of(key.public_key()))},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n"


def verify_text(
    text: bytes, digest: bytes, trusted: Mapping[str, bytes], revoked: Mapping[str, str]
) -> str:
    """The id of the trusted key that signed the bundle whose SHA-256 is ``digest``.

    Args:
        text: of the signature's file.
        trusted: public keys as PEM, by their ids.
        revoked: ids with reasons.

    Raises:
        NotSigned: not so, with the reason.
    """
    try:
        bundle = msgspec.json.decode(text, type=_SigstoreBundle)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotSigned(f"its {SUFFIX} is not a Sigstore bundle: {error}") from None
    envelope, hint = bundle.dsse_envelope, bundle.verification_material.public_key
    if envelope is None or hint is None or not hint.hint:
        raise NotSigned(
            f"its {SUFFIX} is not by a key",
            "signatures by certificates, and those of Sigstore without keys, are not verified here",
        )
    if hint.hint in revoked:
        raise NotSigned(f"it is signed by key {hint.hint}", revoked=hint.hint)
    if hint.hint not in trusted:
        names = sorted(trusted.keys() - revoked.keys())[:8]
        raise NotSigned(
            "it is not signed by a trusted key",
            f"signed by key {hint.hint:.64}",
            *(f"trusted: key {name}" for name in names),
        )
    payload = _from_base64(envelope.payload)
    sound = envelope.payload_type == _PAYLOAD_TYPE and len(envelope.signatures) == 1
    if not sound or not _holds(trusted[hint.hint], envelope.signatures[0].sig, payload):
        raise NotSigned(f"the signature by key {hint.hint} is not valid")
    _compare(payload, digest)
    return hint.hint


def _compare(payload: bytes, digest: bytes) -> None:
    """Whether what was signed is a file of these bytes."""
    try:
        statement = msgspec.json.decode(payload, type=_Statement)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotSigned(f"what was signed is no statement of a model: {error}") from None
    predicate = statement.predicate
    kinds = statement.type_, statement.predicate_type, predicate.serialization.get("method")
    if kinds != (_STATEMENT, _PREDICATE, "files"):
        raise NotSigned(f"what was signed is of another kind: {kinds}")
    names = [(each.name, each.algorithm) for each in predicate.resources]
    if names != [(".", "sha256")]:
        raise NotSigned(
            "what was signed is not one file with its SHA-256",
            "sign the bundle itself, not the folder that it is in",
        )
    signed = predicate.resources[0].digest
    root = [each.digest.get("sha256") for each in statement.subject]
    if signed != digest.hex() or root != [hashlib.sha256(digest).hexdigest()]:
        raise NotSigned(
            "its signature is of other bytes",
            f"signed: sha256 {signed:.64}",
            f"here:   sha256 {digest.hex()}",
        )


def _to_sign(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (
        len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload
    )  # fmt: skip


def _hash_of(curve: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return getattr(hashes, _HASHES[curve.name])()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NotSigned("a signature that is not in Base64") from None


def _holds(pem: bytes, value: str, payload: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: Any = load_pem_public_key(pem)
    try:
        key.verify(_from_base64(value), _to_sign(payload), ec.ECDSA(_hash_of(key.curve)))
    except InvalidSignature:
        return False
    return True
