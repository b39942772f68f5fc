"""What the hosts without Python tell of calls: counts, sizes, refusals; memory they give back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tcexport.artifacts.errors import TcexportError
from tcexport.runtime import load

from .hosts import VIOLATIONS, call
from .test_c import c_answers, counted, library, rows  # noqa: F401
from .test_cpp import counter, ranges  # noqa: F401

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")


def test_a_listener_is_told_of_refused_calls_and_may_answer_them(
    library: Path,  # noqa: F811
    added: Path,
    ranges: Path,  # noqa: F811
    counter: Path,  # noqa: F811
) -> None:
    told = {"on_violation": True}
    wrong = {"x": np.ones((3, 5), np.float32)}
    answers = c_answers(
        library,
        ("load", (str(ranges), told)),
        *(("call", rows(8)), ("call", rows(12)), ("call", {"y": 3})),
        ("second", str(added)),  # takes any n from 1 to 64
        *(("call", rows(12)), ("call", wrong), ("call", rows(20)), ("told", None)),
        ("load", (str(counter), told)),
        ("session", None),
        ("session call", {**rows(9), "at": np.array([1])}),
        ("session call", {**rows(2), "at": np.array([1])}),
        ("call", rows(2)),
        ("told", None),
    )
    assert [each[0] for each in answers[1:4]] == ["done", "error", "error"]
    assert [each[1] for each in answers[2:4]] == ["TC320", "TC302"]
    np.testing.assert_array_equal(dict(answers[5][1])["out"], load(added)(**rows(12)))
    assert answers[6][1] == "TC306"  # of the second model: what the listener answers
    assert answers[7][0] == "done"
    calls = [("TC320", ["x"], 17), ("TC302", ["y"], 17), ("TC320", ["x"], 17), ("TC306", ["x"], 17)]
    assert answers[8] == ("done", calls)
    assert answers[11][1] == "TC302"  # the second model has no input `at`
    assert answers[12][0] == "done" and answers[13][1] == "TC321"
    assert answers[14] == ("done", [*calls, ("TC301", ["at", "x"], 17)])


def test_sizes_are_counted_alike(library: Path, guarded: Path, ranges: Path) -> None:  # noqa: F811
    strided = np.ones((3, 8), np.float32)[:, ::2]
    calls = [*(call(n, 4, 2) for n in (3, 5, 3, 8, 8, 3)), call(3, 4, 0, x=strided), call(41, 4, 0)]
    by_variants = [rows(n) for n in (1, 20, 12, 20, 65)]
    for path, made, asked in (
        (guarded, calls, {}), (ranges, by_variants, {}), (ranges, by_variants, {"variant": "many"})
    ):  # fmt: skip
        for count in (True, False):
            model = load(path, count_sizes=count, **asked)
            for inputs in made:
                try:
                    model(**inputs)
                except TcexportError:
                    continue
            steps = [("load", (str(path), {"count_sizes": count, **asked}))]
            steps += [("call", each) for each in made]
            ((name, (kind, text, *_)),) = c_answers(library, *steps, ("seen", None))[-1][1]
            assert (name, kind, text) == ("seen", "str", json.dumps(model.seen))
            assert bool(model.seen) == count


def test_memory_is_given_back(library: Path, parallel: Path) -> None:  # noqa: F811
    """What the last call has computed is kept, though its results are gone."""
    long, short = np.ones((3000, 1), np.float32), np.ones((3, 1), np.float32)
    answers = c_answers(
        library,
        ("load", (str(parallel), {})),
        ("call", {"x": long, "y": long.T}),
        ("release", None),
        ("call", {"x": short, "y": short.T}),
        ("metrics", None),
    )
    first, second = answers[2][1]
    assert first > 30 << 20 and second < 4 << 20
    assert (dict(answers[3][1])["xy"] == 1).all() and answers[4][1][0][1][2] == 2


def test_calls_are_counted_alike(library: Path, guarded: Path, ranges: Path) -> None:  # noqa: F811
    strided = np.ones((3, 8), np.float32)[:, ::2]
    calls = [inputs for inputs, code in VIOLATIONS if code != "TC303"]
    calls += [call(3, 4, 2), call(5, 4, 2), call(3, 4, 0, x=strided), calls[0], calls[14]]
    by_variants = [{"x": np.ones((n, 4), np.float32)} for n in (1, 2, 20, 12, 65, 12)]
    for path, made in ((guarded, calls), (ranges, by_variants)):
        model = load(path)
        for inputs in made:
            try:
                model(**inputs)
            except TcexportError:
                continue
        steps = [("load", (str(path), {})), *(("call", each) for each in made), ("metrics", None)]
        got, wanted = counted(c_answers(library, *steps)[-1]), model.metrics
        assert 0 < got.pop("seconds") < 60
        # Where an array lies in memory is not the same in two processes.
        copies, copied = got.pop("copies"), got.pop("copied_bytes")
        assert (made is not calls or copies) and copies <= got["calls"]
        assert copies == 0 or 16 * copies <= copied <= 320 * copies
        names = ("calls", "violations", "guards", "variants")
        assert got == {name: getattr(wanted, name) for name in names}
    assert wanted.variants == {"few": 2, "many": 1} and wanted.violations["TC320"] == 2
