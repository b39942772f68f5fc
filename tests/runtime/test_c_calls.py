"""Calls of the plain C interface that are wrong, odd, or many at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.contract import (
    DictNode,
    Fixed,
    IndexGuard,
    Leaf,
    ListNode,
    Origin,
    Parameter,
    TensorInput,
    TensorOutput,
    TupleNode,
)
from tcexport.artifacts.errors import GuardError
from tcexport.artifacts.manifest import Entry
from tcexport.runtime import load
from tcexport.runtime.threads import _left_behind

from .bundles import contract_of, dim, pack
from .conftest import WEIGHT
from .test_c import c_answers, library, python_answer  # noqa: F401
from .test_cpp import Both, both, counter  # noqa: F401

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_null_is_refused_wherever_something_is_needed(library: Path, added: Path) -> None:  # noqa: F811
    steps = [("load", (str(added), {})), ("session", None), ("nulls", None), ("call", {"x": X})]
    *_, (_, told), (status, values) = c_answers(library, *steps)
    assert {code for code, _ in told} == {"TC008"} and len(told) == 26
    assert all("NULL" in text or "without" in text for _, text in told), told
    assert status == "done" and (dict(values)["out"] == X + WEIGHT).all()


# Fields of the DLTensor of `X` that are others, and what is said to it.
ODD: list[tuple[dict[str, Any], str, str]] = [
    ({"data": None}, "TC008", "x: a tensor without data"),
    ({"ndim": -1}, "TC008", "x: a tensor without a shape"),
    ({"shape": (3, -4)}, "TC008", "x: a size below 0"),
    ({"shape": (2**62, 2**62)}, "TC008", "x: a tensor larger than memory can be"),
    ({"shape": (2**33, 2**33)}, "TC008", "x: a tensor larger than memory can be"),
    ({"strides": (2**62, 1)}, "TC008", "x: a tensor larger than memory can be"),
    ({"strides": (1, -(2**56))}, "TC008", "x: a tensor larger than memory can be"),
    ({"type": 6}, "TC008", "x: there is no such type of value"),
    ({"type": -1}, "TC008", "x: there is no such type of value"),
    ({"type": 99}, "TC008", "x: there is no such type of value"),
    ({"lanes": 4}, "TC304", "x: got float32x4, needs float32"),
    ({"lanes": 0}, "TC304", "x: got float32x0, needs float32"),
    ({"bits": 31}, "TC304", "x: got float31, needs float32"),
    ({"code": 6}, "TC304", "x: got dtype 6 of 32 bits, needs float32"),
    ({"code": 6, "bits": 8}, "TC304", "x: got bool, needs float32"),
    ({"code": 200}, "TC304", "x: got dtype 200 of 32 bits, needs float32"),
    ({"device_type": 2}, "TC310", "x: got cuda:0, needs cpu"),
    ({"device_type": 13, "device_id": 3}, "TC310", "x: got cuda_managed:3, needs cpu"),
    ({"device_type": 99}, "TC310", "x: got device 99:0, needs cpu"),
    ({"device_id": 1}, "TC310", "x: got cpu:1, needs cpu"),
    ({"ndim": 0}, "TC305", "x: got 0 axes (), needs 2 axes (n, 4)"),
    ({"ndim": 1}, "TC305", "x: got 1 axis (3,), needs 2 axes (n, 4)"),
    ({"shape": (3, 2**40)}, "TC306", f"x axis 1: got {2**40}, needs 4"),
    ({"shape": (2**40, 4)}, "TC301", f"x axis 0 (n): got {2**40}, needs n <= 64"),
]


def test_odd_tensors_are_refused_before_they_are_read(library: Path, added: Path) -> None:  # noqa: F811
    steps = [("call", {"x": (X, fields)}) for fields, _, _ in ODD]
    answers = c_answers(library, ("load", (str(added), {})), *steps, ("call", {"x": X}))
    for (fields, code, words), got in zip(ODD, answers[1:], strict=False):
        assert got[:2] == ("error", code) and f"[{code}] {words}" in got[2].splitlines()[0], fields
        assert got[3] == (2 if code == "TC008" else 4)
    assert answers[-1][0] == "done"


def test_a_bool_is_a_byte(library: Path, tmp_path: Path, code: bytes) -> None:  # noqa: F811
    terms = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4)), "mask": TensorInput("mask", "bool", ("n",))},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
    )
    path = pack(tmp_path / "m.tcpkg", terms, {"x86-64-v3": code}, {"w": WEIGHT})
    mask = np.ones(3, bool)
    steps = [("call", {"x": X, "mask": (mask, {"bits": bits})}) for bits in (1, 32)]
    for got in c_answers(library, ("load", (str(path), {})), *steps)[1:]:
        assert got[1] == "TC304" and "needs bool" in got[2]


def test_strides_of_axes_of_one_or_no_element_mean_nothing(
    library: Path,  # noqa: F811
    added: Path,
    gathered: Path,
) -> None:
    steps: list[tuple[str, Any]] = [("load", (str(added), {}))]
    for strides in ((4, 1), (-7, 1), (2**62, 1), (0, 1)):
        steps.append(("call", {"x": (X[:1].copy(), {"strides": strides})}))
    steps.append(("call", {"x": (X, {"strides": (0, 1)})}))  # one row, three times
    steps.append(("call", {"x": (X, {"strides": (1, 1)})}))  # rows that overlap
    for answer in (answers := c_answers(library, *steps))[1:5]:
        np.testing.assert_array_equal(dict(answer[1])["out"], X[:1] + WEIGHT)
    np.testing.assert_array_equal(dict(answers[5][1])["out"], X[[0, 0, 0]] + WEIGHT)
    overlapping = np.lib.stride_tricks.as_strided(X, (3, 4), (4, 4))
    np.testing.assert_array_equal(dict(answers[6][1])["out"], overlapping + WEIGHT)
    ids = np.zeros((2, 0), np.int64)
    calls = [{"ids": (ids, {"strides": each})} for each in ((1, 1), (-3, 2**40), (0, 0))]
    calls.append({"ids": (ids, {"data": None})})
    for answer in c_answers(library, ("load", (str(gathered), {})), *(("call", c) for c in calls))[
        1:
    ]:
        assert dict(answer[1])["rows"].shape == (2, 0, 8)


def test_inputs_that_share_memory_are_read_alike(library: Path, parallel: Path) -> None:  # noqa: F811
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    calls = [
        {"x": square, "y": square},
        {"x": square, "y": square.T},
        {"x": square[1:], "y": square},
    ]
    answers = c_answers(library, ("load", (str(parallel), {})), *(("call", c) for c in calls))[1:]
    for inputs, got in zip(calls, answers, strict=True):
        np.testing.assert_array_equal(dict(got[1])["xy"], inputs["x"] @ inputs["y"])


class Waves(nn.Module):
    """Complex in and out, what comes in given back among it."""

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * k, x.real + 1, torch.complex(x.real, x.real), x


def test_complex_numbers_go_in_and_out(library: Path, both: Both, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "waves.tcpkg"
    tcexport.export(
        Waves().eval(),
        (torch.ones(3, 4, dtype=torch.complex64), torch.ones(4, dtype=torch.complex64)),
        axes={"x": ("n", None), "k": (None,)},
        dynamic={"n": (0, 8)},
        out=path,
        targets=("cpu:x86-64-v3",),
    )
    rng = np.random.default_rng(0)
    whole = (rng.normal(size=(6, 8)) + 1j * rng.normal(size=(6, 8))).astype(np.complex64)
    k = whole[0, :4].copy()
    raw = np.zeros(8 * 8 + 8, np.uint8)[8:].view(np.complex64).reshape(2, 4)
    calls = [
        {"x": x, "k": k}
        for x in (whole[:3, :4].copy(), whole[:, ::2], whole[::-1, 4:], whole[:0, :4], raw)
    ]
    calls += [{"x": X, "k": k}, {"x": whole[:3, :4].astype(np.complex128), "k": k}]
    model = load(path)
    answers = c_answers(library, ("load", (str(path), {})), *(("call", c) for c in calls))[1:]
    for inputs, got in zip(calls, answers, strict=True):
        wanted = python_answer(lambda inputs=inputs: model(**inputs))
        assert got[0] == wanted[0], got
        if got[0] == "error":
            assert got == wanted and got[1] == "TC304"
            continue
        for (_, mine), theirs in zip(got[1], wanted[1], strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
    assert [each[0] for each in answers] == ["done"] * 5 + ["error"] * 2
    assert both(path, calls[0]) == ""


def test_layouts_are_asked_for_alike(library: Path, tmp_path: Path, code: bytes) -> None:  # noqa: F811
    terms = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4), "contiguous")},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
    )
    path = pack(tmp_path / "m.tcpkg", terms, {"x86-64-v3": code}, {"w": WEIGHT})
    strided = np.ones((3, 8), np.float32)[:, ::2]
    _, got, good = c_answers(
        library, ("load", (str(path), {})), ("call", {"x": strided}), ("call", {"x": X})
    )
    with pytest.raises(GuardError, match="TC312") as caught:
        load(path)(strided)
    assert got[2].partition("\n  try")[0] == str(caught.value).partition("\n  try")[0]
    assert "\n  try" in got[2] and good[0] == "done"


@pytest.mark.parametrize("dtype", ["uint64", "int64", "uint8", "int8"])
def test_indices_of_any_width_are_compared_alike(
    library: Path,  # noqa: F811
    tmp_path: Path,
    code: bytes,
    dtype: str,
) -> None:
    terms = contract_of(
        {"x": TensorInput("x", "float32", ("n", 4)), "at": TensorInput("at", dtype, ("n",))},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
        index_guards=(IndexGuard(1, ("-", 0, "n"), 200, Origin("a table")),),
    )
    path = pack(tmp_path / "m.tcpkg", terms, {"x86-64-v3": code}, {"w": WEIGHT}, results=1)
    model, ends = load(path), np.iinfo(dtype)
    values = [ends.min, ends.max, 0, 200, 201, -3, -4]
    values = [value for value in values if ends.min <= value <= ends.max]
    calls = [{"x": X, "at": np.array([0, 0, value], dtype)} for value in values]
    answers = c_answers(library, ("load", (str(path), {})), *(("call", c) for c in calls))[1:]
    for inputs, got in zip(calls, answers, strict=True):
        wanted = python_answer(lambda inputs=inputs: model(**inputs))
        assert got == wanted if wanted[0] == "error" else got[0] == "done"


def test_threads_share_a_model_and_a_session_says_that_it_is_in_use(
    library: Path,  # noqa: F811
    added: Path,
    counter: Path,  # noqa: F811
) -> None:
    mine = [[{"x": np.full((n, 4), n, np.float32)} for n in range(1, 40)] for _ in range(4)]
    wrong = [{"x": np.ones((3, 5), np.float32)}] * 40
    _, (_, answers), metrics = c_answers(
        library,
        ("load", (str(added), {})),
        ("at once", ("call", [*mine, wrong])),
        ("metrics", None),
    )
    for calls, got in zip(mine, answers, strict=False):
        for inputs, (status, values) in zip(calls, got, strict=True):
            assert status == "done"
            np.testing.assert_array_equal(dict(values)["out"], inputs["x"] + WEIGHT)
    assert {each[1] for each in answers[-1]} == {"TC306"}
    counts = {name: count for name, (_, _, count, _) in metrics[1]}
    assert counts["calls"] == 4 * 39 and counts["violations"] == 40
    call = {"x": np.ones((2, 4), np.float32), "at": np.array([1])}
    _, _, (_, answers), (_, state) = c_answers(
        library,
        ("load", (str(counter), {})),
        ("session", None),
        ("at once", ("session call", [[call] * 500] * 4)),
        ("keep", None),
    )
    flat = [each for got in answers for each in got]
    done = [each for each in flat if each[0] == "done"]
    assert {each[1] for each in flat if each[0] == "error"} <= {"TC322"}
    assert dict(state)["calls"] == 7 + len(done) and len(done) >= 500


def test_memory_that_is_short_is_an_error_and_the_next_call_is_right(
    library: Path,  # noqa: F811
    parallel: Path,
) -> None:
    long, short = np.ones((30_000, 1), np.float32), np.ones((3, 1), np.float32)
    answers = c_answers(
        library,
        ("load", (str(parallel), {})),
        ("call", {"x": short, "y": short.T}),
        ("with little memory", {"x": long, "y": long.T}),
        ("call", {"x": short, "y": short.T}),
    )  # fmt: skip
    assert answers[2][1] == "TC602" and answers[2][3] == 5
    assert f"{parallel}: the system has not enough memory for this call" in answers[2][2]
    assert answers[3][0] == "done" and (dict(answers[3][1])["xy"] == 1).all()


def test_a_forked_child_is_refused_what_would_wait_for_ever(
    library: Path,  # noqa: F811
    parallel: Path,
) -> None:
    """The worker threads of a call stay behind in the parent. (Python starts them anew.)"""
    square = np.eye(64, dtype=np.float32)
    call = ("call", {"x": square, "y": square})
    for threads, several in ((1, False), (2, True)):
        load_it = ("load", (str(parallel), {"threads": threads}))
        _, got, in_child, after = c_answers(library, load_it, call, ("in a child", call), call)
        assert got[0] == after[0] == "done"
        if several:
            assert (in_child[1], in_child[3]) == ("TC601", 5)
            assert in_child[2].partition("\n")[0] == str(_left_behind(2)).partition("\n")[0]
        else:
            np.testing.assert_array_equal(dict(in_child[1])["xy"], square)
        _, fresh = c_answers(library, load_it, ("in a child", call))
        np.testing.assert_array_equal(dict(fresh[1])["xy"], square)


def test_nested_arguments_are_told_by_their_paths_as_in_python(
    library: Path,  # noqa: F811
    tmp_path: Path,
    code: bytes,
) -> None:
    inputs = {
        "batch.x": TensorInput("batch.x", "float32", ("n", 4)),
        "batch[3]": Fixed.of("batch[3]", "mean"),
        "more[0]": TensorInput("more[0]", "int64", ("n",)),
        "more[1][0]": Fixed.of("more[1][0]", None),
    }
    parameters = (
        Parameter("batch", "either", DictNode(("x", 3), (Leaf(0), Leaf(1)))),
        Parameter("more", "keyword", TupleNode((Leaf(2), ListNode((Leaf(3),))))),
    )
    terms = contract_of(
        inputs,
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 64)],
        parameters=parameters,
    )
    path = pack(
        tmp_path / "m.tcpkg", terms, {"x86-64-v3": code}, {"w": WEIGHT},
        entry=Entry("main", (0,), (), ("w",), 1),
    )  # fmt: skip
    good = {"batch.x": X, "batch[3]": "mean", "more[0]": np.arange(3), "more[1][0]": None}
    changes: list[tuple[str, Any, str]] = [
        ("batch[3]", "mean", ""),
        ("batch[3]", "sum", "TC308"),
        ("more[1][0]", 0, "TC308"),
        ("more[0]", np.arange(4), "TC306"),
        ("more[0]", np.arange(3, dtype=np.int32), "TC304"),
        ("batch.x", X[0], "TC305"),
        ("batch.x", np.ones((65, 4), np.float32), "TC301"),
    ]
    calls = [{**good, name: value} for name, value, _ in changes]
    answers = c_answers(library, ("load", (str(path), {})), *(("call", c) for c in calls))[1:]
    model = load(path)
    for leaves, (_, _, code_of), got in zip(calls, changes, answers, strict=True):
        x, mode, ids, none = leaves.values()
        wanted = python_answer(
            lambda x=x, mode=mode, ids=ids, none=none: model({"x": x, 3: mode}, more=(ids, [none]))
        )
        assert got == wanted if code_of else got[0] == "done"
        assert (got[1] if code_of else "") == code_of
    (missing,) = c_answers(
        library,
        ("load", (str(path), {})),
        ("call", {k: v for k, v in good.items() if k != "more[0]"}),
    )[1:]
    assert missing[1] == "TC302" and "more[0]: is missing" in missing[2]
