"""The hosts without Python refuse what Python's refuses, before any code is loaded."""

from __future__ import annotations

import json
import random
import re
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tcexport.artifacts.errors import BundleError
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import Seed, described, mutate, sealed

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


# --- what neither host runs, and both hold a file to --------------------------------------------------

SOURCES = [
    {"name": "fc.weight", "dtype": "float32", "shape": [8, 4], "aliases": ["tied"]},
    {"name": "fc.bias", "dtype": "float32", "shape": [8], "frozen": "0" * 64, "reason": "a size"},
]
# Recipes, and what is wrong with each: "" where nothing is.
RECIPES: list[tuple[Any, str]] = [
    ("fc.weight", ""),
    (["transpose", "tied", [1, 0]], ""),
    (["cast", ["reshape", ["rows", "fc.weight", 0, 4], [2, 16]], "bfloat16"], ""),
    (["gate_panels", ["panels", "fc.weight", 16], 4, 2, 8], ""),
    (["norm_weight", "fc.weight", "fc.bias", None, 1e-5], ""),
    (["norm_bias", None, "fc.bias", "fc.bias", None, None, 1], ""),
    ("nowhere", "'nowhere', which is no parameter"),
    (["transpose", "it's", [1, 0]], "which is no parameter"),
    ([], "not a recipe: []"),
    (None, "not a recipe: None"),
    ({"a": [1, -2.5e-7, True, None, "b\x1b'"]}, "not a recipe: {'a': [1, -2.5e-07, True"),
    (["norm_weight", None, "fc.bias", None, 1e-5], "not a recipe: None"),
    (["eval", "fc.weight"], "unknown step 'eval'"),
    ([["cast"], "fc.weight"], "unknown step ['cast']"),
    ([7], "unknown step 7"),
    (["cast", "fc.weight", "object"], "step 'cast' with"),
    (["cast", "fc.weight", ["float32"]], "step 'cast' with"),
    (["cast"], "step 'cast' with []"),
    (["rows", "fc.weight", 0], "step 'rows' with"),
    (["rows", "fc.weight", 0, 2**62], "step 'rows' with"),
    (["rows", "fc.weight", True, 4], "step 'rows' with"),
    (["transpose", "fc.weight", [0, 2]], "step 'transpose' with"),
    (["transpose", "fc.weight", [0, 0]], "step 'transpose' with"),
    (["reshape", "fc.weight", [-1]], "step 'reshape' with"),
    (["reshape", "fc.weight", [1] * 33], "step 'reshape' with"),
    (["reshape", "fc.weight", 4], "step 'reshape' with"),
    (["panels", "fc.weight", 0], "step 'panels' with"),
    (["panels", "fc.weight", 1025], "step 'panels' with"),
    (["gate_panels", "fc.weight", 2**61, 2**61, 1024], "step 'gate_panels' with"),
    (["gate_panels", "fc.weight", 4, 2, 7], "step 'gate_panels' with"),
    (["norm_weight", "fc.weight", "fc.bias", None, "1e-5"], "step 'norm_weight' with"),
    (["norm_weight", "fc.weight", "fc.bias", None, False], "step 'norm_weight' with"),
]
CODE = {
    "architectures": ["sm_80", "sm_90"], "ptx": "compute_90", "driver": "13.0", "ptx_driver": "13.0",
    "compiler": "nvcc", "kernels": ["main_kernel"],
}  # fmt: skip
# Changes of `CODE`, and what is wrong with each.
CUDA: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"ptx": "", "ptx_driver": "none"}, ""),
    ({"architectures": [], "driver": "none"}, ""),
    ({"architectures": ["sm_120"], "driver": "999.99"}, ""),
    ({"architectures": [], "ptx": ""}, "holds neither machine code nor PTX"),
    ({"architectures": ["sm_90", "compute_80"]}, "compute_80 where sm_… belongs"),
    ({"ptx": "sm_90"}, "sm_90 where compute_… belongs"),
    ({"architectures": ["sm_9"]}, "'sm_9' is no CUDA architecture"),
    ({"architectures": ["sm_1234"]}, "is no CUDA architecture"),
    ({"architectures": ["sm_080"]}, "is no CUDA architecture"),
    ({"architectures": ["sm_90a"]}, "is no CUDA architecture"),
    ({"architectures": ["sm_9\u0663"]}, "is no CUDA architecture"),
    ({"architectures": ["x" * 200]}, "xxx"),
    ({"architectures": [""]}, "'' is no CUDA architecture"),
    ({"driver": "13"}, "'13' is no version of CUDA"),
    ({"driver": "13.0\n"}, "is no version of CUDA"),
    ({"driver": "013.0"}, "is no version of CUDA"),
    ({"ptx_driver": "13.123"}, "is no version of CUDA"),
    ({"ptx_driver": "1\u0663.0"}, "is no version of CUDA"),
]


def test_parameters_and_gpu_code_are_held_alike(library: Path, tmp_path: Path) -> None:  # noqa: F811
    """In the same words; but for what msgspec says of a field's type, which has words of its own."""
    seed = Seed.read(CORPUS / "small.tcpkg")
    target = json.loads(seed.head)["targets"][0]
    heads: list[tuple[dict[str, Any], str]] = []
    for recipe, wrong in RECIPES:
        heads.append(({"parameters": {"sources": SOURCES, "recipes": {"w": recipe}}}, wrong))
    deep: Any = "fc.weight"
    for depth in range(18):
        deep = ["cast", deep, "float32"]
        wrong = "not a recipe: ['cast'" if depth > 16 else ""
        heads.append(({"parameters": {"sources": SOURCES, "recipes": {"w": deep}}}, wrong))
    twice = {"sources": [*SOURCES, {**SOURCES[0], "name": "tied", "aliases": []}], "recipes": {}}
    heads.append(({"parameters": twice}, "two parameters of one name"))
    for change in ({"sources": 3}, {"recipes": []}, {"code": "x"}, {"sources": [{"name": "w"}]},
                   {"sources": [{**SOURCES[0], "shape": ["8"]}]},
                   {"sources": [{**SOURCES[0], "reason": 1}]}):  # fmt: skip
        heads.append(({"parameters": {"sources": SOURCES, "recipes": {}, **change}}, "$."))
    for change, wrong in CUDA:
        heads.append(({"targets": [target, {**target, "cuda": {**CODE, **change}}]}, wrong))
    for change in ({"kernels": [1]}, {"compiler": None}, {"fatbin": ""}, {"ptx": 90}):
        heads.append(({"targets": [target, {**target, "cuda": {**CODE, **change}}]}, "$."))
    long = {**target, "name": "n" * 200, "cuda": {**CODE, "driver": ""}}
    heads.append(({"targets": [long]}, "'' is no version of CUDA"))
    steps, wanted = [], []
    for number, (fields, wrong) in enumerate(heads):
        path = tmp_path / f"{number}.tcpkg"
        head = {**json.loads(seed.head), **fields}
        path.write_bytes(sealed(described(head, seed.members), seed.members))
        steps.append(("load", (str(path), {"device": "cpu"})))
        with pytest.raises(BundleError) as caught:  # what is sound has no code that can be loaded
            load(path, device="cpu")
        assert wrong in str(caught.value) and (caught.value.code == "TC401") == bool(wrong)
        wanted.append(caught.value)
    for (fields, wrong), got, error in zip(heads, c_answers(library, *steps), wanted, strict=True):
        if not wrong:
            assert got[1] in ("TC404", "TC405"), (fields, got)
        else:
            assert got[1] == error.code, (fields, got)
            assert wrong == "$." or got[2] == str(error), fields


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
