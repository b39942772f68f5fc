"""A bundle that must be signed: by whom, every byte of it, before any byte is believed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import BundleError, UsageError
from tcexport.artifacts.signature import key_id, key_list, make_key, sign, signature_path
from tcexport.runtime import load

from .conftest import WEIGHT
from .test_library import python

X = np.ones((2, 4), np.float32)


class Key:
    """A key pair in files of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.private, self.public = folder / f"{name}.key", folder / f"{name}.pub"
        for place, text in zip((self.private, self.public), make_key(), strict=True):
            place.write_bytes(text)
        ((self.id, self.raw),) = key_list(self.public).trusted.items()


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return Key(tmp_path, "mine")


@pytest.fixture
def other(tmp_path: Path) -> Key:
    return Key(tmp_path, "other")


@pytest.fixture
def signed(added: Path, tmp_path: Path, key: Key) -> Path:
    path = tmp_path / "m.tcpkg"
    shutil.copy(added, path)
    signed_by(path, key)
    return path


def signed_by(path: Path, key: Key) -> None:
    assert sign(path, hashlib.sha256(path.read_bytes()).digest(), key.private) == (
        signature_path(path),
        key.id,
    )


def refused(path: Path, keys: Any, code: str = "TC408") -> str:
    with pytest.raises(BundleError) as caught:
        load(path, require_signature=keys)
    assert caught.value.code == code
    return str(caught.value)


def test_a_signed_bundle_runs_for_who_trusts_the_key(signed: Path, key: Key, other: Key) -> None:
    pem = key.public.read_bytes()
    for keys in (key.public, str(key.public), pem, key.raw, [other.public, key.raw], (pem,)):
        np.testing.assert_array_equal(load(signed, require_signature=keys)(X), X + WEIGHT)


def test_without_a_signature_or_with_one_of_another_key_it_is_refused(
    added: Path, signed: Path, other: Key
) -> None:
    assert "not signed: there is no added.tcpkg.sig" in refused(added, other.public)
    answer = refused(signed, other.public)
    assert "not signed by a trusted key" in answer
    assert f"trusted: key {other.id}" in answer


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_byte_of_the_file_is_signed(signed: Path, key: Key, data: st.DataObject) -> None:
    """Headers and padding too; and the answer comes before anything of the file is parsed."""
    whole = bytearray(signed.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    changed = signed.with_name("changed.tcpkg")
    changed.write_bytes(whole)
    shutil.copy(signature_path(signed), signature_path(changed))
    assert "of other bytes" in refused(changed, key.public)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0"])
def test_a_file_cut_or_extended_is_refused(signed: Path, key: Key, change: Any) -> None:
    signed.write_bytes(change(signed.read_bytes()))
    assert "of other bytes" in refused(signed, key.public)


def edited(path: Path, **fields: Any) -> None:
    place = signature_path(path)
    place.write_text(json.dumps(json.loads(place.read_bytes()) | fields))


def test_a_digest_that_is_not_what_was_signed_is_refused(signed: Path, key: Key) -> None:
    """The digest in the signature file is only said; what counts is the signature."""
    data = bytearray(signed.read_bytes())
    data[-1] ^= 1
    signed.write_bytes(data)
    edited(signed, sha256=hashlib.sha256(data).hexdigest())
    assert f"the signature by key {key.id} is not valid" in refused(signed, key.public)


def test_a_signature_made_for_another_purpose_does_not_count(signed: Path, key: Key) -> None:
    private = serialization.load_pem_private_key(key.private.read_bytes(), None)
    assert isinstance(private, ed25519.Ed25519PrivateKey)
    bare = private.sign(hashlib.sha256(signed.read_bytes()).digest())
    edited(signed, signatures=[{"key": key.id, "value": base64.b64encode(bare).decode()}])
    assert "is not valid" in refused(signed, key.public)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b"x" * (1 << 20) + b"x",
        b'{"format": "tcexport signature 2", "sha256": "", "signatures": []}',
    ],
)
def test_what_is_no_signature_is_refused(signed: Path, key: Key, text: bytes) -> None:
    signature_path(signed).write_bytes(text)
    refused(signed, key.public)


@pytest.mark.parametrize("count", [0, 2, 17])
def test_none_or_too_many_signatures_are_refused(signed: Path, key: Key, count: int) -> None:
    (one,) = json.loads(signature_path(signed).read_bytes())["signatures"]
    edited(signed, signatures=[one] * count)
    assert "none, too many, or two" in refused(signed, key.public)


def test_a_folder_or_a_pipe_in_place_of_the_signature_is_refused(signed: Path, key: Key) -> None:
    place = signature_path(signed)
    place.unlink()
    os.mkfifo(place)
    assert "regular file" in refused(signed, key.public)
    place.unlink()
    place.mkdir()
    refused(signed, key.public)


# --- revocation -----------------------------------------------------------------------------------


def test_a_revoked_key_or_bundle_is_refused(signed: Path, key: Key, tmp_path: Path) -> None:
    listed = tmp_path / "trusted.txt"
    digest = hashlib.sha256(signed.read_bytes()).hexdigest()
    for what in (key.id, digest):
        listed.write_text(f"# ours\n{key.public.read_text()}\nrevoked {what} stolen  # in May\n")
        assert "revoked" in refused(signed, listed, "TC409")
        assert "stolen" in refused(signed, listed, "TC409")
    listed.write_text(f"{key.public.read_text()}revoked {'0' * 64}\n")
    load(signed, require_signature=listed)


def test_a_second_key_takes_over_from_a_revoked_one(
    signed: Path, key: Key, other: Key, tmp_path: Path
) -> None:
    listed = tmp_path / "revoked.txt"
    listed.write_text(f"{other.public.read_text()}\nrevoked {key.id} rotated\n")
    refused(signed, [key.public, listed], "TC409")
    signed_by(signed, other)
    load(signed, require_signature=[key.public, listed])
    load(signed, require_signature=key.public)


def test_signing_again_after_a_change_drops_what_was_signed_before(
    signed: Path, gathered: Path, key: Key, other: Key
) -> None:
    shutil.copy(gathered, signed)
    signed_by(signed, other)
    names = [each["key"] for each in json.loads(signature_path(signed).read_bytes())["signatures"]]
    assert names == [other.id]


# --- keys -----------------------------------------------------------------------------------------


def test_what_is_no_key_is_never_passed_over(signed: Path, key: Key, tmp_path: Path) -> None:
    curve = ec.generate_private_key(ec.SECP256K1()).public_key()
    pem = curve.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    os.mkfifo(tmp_path / "pipe")
    for keys, message in (
        ([], "no public key"),
        (b"", "no public key"),
        (f"revoked {key.id} x".encode(), "no public key"),
        (pem, "neither an Ed25519 key nor one on P-256"),
        (key.private, "private key"),
        (key.public.read_bytes() + b"revokd 12\n", "neither a PEM key nor"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key"),
        (b"\xff" * 31, "not text"),
        (tmp_path / "nowhere", "no such file"),
        (tmp_path, "directory"),
        (tmp_path / "pipe", "regular file"),
        ([3], "not a int"),
    ):
        with pytest.raises(UsageError, match="TC014") as caught:
            load(signed, require_signature=keys)
        assert message in str(caught.value)


def test_the_id_of_a_key_is_the_digest_of_its_bytes(key: Key) -> None:
    assert key.id == key_id(key.raw) == hashlib.sha256(key.raw).hexdigest()


# --- what was verified is what runs ---------------------------------------------------------------


def test_what_happens_to_the_file_after_it_was_seen_changes_nothing(
    signed: Path, gathered: Path
) -> None:
    """The file is read once: written over in place between the check and the use."""
    seen: list[bytes] = []

    def accept(path: Path, data: memoryview) -> None:
        seen.append(bytes(data))
        with open(path, "r+b") as file:
            file.write(gathered.read_bytes()[: len(data)])

    before = signed.read_bytes()
    with open_bundle(signed, accept=accept) as bundle:
        bundle.verify()
        assert bundle.manifest.model == "added"
        assert seen == [before] != [signed.read_bytes()]


def test_a_signed_bundle_survives_that_its_file_is_cut_short(signed: Path, key: Key) -> None:
    script = """
from tcexport.runtime import load
model = load(path, require_signature=more[0])
open(path, "r+b").truncate(0)
print(model(np.ones((2, 4), np.float32)).tolist())
"""
    assert python(script, signed, key.public) == str((X + WEIGHT).tolist())


def test_without_cryptography_nothing_is_taken_for_signed(signed: Path, key: Key) -> None:
    script = """
sys.modules["cryptography"] = None
from tcexport.artifacts.errors import UsageError
from tcexport.runtime import load
load(path)
try:
    load(path, require_signature=more[0])
except UsageError as error:
    print(error)
"""
    answer = python(script, signed, key.public)
    assert "TC011" in answer and "pip install 'tcexport[sign]'" in answer
