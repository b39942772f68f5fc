"""``keygen``, ``sign``, ``verify-signature`` and ``run --require-signature``, as they are typed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tcexport.tools import cli

from ..runtime.conftest import added, code  # noqa: F401  (fixtures)


class Typed:
    def __init__(self, capsys: pytest.CaptureFixture[str], *args: object) -> None:
        self.status = cli.run_command([str(each) for each in args])
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: Path) -> Path:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    shutil.copy(added, "m.tcpkg")
    np.save("x.npy", np.ones((2, 4), np.float32))
    return tmp_path


def test_from_a_new_key_to_a_call(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Typed(capsys, "keygen", "team")
    assert made.status == 0
    assert (folder / "team.key").stat().st_mode & 0o777 == 0o600
    again = Typed(capsys, "keygen", "team")
    assert again.status == 2 and "TC012" in again.err and "there already" in again.err

    run = ("run", "m.tcpkg", "--input", "x=x.npy", "--require-signature", "team.pub")
    before = Typed(capsys, *run)
    assert before.status == 3 and "TC408" in before.err
    assert Typed(capsys, "verify-signature", "m.tcpkg", "--key", "team.pub").status == 3

    signed = Typed(capsys, "sign", "m.tcpkg", "--key", "team.key")
    digest = hashlib.sha256(Path("m.tcpkg").read_bytes()).hexdigest()
    assert signed.status == 0 and digest in signed.out

    asked = ("verify-signature", "m.tcpkg", "--key", "team.pub", "--format", "json")
    answer = json.loads(Typed(capsys, *asked).out)
    assert answer["sha256"] == digest and answer["key"] in made.out
    assert Typed(capsys, *run).status == 0

    Path("m.tcpkg").write_bytes(Path("m.tcpkg").read_bytes() + b"\0")
    failed = Typed(capsys, *asked)
    assert failed.status == 3
    assert json.loads(failed.out)["error"]["diagnostics"][0]["code"] == "TC408"


def test_a_damaged_bundle_is_not_signed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Typed(capsys, "keygen", "team")
    data = bytearray(Path("m.tcpkg").read_bytes())
    data[len(data) // 2] ^= 1
    Path("m.tcpkg").write_bytes(data)
    answer = Typed(capsys, "sign", "m.tcpkg", "--key", "team.key")
    assert answer.status == 3 and "TC402" in answer.err
    assert not Path("m.tcpkg.sig").exists()


def test_a_public_key_does_not_sign(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Typed(capsys, "keygen", "team")
    answer = Typed(capsys, "sign", "m.tcpkg", "--key", "team.pub")
    assert answer.status == 2 and "TC014" in answer.err


def test_a_key_with_a_passphrase(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["secret", "wrong", "secret"])
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(typed))
    assert Typed(capsys, "keygen", "team", "--passphrase").status == 0
    assert b"ENCRYPTED" in Path("team.key").read_bytes()
    wrong = Typed(capsys, "sign", "m.tcpkg", "--key", "team.key")
    assert wrong.status == 2 and "TC014" in wrong.err
    assert Typed(capsys, "sign", "m.tcpkg", "--key", "team.key").status == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_keys_of_openssl_serve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "openssl genpkey -algorithm ed25519 -out o.key",
        "openssl pkey -in o.key -pubout -out o.pub",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    assert Typed(capsys, "sign", "m.tcpkg", "--key", "o.key").status == 0
    assert Typed(capsys, "verify-signature", "m.tcpkg", "--key", "o.pub").status == 0
