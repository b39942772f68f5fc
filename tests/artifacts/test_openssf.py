"""Signatures of OpenSSF model signing: made, verified as model-signing's own, and refused."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import BundleError, UsageError
from tcexport.artifacts.openssf import openssf_path
from tcexport.artifacts.signature import key_list, sign, signature_path, verify_signature
from tcexport.tools.sign import command as sign_command
from tcexport.tools.verify_signature import command as verify_command

HERE = Path(__file__).parent
CORPUS = Path(__file__).parents[1] / "attacks" / "corpus"
KEPT = Path(__file__).parents[1] / "compatibility" / "2026-11-30" / "plus_one.tcpkg.xz"


class Elliptic:
    """A key pair in files of its own."""

    def __init__(self, folder: Path, name: str, curve: Any = None, secret: bytes = b"") -> None:
        key = ec.generate_private_key(curve or ec.SECP256R1())
        self.private, self.public = folder / f"{name}.key", folder / f"{name}.pub"
        guard = forms.BestAvailableEncryption(secret) if secret else forms.NoEncryption()
        self.private.write_bytes(
            key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.TraditionalOpenSSL, guard)
        )
        self.public.write_bytes(
            key.public_key().public_bytes(
                forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
            )
        )
        (self.id,) = key_list(self.public).elliptic


@pytest.fixture
def key(tmp_path: Path) -> Elliptic:
    return Elliptic(tmp_path, "mine")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "m.tcpkg"
    shutil.copy(min(CORPUS.glob("*.tcpkg")), path)
    return path


def digest_of(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def verified(path: Path, *keys: Any) -> str:
    """The key that signed it, by `open_bundle`, as `load` asks."""
    trusted = key_list(list(keys))
    found: list[str] = []

    def accept(where: Path, data: memoryview) -> None:
        found.append(verify_signature(where, hashlib.sha256(data).digest(), trusted))

    open_bundle(path, accept=accept).close()
    return found[0]


def refused(path: Path, *keys: Any, code: str = "TC408") -> str:
    with pytest.raises(BundleError) as caught:
        verified(path, *keys)
    assert caught.value.code == code
    return str(caught.value)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_what_a_trusted_key_signed_is_trusted(bundle: Path, tmp_path: Path, curve: Any) -> None:
    mine, other = Elliptic(tmp_path, "a", curve), Elliptic(tmp_path, "b", curve)
    assert "it is not signed: there is no m.tcpkg.sigstore.json" in refused(bundle, mine.public)
    place, name = sign(bundle, digest_of(bundle), mine.private)
    assert (place, name) == (openssf_path(bundle), mine.id)
    assert verified(bundle, mine.public) == mine.id
    assert verified(bundle, other.public, mine.public.read_bytes()) == mine.id
    assert f"trusted: key {other.id}" in refused(bundle, other.public)


def test_what_model_signing_wrote_is_trusted(tmp_path: Path) -> None:
    """`model_signing sign key plus_one.tcpkg …` of version 1.1.1, kept."""
    path = tmp_path / "plus_one.tcpkg"
    path.write_bytes(lzma.decompress(KEPT.read_bytes()))
    shutil.copy(HERE / "openssf" / "model-signing-1.1.1.sigstore.json", openssf_path(path))
    assert len(verified(path, HERE / "openssf" / "key.pub")) == 64


def test_model_signing_takes_what_was_written_here(bundle: Path, key: Elliptic) -> None:
    pytest.importorskip("model_signing", reason="pip install model-signing")
    sign(bundle, digest_of(bundle), key.private)

    def their_answer() -> int:
        asked = ["verify", "key", bundle, "--public_key", key.public]
        done = subprocess.run(
            [sys.executable, "-m", "model_signing", *asked, "--signature", openssf_path(bundle)],
            capture_output=True,
        )
        return done.returncode

    assert their_answer() == 0
    bundle.write_bytes(bundle.read_bytes() + b"x")
    assert their_answer() != 0


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_byte_of_the_file_is_signed(bundle: Path, key: Elliptic, data: st.DataObject) -> None:
    sign(bundle, digest_of(bundle), key.private)
    whole = bytearray(bundle.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    changed = bundle.with_name("changed.tcpkg")
    changed.write_bytes(whole)
    shutil.copy(openssf_path(bundle), openssf_path(changed))
    assert "of other bytes" in refused(changed, key.public)


def edited(path: Path, key: Elliptic | None, change: Any) -> None:
    """The signature with its statement changed, and signed again where there is a key."""
    place = openssf_path(path)
    found = json.loads(place.read_bytes())
    envelope = found["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(found, statement)
    payload = json.dumps(statement).encode()
    envelope["payload"] = base64.b64encode(payload).decode()
    if key is not None:
        kind = b"application/vnd.in-toto+json"
        text = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        private: Any = forms.load_pem_private_key(key.private.read_bytes(), None)
        from cryptography.hazmat.primitives.hashes import SHA256

        envelope["signatures"][0]["sig"] = base64.b64encode(
            private.sign(text, ec.ECDSA(SHA256()))
        ).decode()
    place.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found, said: None, ""),
        (lambda found, said: found.update(more=1), ""),  # the format has more fields
        (lambda found, said: said.update(predicateType="x"), "of another kind"),
        (lambda found, said: said.update(_type="x"), "of another kind"),
        (lambda found, said: said.pop("predicate"), "no statement"),
        (
            lambda found, said: said["predicate"]["serialization"].update(method="shards"),
            "of another kind",
        ),
        (lambda found, said: said["predicate"]["resources"].append(
            {"name": "x", "algorithm": "sha256", "digest": "0"}), "not one file"),
        (lambda found, said: said["predicate"]["resources"][0].update(name="m.tcpkg"), "one file"),
        (lambda found, said: said["predicate"]["resources"][0].update(algorithm="md5"), "one file"),
        (lambda found, said: said["predicate"]["resources"].clear(), "not one file"),
        (lambda found, said: said["predicate"]["resources"][0].update(digest="0" * 64), "of other"),
        (lambda found, said: said["subject"][0]["digest"].update(sha256="0"), "of other bytes"),
        (lambda found, said: said["subject"].clear(), "of other bytes"),
        (lambda found, said: found["dsseEnvelope"].update(payloadType="text/plain"), "not valid"),
        (lambda found, said: found.pop("dsseEnvelope"), "KeyError"),
    ],
)  # fmt: skip
def test_only_one_file_with_its_digest_counts_as_signed(
    bundle: Path, key: Elliptic, change: Any, words: str
) -> None:
    """Even where a trusted key signed something else."""
    sign(bundle, digest_of(bundle), key.private)
    if words == "KeyError":
        place = openssf_path(bundle)
        found = json.loads(place.read_bytes())
        change(found, None)
        place.write_text(json.dumps(found))
        assert "not by a key" in refused(bundle, key.public)
        return
    edited(bundle, key, change)
    if words:
        assert words in refused(bundle, key.public)
    else:
        assert verified(bundle, key.public) == key.id


def test_a_statement_that_was_changed_after_signing_is_refused(bundle: Path, key: Elliptic) -> None:
    sign(bundle, digest_of(bundle), key.private)
    bundle.write_bytes(bundle.read_bytes() + b"x")

    def forge(found: Any, said: Any) -> None:
        digest = digest_of(bundle)
        said["predicate"]["resources"][0]["digest"] = digest.hex()
        said["subject"][0]["digest"]["sha256"] = hashlib.sha256(digest).hexdigest()

    edited(bundle, None, forge)
    assert "is not valid" in refused(bundle, key.public)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[" * 100_000, b"\xff", b"x" * (1 << 20) + b"x", b'{"mediaType": 3}']
)
def test_what_is_no_signature_is_refused(bundle: Path, key: Elliptic, text: bytes) -> None:
    openssf_path(bundle).write_bytes(text)
    refused(bundle, key.public)


def test_signatures_without_a_key_are_refused(bundle: Path, key: Elliptic) -> None:
    """By a certificate: there is no authority to ask."""
    sign(bundle, digest_of(bundle), key.private)
    place = openssf_path(bundle)
    found = json.loads(place.read_bytes())
    found["verificationMaterial"] = {"certificate": {"rawBytes": "AAAA"}, "tlogEntries": []}
    place.write_text(json.dumps(found))
    assert "not by a key" in refused(bundle, key.public)


def test_revoked_keys_and_bundles_are_refused(bundle: Path, key: Elliptic, tmp_path: Path) -> None:
    sign(bundle, digest_of(bundle), key.private)
    listed = tmp_path / "listed"
    for what in (key.id, digest_of(bundle).hex()):
        listed.write_text(f"{key.public.read_text()}revoked {what} stolen\n")
        assert "stolen" in refused(bundle, listed, code="TC409")


def test_either_kind_of_signature_will_do(bundle: Path, key: Elliptic, tmp_path: Path) -> None:
    ours = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "ours.key", ours.public_key().public_bytes_raw()
    private.write_bytes(
        ours.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    )
    assert "there is no m.tcpkg.sig " in refused(bundle, public, key.public)
    sign(bundle, digest_of(bundle), key.private)
    assert verified(bundle, public, key.public) == key.id
    assert "there is no m.tcpkg.sig " in refused(bundle, public)
    sign(bundle, digest_of(bundle), private)
    openssf_path(bundle).write_bytes(b"{}")
    assert verified(bundle, public, key.public) == hashlib.sha256(public).hexdigest()
    signature_path(bundle).write_bytes(b"{}")
    refused(bundle, public, key.public)


def test_the_commands_sign_and_verify(bundle: Path, tmp_path: Path) -> None:
    key = Elliptic(tmp_path, "guarded", secret=b"secret")
    asked = [str(bundle), "--key", str(key.private)]
    done = CliRunner().invoke(sign_command, asked, input="secret\n")
    assert done.exit_code == 0, done.output
    assert "m.tcpkg.sigstore.json: sha256" in done.output and key.id in done.output
    done = CliRunner().invoke(verify_command, [str(bundle), "--key", str(key.public)])
    assert done.exit_code == 0 and key.id in done.output


def test_keys_on_other_curves_are_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"TC014.*neither an Ed25519 key nor"):
        Elliptic(tmp_path, "odd", ec.SECP256K1())
    with pytest.raises(UsageError, match=r"TC014.*neither an Ed25519 key nor"):
        sign(bundle, digest_of(bundle), tmp_path / "odd.key")
