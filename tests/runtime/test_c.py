"""The plain C interface: the same numbers and the same refusals as Python's, and sessions."""

from __future__ import annotations

import ctypes
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import tcexport
from tcexport.artifacts.contract import Fixed, TensorInput, TensorOutput
from tcexport.artifacts.errors import TcexportError
from tcexport.artifacts.manifest import Entry
from tcexport.runtime import load

from .bundles import contract_of, dim, pack
from .conftest import WEIGHT
from .hosts import CPP, VIOLATIONS, call
from .test_cpp import counter  # noqa: F401
from .test_signature import Key, signed_by

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")

KINDS = {"TC0": 2, "TC3": 4, "TC4": 3, "TC6": 5}


@pytest.fixture
def library(host: Path) -> Path:
    return host.with_name("libtcexport.so")


def c_answers(library: Path, *steps: tuple[str, Any]) -> list[Any]:
    """What the steps (see c_host.py) answer, in one process that has neither tcexport nor tvm_ffi."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("c_host.py"), library],
        input=pickle.dumps(laid_out(steps)),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    answers: list[Any] = pickle.loads(done.stdout)
    return answers


def laid_out(value: Any) -> Any:
    """The same with arrays as they lie in memory, strides and alignment and all: pickle would write a
    contiguous copy. (c_host.py makes arrays of them again.)"""
    if isinstance(value, np.ndarray):
        reach = [
            stride * (size - 1) for size, stride in zip(value.shape, value.strides, strict=True)
        ]
        low = sum(min(each, 0) for each in reach) if value.size else 0
        high = sum(max(each, 0) for each in reach) + value.itemsize if value.size else 0
        place = value.ctypes.data + low
        data = ctypes.string_at(place, high - low)
        return {"laid": (data, place % 64, -low, value.shape, value.strides, value.dtype.str)}
    if isinstance(value, dict):
        return {key: laid_out(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(laid_out(each) for each in value)
    return value


def rows(n: int) -> dict[str, Any]:
    return {"x": np.ones((n, 4), np.float32)}


def counted(answer: Any) -> dict[str, Any]:
    """Metrics from C in the form of Python's."""
    found: dict[str, Any] = {"violations": {}, "guards": {}, "variants": {}}
    for name, (kind, label, count, real) in answer[1]:
        if name in found and isinstance(found[name], dict):
            found[name][label] = count
        else:
            assert not label
            found[name] = real if kind == "float" else count
    return found


def python_answer(call: Any) -> Any:
    """The same form of answer from Python."""
    try:
        return "done", call()
    except TcexportError as error:
        return "error", error.code, str(error), KINDS[error.code[:3]]


def test_the_header_is_plain_c_and_every_function_of_it_is_there(library: Path) -> None:
    declared = set(re.findall(r"\b(tcexport_\w+)\(", (CPP / "tcexport.h").read_text()))
    table = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    shown = {line.split()[-1] for line in table.splitlines()}
    assert declared <= shown
    assert not [name for name in shown - declared if "tcexport" in name]
    for standard in ("-std=c99", "-std=c11"):
        compiled = subprocess.run(
            ["cc", standard, "-Wall", "-Werror", "-fsyntax-only", f"-I{CPP}", "-isystem",
             _dlpack(), "-x", "c", "-"],
            input='#include "tcexport.h"\n', text=True, capture_output=True,
        )  # fmt: skip
        assert compiled.returncode == 0, compiled.stderr


def _dlpack() -> str:
    asked = [sys.executable, "-m", "tvm_ffi.config", "--dlpack-includedir"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def test_violations_have_the_same_codes_and_words(library: Path, guarded: Path) -> None:
    model = load(guarded)
    good = call(3, 4, 2)
    calls = [inputs for inputs, _ in VIOLATIONS] + [good]
    calls += [{k: v for k, v in good.items() if k != "ids"}, good | {"z": 1}]
    answers = c_answers(library, ("load", (str(guarded), {})), *(("call", c) for c in calls))[1:]
    codes = [code for _, code in VIOLATIONS] + ["", "TC302", "TC302"]
    for inputs, code, got in zip(calls, codes, answers, strict=True):
        wanted = python_answer(lambda inputs=inputs: model(**inputs))
        assert got[0] == wanted[0], got
        if got[0] == "error":
            assert (got[1], got[3]) == (wanted[1], wanted[3]) == (code, 4)
            # What is missing, unknown or no tensor has other words where arguments come flat.
            assert got[2] == wanted[2] or code in ("TC302", "TC303")
        else:
            out, size, text = wanted[1]
            assert not code
            np.testing.assert_array_equal(dict(got[1])["out"], out)
            assert dict(got[1])["size"] == ("int", str(size), size, 0.0)
            assert dict(got[1])["text"][:2] == ("str", text)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 42), st.sampled_from((2, 4, 8, 12, 21)), st.integers(-6, 6)),
        min_size=30,
        max_size=60,
    )
)
def test_any_sizes_are_answered_alike(
    library: Path, guarded: Path, drawn: list[tuple[int, int, int]]
) -> None:
    model = load(guarded)
    calls = [call(*each) for each in drawn]
    answers = c_answers(library, ("load", (str(guarded), {})), *(("call", c) for c in calls))[1:]
    for inputs, got in zip(calls, answers, strict=True):
        wanted = python_answer(lambda inputs=inputs: model(**inputs))
        if wanted[0] == "error":
            assert got == wanted
        else:
            np.testing.assert_array_equal(dict(got[1])["out"], wanted[1][0])


@pytest.fixture(scope="session")
def scaled(tmp_path_factory: pytest.TempPathFactory, code: bytes) -> Path:
    """``x[n, 4] + WEIGHT``, with a number that was fixed."""
    terms = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4)), "scale": Fixed.of("scale", 1e22)},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
    )
    path = tmp_path_factory.mktemp("scaled") / "scaled.tcpkg"
    entry = Entry("main", (0,), (), ("w",), 1)
    return pack(path, terms, {"x86-64-v3": code}, {"w": WEIGHT}, entry=entry)


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=st.lists(st.floats(), min_size=100, max_size=200))
def test_numbers_are_compared_and_shown_as_python_does(
    library: Path, scaled: Path, drawn: list[float]
) -> None:
    model, x = load(scaled), np.ones((1, 4), np.float32)
    numbers = [*drawn, 1e22, 1e16, 9999999999999998.0, 1e-4, 1e-5, 0.0, -0.0, 5e-324, 1.0]
    calls = [{"x": x, "scale": number} for number in numbers]
    answers = c_answers(library, ("load", (str(scaled), {})), *(("call", c) for c in calls))[1:]
    for inputs, got in zip(calls, answers, strict=True):
        wanted = python_answer(lambda inputs=inputs: model(**inputs))
        assert got == wanted if wanted[0] == "error" else got[0] == "done"


def test_strides_and_unaligned_tensors_are_copied(library: Path, added: Path) -> None:
    x = np.arange(48, dtype=np.float32).reshape(4, 12)
    raw = np.zeros(4 * 3 * 4 + 4, np.uint8)[4:].view(np.float32).reshape(3, 4)
    views = [x[:, 4:8], x[:, ::3], x[::-1, :4], np.asfortranarray(x[:, :4]), raw]
    steps = [("call", {"x": view}) for view in views]
    answers = c_answers(library, ("load", (str(added), {})), *steps, ("metrics", None))
    for view, (kind, values) in zip(views, answers[1:], strict=False):
        assert kind == "done"
        np.testing.assert_array_equal(dict(values)["out"], view + WEIGHT)
    counts = {name: count for name, (_, _, count, _) in answers[-1][1]}
    sizes = sum(view.nbytes for view in views)
    assert (counts["copies"], counts["copied_bytes"]) == (len(views), sizes)


def test_what_is_malformed_is_refused_by_the_interface_itself(library: Path, added: Path) -> None:
    answers = c_answers(
        library,
        ("load", (str(added), {})),
        ("inputs", None),
        ("session", None),
        ("restore", {"x": 3}),
        ("restore", {"x": np.ones(3)}),
        ("restore", {}),
        ("session call", {"x": np.ones((2, 4), np.float32)}),
    )
    assert answers[1] == ("done", ["x"])
    assert [each[1] for each in answers[3:5]] == ["TC324", "TC324"]
    assert answers[5] == ("done", None) and answers[6][0] == "done"


def test_sessions_keep_state_apart_and_refuse_as_pythons_do(
    library: Path,
    counter: Path,  # noqa: F811
) -> None:
    x, here, beyond = np.ones((2, 4), np.float32), np.array([1]), np.array([4])
    steps: list[tuple[str, Any]] = [
        ("load", (str(counter), {})),
        ("call", {"x": x, "at": here}),
        ("session", None),
        ("session call", {"x": x, "at": here}),
        ("session call", {"x": x[:, :3].copy(), "at": here}),  # refused: nothing is changed
        ("session call", {"x": x, "at": here}),
        ("keep", None),
        ("session call", {"x": x, "at": beyond}),  # fails while it runs
        ("session call", {"x": x, "at": here}),
        ("keep", None),
        ("reset", None),
        ("session call", {"x": x, "at": here}),
        ("restore", {"total": np.full(4, 50, np.float32), "calls": np.array(9)}),
        ("session call", {"x": x, "at": here}),
        ("restore", {"total": np.zeros(4, np.float32)}),
        ("restore", {"total": np.zeros(4), "calls": np.array(9)}),
        ("restore", {"total": np.zeros(4, np.float32), "calls": np.array(9), "z": np.array(1)}),
        ("keep", None),
    ]
    model = load(counter)
    session = model.session()

    def in_python(what: str, argument: Any) -> Any:
        """One step."""
        if what == "call":
            return model(**argument)
        if what == "session call":
            return session(**argument)
        if what == "restore":
            return session.restore(argument)
        return {"keep": session.state, "reset": session.reset}[what]()

    for (what, argument), got in zip(steps, c_answers(library, *steps), strict=True):
        if what in ("load", "session"):
            assert got == ("done", None), got
            continue
        wanted = python_answer(lambda what=what, argument=argument: in_python(what, argument))
        assert got[0] == wanted[0], (what, got, wanted)
        if got[0] == "error":
            # What to try next is said in the host's own language.
            assert got[1] == wanted[1]
            assert got[2].partition("\n  try")[0] == wanted[2].partition("\n  try")[0]
        elif what == "keep":
            assert {name: value.tolist() for name, value in got[1]} == {
                name: value.tolist() for name, value in wanted[1].items()
            }
        elif what == "session call":
            for (_, mine), theirs in zip(got[1], wanted[1], strict=True):
                np.testing.assert_array_equal(mine, theirs)


class Dice(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + torch.randn_like(x), torch.randint(1, 7, (x.shape[0],))


def test_equal_seeds_give_equal_bits_in_every_language(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "dice.tcpkg"
    axes: dict[str, Any] = {"x": ("n", None)}
    tcexport.export(
        Dice().eval(), (torch.ones(3, 4),), axes=axes, dynamic={"n": (1, 8)}, out=path,
        targets=("cpu:x86-64-v3",),
    )  # fmt: skip
    x, model = {"x": np.ones((3, 4), np.float32)}, load(path)
    session = model.session()
    steps: list[tuple[str, Any]] = [
        ("call", x),
        ("session call", x),
        *(("seed", 1234), ("session call", x), ("keep", None), ("session call", x)),
        *(("seed", -5), ("session call", x), ("reset", None), ("session call", x)),
    ]
    answers = c_answers(library, ("load", (str(path), {})), ("session", None), *steps)[2:]
    in_python = {
        "call": lambda each: model(**each),
        "session call": lambda each: session(**each),
        "seed": session.seed,
        "keep": lambda _: session.state(),
        "reset": lambda _: session.reset(),
    }
    for (what, argument), got in zip(steps, answers, strict=True):
        wanted = python_answer(lambda what=what, argument=argument: in_python[what](argument))
        assert got[0] == wanted[0], (what, got, wanted)
        if got[0] == "error":
            assert got[1] == wanted[1]
            assert got[2].partition("\n  try")[0] == wanted[2].partition("\n  try")[0]
        elif what == "session call":
            for (_, mine), theirs in zip(got[1], wanted[1], strict=True):
                np.testing.assert_array_equal(mine, theirs)
        elif what == "keep":
            kept = got[1]
            assert {name: value.tolist() for name, value in kept} == {
                name: value.tolist() for name, value in wanted[1].items()
            }
    assert [each[1] for each in answers if each[0] == "error"] == ["TC321", "TC325", "TC325"]
    on = [
        ("load", (str(path), {})),
        ("session", None),
        ("restore", dict(kept)),
        ("session call", x),
    ]
    for (_, mine), (_, again) in zip(c_answers(library, *on)[-1][1], answers[5][1], strict=True):
        np.testing.assert_array_equal(mine, again)


def test_a_seed_is_for_models_that_draw(library: Path, counter: Path) -> None:  # noqa: F811
    answers = c_answers(library, ("load", (str(counter), {})), ("session", None), ("seed", 1))
    wanted = python_answer(lambda: load(counter).session().seed(1))
    assert answers[-1] == wanted and wanted[1] == "TC008"


def test_a_bundle_that_must_be_signed(library: Path, added: Path, tmp_path: Path) -> None:
    path, key = tmp_path / "m.tcpkg", Key(tmp_path, "mine")
    shutil.copy(added, path)
    before, none = c_answers(
        library,
        ("load", (str(path), {"require_signature": [str(key.public)]})),
        ("load", (str(path), {"require_signature": []})),
    )
    assert (before[1], before[3], none[1], none[3]) == ("TC408", 3, "TC014", 2)
    signed_by(path, key)
    answers = c_answers(
        library,
        ("load", (str(path), {"require_signature": [str(key.public)]})),
        ("call", {"x": np.ones((1, 4), np.float32)}),
    )
    assert [each[0] for each in answers] == ["done", "done"]


def test_the_example_in_c(host: Path, added: Path, tmp_path: Path) -> None:
    example = host.with_name("tcexport_c")

    def run(*words: Any) -> tuple[int, str, str]:
        done = subprocess.run([example, *map(str, words)], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    assert run(added, 2, 4) == (0, "out: 0 2 4 6 4 6 8 10\n", "")
    status, _, words = run(added, 65, 4)
    with pytest.raises(TcexportError) as caught:
        load(added)(np.ones((65, 4), np.float32))
    assert (status, words.strip()) == (4, str(caught.value))
    assert run(tmp_path, 1, 4)[0] == 3
    assert run(added)[0] == 2
    assert run(added, 2, 4, Key(tmp_path, "mine").public)[0] == 3
