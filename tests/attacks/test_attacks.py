"""Every attack is answered as it says, with little time and memory, and by `inspect` alike."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import BundleError
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import Seed, examine

from .attacks import ATTACKS, Attack
from .good import CORPUS, rich, small, write_corpus


@pytest.fixture(scope="module")
def seed() -> Seed:
    return Seed.read(CORPUS / "rich.tcpkg")


def test_the_files_that_the_attacks_start_from_are_sound() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {"rich.tcpkg", "small.tcpkg"}
    for path in CORPUS.iterdir():
        assert examine(path).startswith("read")


@pytest.mark.parametrize("attack", ATTACKS, ids=[each.name for each in ATTACKS])
def test_an_attack_is_refused(attack: Attack, seed: Seed, tmp_path: Path) -> None:
    path = tmp_path / "m.tcpkg"
    path.write_bytes(attack.make(seed))
    start = time.process_time()
    with pytest.raises(BundleError) as caught:
        load(path)
    seconds = time.process_time() - start
    tracemalloc.start()  # which makes it five times slower
    with pytest.raises(BundleError, match=caught.value.code):
        load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    message = str(caught.value)
    assert caught.value.code == attack.code, message
    assert any(words in message for words in attack.words.split("|")), message
    assert message.isprintable() or set(filter(lambda c: not c.isprintable(), message)) == {"\n"}
    assert seconds < 5 and peak < 256 << 20


def test_names_are_told_apart() -> None:
    assert len({each.name for each in ATTACKS}) == len(ATTACKS) > 90


def test_thousands_of_damaged_files_are_refused_or_read() -> None:
    command = [sys.executable, "-m", "tcexport.tools.fuzz_reader", "--runs", "3000"]
    done = subprocess.run(
        [*command, "--corpus", str(CORPUS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all refused or read" in done.stdout
    assert {"TC401", "TC402", "TC403", "read"} <= set(done.stdout.split())


def test_the_corpus_is_what_is_written_today(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    for manifest in (small(), rich()):
        name = f"{manifest.model.lower()}.tcpkg"
        assert (tmp_path / name).read_bytes() == (CORPUS / name).read_bytes()
        with open_bundle(CORPUS / name) as bundle:
            assert bundle.manifest.model == manifest.model
