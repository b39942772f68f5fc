"""serves=: every range that is promised is proved at load, or answered with a counterexample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcexport.artifacts.contract import Guard, TensorInput, checked
from tcexport.artifacts.errors import BundleError, UsageError
from tcexport.artifacts.expr import ExprError, dims_of, evaluate
from tcexport.artifacts.prove import MAX_POINTS, Span, bounds, holds
from tcexport.runtime import load
from tcexport.runtime.coverage import check_serves, coverage

from .bundles import GIVEN, LINE, contract_of, dim
from .test_guards import conditions, numbers

CONTRACT = checked(
    contract_of(
        {"x": TensorInput("x", "float32", ("batch", "seq"))},
        [],
        [dim("batch", 0, 0, 1, 16), dim("seq", 0, 1, 4, 512, step=4, step_from=GIVEN)],
        guards=(
            Guard(("==", ("%", "seq", 8), 0), LINE),
            Guard(("<=", ("*", "batch", "seq"), 4096), LINE),
        ),
    )
)


def refusal(serves: Any) -> str:
    with pytest.raises(BundleError) as caught:
        check_serves(CONTRACT, serves, Path("m.tcpkg"))
    assert caught.value.code == "TC406"
    return str(caught.value)


@pytest.mark.parametrize(
    "serves",
    [
        {"batch": (1, 8), "seq": (8, 512, 8)},
        {"batch": (1, 1), "seq": (16, 64, 16)},
        {"seq": (8, 256, 8)},
        {},
    ],
)
def test_what_is_served_passes(serves: Any) -> None:
    check_serves(CONTRACT, serves, Path("m.tcpkg"))


@pytest.mark.parametrize(
    ("serves", "message"),
    [
        ({"seq": (8, 520, 8)}, "seq=520: seq <= 512, from self.position[:seq]  (model.py:14)"),
        ({"seq": (0, 8, 8)}, "seq=0: seq >= 4, from given with --dynamic"),
        ({"seq": (8, 9)}, "seq=9: seq in 4..512:4"),
        ({"batch": (1, 1), "seq": (8, 64, 4)}, "seq=12: seq % 8 == 0"),
        ({"batch": (9, 9), "seq": (512, 512)}, "batch=9, seq=512: batch*seq <= 4096"),
        ({"seq": (512, 512)}, "batch=9, seq=512: batch*seq <= 4096"),
        ({"batch": (1, 17)}, "batch=17: batch <= 16"),
    ],
)
def test_a_counterexample_answers_what_is_not(serves: Any, message: str) -> None:
    text = refusal(serves)
    assert message in text
    assert "the bundle serves: batch=1..16, seq=4..512:4" in text


@pytest.mark.parametrize(
    ("serves", "code", "message"),
    [
        ({"sequence": (1, 2)}, "TC006", "dims: batch, seq"),
        ({"seq": 5}, "TC008", "needs"),
        ({"seq": (1,)}, "TC008", "needs"),
        ({"seq": (1, 2.0)}, "TC008", "needs"),
        ({"seq": (1, True)}, "TC008", "needs"),
        ({"seq": (5, 4)}, "TC008", "holds no size"),
        ({"seq": (1, 4, 0)}, "TC008", "holds no size"),
    ],
)
def test_malformed_ranges_are_refused(serves: Any, code: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_serves(CONTRACT, serves, Path("m.tcpkg"))
    assert caught.value.code == code


def test_what_cannot_be_decided_is_refused() -> None:
    contract = checked(
        contract_of(
            {"x": TensorInput("x", "float32", ("a", "b"))},
            [],
            [dim("a", 0, 0, 1, 10**6), dim("b", 0, 1, 1, 10**6)],
            guards=(Guard((">=", ("*", "a", "b"), "a"), LINE),),
        )
    )
    with pytest.raises(BundleError, match="not decided"):
        check_serves(contract, {"a": (1, 10**6)}, Path("m.tcpkg"))
    check_serves(contract, {"a": (1, 1000), "b": (1, 1000)}, Path("m.tcpkg"))


def test_load_asks_before_anything_is_mapped(added: Path) -> None:
    assert load(added, serves={"n": (1, 64)})
    with pytest.raises(BundleError, match=r"TC406.*does not serve n=1..65"):
        load(added, serves={"n": (1, 65)})


def sizes(span: Span) -> range:
    """The sizes of a span; the first ten of one without end."""
    last = span.lo + 9 * span.step if span.hi is None else span.hi
    return range(span.lo, last + 1, span.step)


@settings(max_examples=300, deadline=None)
@given(conditions(["n", "m"]), st.data())
def test_a_proof_is_a_proof_and_a_counterexample_one(expr: Any, data: st.DataObject) -> None:
    box = {}
    for name in ("n", "m"):
        lo = data.draw(st.integers(-3, 5))
        box[name] = Span(lo, lo + data.draw(st.integers(0, 8)), data.draw(st.integers(1, 3)))
    limit = data.draw(st.sampled_from([0, MAX_POINTS]))
    verdict = holds(expr, box, limit)

    def true(n: int, m: int) -> bool:
        try:
            return bool(evaluate(expr, {"n": n, "m": m}))
        except ExprError:
            return False

    points = [(n, m) for n in sizes(box["n"]) for m in sizes(box["m"])]
    whole = all(true(*point) for point in points)
    if verdict.status == "proved":
        assert whole
    elif verdict.status == "refuted":
        assert verdict.counterexample is not None
        point = {"n": box["n"].lo, "m": box["m"].lo, **verdict.counterexample}
        assert (point["n"], point["m"]) in points and not true(point["n"], point["m"])
    else:
        assert limit == 0


@settings(max_examples=300, deadline=None)
@given(numbers(["n", "m"]), st.data())
def test_intervals_hold_every_value(expr: Any, data: st.DataObject) -> None:
    box = {}
    for name in ("n", "m"):
        lo = data.draw(st.integers(-3, 5))
        box[name] = Span(lo, data.draw(st.one_of(st.none(), st.integers(lo, lo + 8))))
    low, high = bounds(expr, box)
    for n in sizes(box["n"]):
        for m in sizes(box["m"]):
            try:
                value = evaluate(expr, {"n": n, "m": m})
            except ExprError:
                continue
            assert low <= value <= high


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_share_is_what_every_point_says(data: st.DataObject) -> None:
    step = data.draw(st.integers(1, 5))
    lo = data.draw(st.integers(0, 8))
    hi = data.draw(st.one_of(st.none(), st.integers(lo, lo + 30)))
    steps = {"step": step, "step_from": GIVEN} if step != 1 else {}
    expr = data.draw(st.one_of(st.none(), conditions(["n"])))
    guards = () if expr is None or not dims_of(expr) else (Guard(expr, LINE),)
    contract = checked(
        contract_of(
            {"x": TensorInput("x", "float32", ("n",))},
            [],
            [dim("n", 0, 0, lo, hi, **steps)],
            guards=guards,
        )
    )
    start = data.draw(st.integers(0, 20))
    asked = range(start, start + data.draw(st.integers(0, 30)) + 1, data.draw(st.integers(1, 5)))

    def served(size: int) -> bool:
        inside = size >= lo and (hi is None or size <= hi) and (size - lo) % step == 0
        try:
            return inside and all(evaluate(guard.expr, {"n": size}) for guard in guards)
        except ExprError:
            return False

    found = coverage(contract, {"n": (asked.start, asked[-1], asked.step)})
    truth = [served(size) for size in asked]
    assert found.served == all(truth)
    assert found.share == pytest.approx(sum(truth) / len(truth))
    for condition in found.conditions:
        if condition.status == "refuted":
            assert condition.counterexample is not None
            assert condition.counterexample["n"] in asked
            assert not served(condition.counterexample["n"])


def test_a_range_without_end_is_served_by_one_without_end() -> None:
    contract = checked(
        contract_of({"x": TensorInput("x", "float32", ("n",))}, [], [dim("n", 0, 0, 1, None)])
    )
    assert coverage(contract, {"n": (1, None)}).served
    found = coverage(contract, {"n": (0, None)})
    assert not found.served and found.share is None
    assert str(found.conditions[0]) == "n=0: n >= 1, from given with --dynamic"
