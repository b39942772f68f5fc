"""The hosts without Python refuse what Python's refuses, before any code is loaded."""

from __future__ import annotations

import random
import re
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tcexport.artifacts.errors import BundleError
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import Seed, mutate

from ..attacks.attacks import ATTACKS, Attack
from ..attacks.good import CORPUS
from .hosts import CPP
from .test_c import c_answers, library  # noqa: F401

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def answers(host: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What C says to each attack, all in one process: none ends it, and none has it load code."""
    folder, seed = tmp_path_factory.mktemp("attacks"), Seed.read(CORPUS / "rich.tcpkg")
    steps = []
    for attack in ATTACKS:
        path = folder / f"{attack.name}.tcpkg"
        path.write_bytes(attack.make(seed))
        steps.append(("load", (str(path), {})))
    got = c_answers(host.with_name("libtcexport.so"), *steps)
    return {attack.name: answer for attack, answer in zip(ATTACKS, got, strict=True)}


@pytest.mark.parametrize("attack", ATTACKS, ids=[each.name for each in ATTACKS])
def test_an_attack_is_refused_as_by_python(attack: Attack, answers: dict[str, Any]) -> None:
    what, code, text, kind = answers[attack.name]
    assert (what, code, kind) == ("error", attack.code, 3), text
    # The code in the attacks' files is none: had it come to loading it, the error would be TC404.
    assert any(words in text for words in attack.words.split("|")), text
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}


def test_damaged_files_are_answered_as_by_python(library: Path, tmp_path: Path) -> None:  # noqa: F811
    seeds = [Seed.read(path) for path in sorted(CORPUS.glob("*.tcpkg"))]
    steps: list[tuple[str, Any]] = []
    wanted = []
    for number in range(400):
        path = tmp_path / f"{number}.tcpkg"
        path.write_bytes(mutate(seeds, random.Random(f"c:{number}")))
        steps.append(("load", (str(path), {})))
        with pytest.raises(BundleError) as caught:  # sound ones have no code that can be loaded
            load(path)
        wanted.append(caught.value)
    loading = {"TC404", "TC405"}  # this process has a runtime, the other one has none
    for step, got, error in zip(steps, c_answers(library, *steps), wanted, strict=True):
        alike = got[1] == error.code or {got[1], error.code} <= loading
        # Numbers beyond 64 bits are refused by C wherever they stand.
        assert alike or "number out of range" in got[2], (step, got, str(error))
    assert {"TC401", "TC402", "TC404"} <= {error.code for error in wanted}


def test_what_can_be_shown_is_what_python_shows() -> None:
    """The table of `IsPrintable`, but for what Unicode has not given to anything yet."""
    text = (CPP / "tcexport" / "text.hpp").read_text()
    table = text.partition("others[] = {")[2].partition("};")[0]
    ends = [int(each, 16) for each in re.findall("0x[0-9A-F]+", table)]
    ranges = list(zip(ends[::2], ends[1::2], strict=True))
    assert len(ranges) > 20
    for code in range(0x110000):
        if unicodedata.category(chr(code)) != "Cn":
            hidden = any(low <= code <= high for low, high in ranges)
            assert hidden != chr(code).isprintable(), hex(code)
