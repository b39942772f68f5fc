"""Ranges from guards: what is promised is true, and what is not promised is kept as a guard."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tcexport.artifacts.contract import Guard, IndexGuard, Origin
from tcexport.artifacts.errors import ExportError
from tcexport.artifacts.expr import ExprError, evaluate
from tcexport.exporter.derive import _needed
from tcexport.exporter.export import check
from tcexport.exporter.implied import needed
from tcexport.exporter.options import DimRequest
from tcexport.exporter.prove import Span, holds
from tcexport.exporter.ranges import Limits, Request, fit
from tcexport.exporter.source import source_in_memory

DIMS = ("a", "b")


def guard(expr: Any) -> Guard:
    return Guard(expr, Origin("test"))


def true_at(expr: Any, sizes: dict[str, int]) -> bool:
    try:
        return bool(evaluate(expr, sizes))
    except ExprError:
        return False


def arithmetic(depth: int = 2) -> st.SearchStrategy[Any]:
    leaf = st.one_of(st.sampled_from(DIMS), st.integers(0, 12))
    if depth == 0:
        return leaf
    inner = arithmetic(depth - 1)
    return st.one_of(leaf, st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), inner, inner))


comparisons = st.tuples(
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), arithmetic(), arithmetic()
)
conditions = st.one_of(
    comparisons, st.tuples(st.sampled_from(["and", "or"]), comparisons, comparisons)
)
spans = st.builds(
    lambda lo, length, step: Span(lo, lo + length, step),
    st.integers(0, 6), st.integers(0, 24), st.integers(1, 4),
)  # fmt: skip


def sizes_of(span: Span) -> range:
    assert span.hi is not None
    return range(span.lo, span.hi + 1, span.step)


@settings(max_examples=300, deadline=None)
@given(conditions, spans, spans)
def test_a_verdict_is_what_every_point_says(expr: Any, a: Span, b: Span) -> None:
    verdict = holds(expr, {"a": a, "b": b})
    points = [{"a": x, "b": y} for x, y in itertools.product(sizes_of(a), sizes_of(b))]
    truth = all(true_at(expr, point) for point in points)
    assert verdict.status == ("proved" if truth else "refuted")
    if verdict.counterexample is not None:
        assert not true_at(expr, {**points[0], **verdict.counterexample})


@settings(max_examples=200, deadline=None)
@given(st.lists(conditions, max_size=4), spans, spans, st.data())
def test_every_call_that_a_fit_allows_meets_every_guard(
    exprs: list[Any], a: Span, b: Span, data: st.DataObject
) -> None:
    example = {"a": data.draw(st.sampled_from(sizes_of(a))),
               "b": data.draw(st.sampled_from(sizes_of(b)))}  # fmt: skip
    guards = [guard(expr) for expr in exprs if true_at(expr, example)]
    requests = {"a": Request(a, given=True), "b": Request(b, given=True)}
    fitted = fit(requests, example, guards)
    assert all(example[name] in fitted.spans[name] for name in DIMS)
    for name, request in requests.items():
        assert set(sizes_of(fitted.spans[name])) <= set(sizes_of(request.span))
    for x, y in itertools.product(sizes_of(fitted.spans["a"]), sizes_of(fitted.spans["b"])):
        point = {"a": x, "b": y}
        if all(true_at(kept.expr, point) for kept in fitted.guards):
            assert all(true_at(each.expr, point) for each in guards), point


@pytest.mark.parametrize(
    "expr, asked, example, found",
    [
        (("==", ("%", "a", 100), 0), Span(1, 4096), 200, "100..4000:100"),
        (("==", ("%", "a", 100), 0), Span(1, None), 200, "100..:100"),
        (("<=", "a", 512), Span(1, None), 10, "1..512"),
        ((">", "a", 5), Span(1, 64), 6, "6..64"),
        (("!=", "a", 7), Span(1, 64), 20, "8..64"),
        (("==", ("%", ("+", "a", 1), 4), 0), Span(1, 64), 7, "3..63:4"),
        (("==", "a", 9), Span(1, None), 9, "9..9"),
    ],
)
def test_the_widest_range_around_the_example(
    expr: Any, asked: Span, example: int, found: str
) -> None:
    fitted = fit({"a": Request(asked, given=True)}, {"a": example}, [guard(expr)])
    assert str(fitted.spans["a"]) == found
    assert not fitted.guards
    assert [broken.guard.expr for broken in fitted.broken] == [expr]


def test_a_guard_over_two_dims_narrows_one_where_most_remains() -> None:
    halves = guard(("==", ("*", "a", "b"), ("*", 2, "a", ("//", "b", 2))))
    requests = {"a": Request(Span(1, None), False), "b": Request(Span(1, None), False)}
    fitted = fit(requests, {"a": 3, "b": 10}, [halves])
    assert {name: str(span) for name, span in fitted.spans.items()} == {"a": "1..", "b": "2..:2"}
    assert fitted.limits["b"].step == halves
    assert not fitted.guards, "z3 proves it for all sizes"


def test_a_guard_that_ties_two_dims_stays_a_guard() -> None:
    tied = guard(("<=", ("+", "a", "b"), 512))
    requests = {"a": Request(Span(1, None), False), "b": Request(Span(1, None), False)}
    fitted = fit(requests, {"a": 3, "b": 10}, [tied])
    assert fitted.guards == (tied,)


class Hundreds(nn.Module):
    def forward(self, x):
        return x.reshape(100, -1) * 2


class FromSix(nn.Module):
    def forward(self, x):
        return x.sin() if x.shape[0] > 5 else x.cos()


@pytest.mark.parametrize(
    "module, size, served", [(Hundreds(), 200, "100..:100"), (FromSix(), 7, "6..")]
)
def test_a_range_without_end_is_a_promise_too(module: nn.Module, size: int, served: str) -> None:
    source = source_in_memory(module.eval(), (torch.randn(size),), {}, {"x": ("n",)})
    with pytest.raises(ExportError) as refusal:
        check(source, dynamic={"n": DimRequest(1)})
    assert refusal.value.code == "TC210"
    assert f"--dynamic n={served}   (tried, works)" in str(refusal.value)
    (dim,) = check(source, dynamic={"n": DimRequest(1)}, narrow=True).dims
    assert dim.span() == served


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4), st.integers(-4, 4)), max_size=5))
def test_index_guards_that_others_imply_are_dropped_and_no_others(drawn: list[Any]) -> None:
    guards = tuple(dict.fromkeys(IndexGuard(*each, Origin("drawn")) for each in drawn))
    kept = _needed(guards)
    for values in itertools.product(range(-5, 6), repeat=2):

        def hold(some: Iterable[IndexGuard], values: tuple[int, ...] = values) -> bool:
            return all(each.lo <= values[each.input] <= each.hi for each in some)

        assert hold(kept) == hold(guards)


class EvenOnly(nn.Module):
    """As MobileViT asks whether its patches fit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if math.ceil(x.shape[0] / 2) * 2 != x.shape[0]:
            return x * 2
        return x + 1


@settings(max_examples=150, deadline=None)
@given(st.lists(conditions, min_size=1, max_size=5), spans, spans)
def test_guards_that_others_imply_are_dropped_and_change_nothing(
    drawn: list[Any], a: Span, b: Span
) -> None:
    guards = [guard(expr) for expr in drawn]
    left = needed(guards, {"a": a, "b": b})
    assert {*left} <= {*guards}
    for x, y in itertools.product(sizes_of(a), sizes_of(b)):
        point = {"a": x, "b": y}
        meets_all = all(true_at(each.expr, point) for each in guards)
        assert meets_all == all(true_at(each.expr, point) for each in left)


@pytest.mark.parametrize(
    ("exprs", "left"),
    [
        ([(">=", "a", 1), (">=", "a", 0)], [0]),
        ([(">=", "a", 0), ("<=", "a", "b"), ("<=", "b", "n"), ("<=", "a", "n")], [0, 1, 2]),
        ([("<=", "a", "n"), ("==", ("%", "n", "a"), 0), (">=", "a", 1)], [0, 1, 2]),
        ([("==", ("%", "a", 6), 0), ("==", ("%", "a", 3), 0), (">=", "a", 3)], [0, 2]),
    ],
)
def test_the_values_of_inputs_are_looked_at_once(exprs: list[Any], left: list[int]) -> None:
    value = Span(-(2**40), None)
    guards = [guard(expr) for expr in exprs]
    assert needed(guards, {"n": Span(0, 9), "a": value, "b": value}) == tuple(
        guards[at] for at in left
    )


def test_a_quotient_that_python_rounds_is_checked_as_integers_are() -> None:
    source = source_in_memory(EvenOnly().eval(), (torch.randn(6),), {}, {"x": ("n",)})
    report = check(source, dynamic={"n": DimRequest(2, 64, 2)})
    assert report.dims[0].span() == "2..64:2" and not report.contract.guards
    with pytest.raises(ExportError) as refusal:
        check(source, dynamic={"n": DimRequest(2, 64)})
    assert refusal.value.code == "TC210" and "(tried, works)" in str(refusal.value)


@settings(max_examples=300, deadline=None)
@given(spans, st.lists(st.integers(0, 30), min_size=1, max_size=3), st.data())
def test_a_range_that_shrinks_names_a_guard_that_fails_at_a_size_left_out(
    span: Span, holes: list[int], data: st.DataObject
) -> None:
    example = data.draw(st.sampled_from(sizes_of(span)))
    guards = [guard(("!=", "a", hole)) for hole in holes if hole != example]
    guards += data.draw(st.sampled_from([[], [guard(("==", ("%", "a", 2), example % 2))]]))
    fitted = fit({"a": Request(span, given=True)}, {"a": example}, guards)
    found, limits = fitted.spans["a"], fitted.limits["a"]
    dropped = set(sizes_of(span)) - set(sizes_of(found))
    needed = [each for each in (limits.lo, limits.hi, limits.step) if each is not None]
    assert bool(dropped) == bool(needed)
    for each in needed:
        assert any(not true_at(each.expr, {"a": size}) for size in dropped)


@pytest.mark.parametrize(
    "asked, example, holes, found",
    [
        (Span(1, 64), 5, (7,), "1..6"),  # not 2..62:3, which is more sizes and misses 7 by chance
        (Span(4, 4096), 5, (7,), "4..6"),
        (Span(1, None), 5, (7,), "1..6"),
        (Span(1, 64), 5, (1,), "2..64"),
        (Span(1, 64), 5, (64,), "1..63"),
        (Span(1, 64), 20, (7, 31), "8..30"),
        (Span(1, 64), 5, (3, 7), "4..6"),
        (Span(2, 64, 2), 6, (10,), "2..8:2"),
        (Span(6, 64), 6, (7,), "6..64:2"),  # alone otherwise
    ],
)
def test_a_range_ends_at_a_hole(
    asked: Span, example: int, holes: tuple[int, ...], found: str
) -> None:
    guards = [guard(("!=", "a", hole)) for hole in holes]
    fitted = fit({"a": Request(asked, given=True)}, {"a": example}, guards)
    assert str(fitted.spans["a"]) == found
    assert fitted.limits["a"] != Limits()


class Apart(nn.Module):
    """Another answer at some sizes, or none."""

    def __init__(self, *holes: int, raises: bool = False) -> None:
        super().__init__()
        self.holes, self.raises = holes, raises

    def forward(self, x):
        for hole in self.holes:
            if x.shape[0] == hole:
                if self.raises:
                    raise ValueError(hole)
                return x * 2
        return x * 3


@pytest.mark.parametrize(
    "module, asked, example",
    [
        (Apart(7), DimRequest(1, 64), 5),
        (Apart(7, raises=True), DimRequest(1, 64), 5),
        (Apart(7), DimRequest(4, 4096), 5),
        (Apart(7), DimRequest(1), 5),
        (Apart(7, 40), DimRequest(1, 64), 12),
        (Apart(10), DimRequest(2, 64, 2), 6),
    ],
)
def test_a_hole_in_a_promise_is_refused_with_its_line(
    module: Apart, asked: DimRequest, example: int
) -> None:
    source = source_in_memory(module.eval(), (torch.randn(example),), {}, {"x": ("n",)})
    with pytest.raises(ExportError) as refusal:
        check(source, dynamic={"n": asked})
    found = [each for each in refusal.value.diagnostics if "the trace needs" in each.message]
    assert {each.code for each in found} == {"TC210"}
    for hole, each in zip(module.holes, found, strict=True):
        assert each.message.endswith(f"the trace needs n != {hole}")
        assert each.location is not None and each.location.text == "if x.shape[0] == hole:"


def test_what_limits_a_range_that_nobody_gave_is_told() -> None:
    source = source_in_memory(Apart(7).eval(), (torch.randn(5),), {}, {"x": ("n",)})
    (dim,) = check(source, dynamic={"n": None}).dims
    assert dim.span() == "1..6"
    location = dim.hi_from.location
    assert location is not None and location.text == "if x.shape[0] == hole:"
