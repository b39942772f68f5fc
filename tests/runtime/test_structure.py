"""Structure: calls bind as Python's own, strictly; what is flattened is rebuilt."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcexport.artifacts.contract import (
    AbsentNode,
    Contract,
    DictNode,
    Fixed,
    Leaf,
    ListNode,
    NamedTupleNode,
    Node,
    Parameter,
    TensorInput,
    TupleNode,
)
from tcexport.artifacts.errors import GuardError
from tcexport.runtime.structure import bind, builder, is_plain

Point = namedtuple("Point", ["left", "right"])


def contract(*parameters: Parameter, fixed: dict[int, Any] | None = None, count: int) -> Contract:
    inputs = tuple(
        Fixed.of(f"i{index}", fixed[index])
        if fixed and index in fixed
        else TensorInput(f"i{index}", "float32", ())
        for index in range(count)
    )
    return Contract((), parameters, inputs, (), (), (), TupleNode(()))


SIMPLE = contract(
    Parameter("x", "positional", Leaf(0)),
    Parameter("y", "either", Leaf(1)),
    Parameter("k", "either", Leaf(2), optional=True),
    Parameter("mask", "either", AbsentNode(), optional=True),
    Parameter("flag", "keyword", Leaf(3), optional=True),
    fixed={2: 7, 3: None},
    count=4,
)


@pytest.mark.parametrize(
    ("args", "kwargs", "flat"),
    [
        (("a", "b"), {}, ("a", "b", 7, None)),
        (("a",), {"y": "b"}, ("a", "b", 7, None)),
        (("a",), {"flag": 1, "k": 2, "y": "b"}, ("a", "b", 2, 1)),
        (("a", "b", 3), {}, ("a", "b", 3, None)),
    ],
)
def test_calls_bind_by_position_and_by_name(args: Any, kwargs: Any, flat: Any) -> None:
    assert bind(SIMPLE, args, kwargs) == flat


@pytest.mark.parametrize(
    ("args", "kwargs", "message", "argument"),
    [
        ((), {}, "x: is missing, needs one argument", "x"),
        (("a",), {}, "y: is missing", "y"),
        (("a",), {"y": 1, "z": 1}, "z: is not a parameter of this model", "z"),
        (("a", "b"), {"y": 1}, "y: got two values, by position and by name", "y"),
        (("a", "b", 1, 2), {}, "mask: got a int, needs to be left at its default", "mask"),
        (("a", "b"), {"mask": None}, "mask: got a NoneType, needs to be left", "mask"),
        (("a", "b"), {"x": 1}, "x: is not a parameter of this model", "x"),
    ],
)
def test_calls_that_do_not_bind(args: Any, kwargs: Any, message: str, argument: str) -> None:
    with pytest.raises(GuardError) as caught:
        bind(SIMPLE, args, kwargs)
    assert caught.value.code == "TC302"
    assert message in str(caught.value)
    assert "the call is (x, y, k=7, mask=…, *, flag=None)" in str(caught.value)
    assert caught.value.argument == argument


def test_too_many_by_position() -> None:
    with pytest.raises(GuardError, match="got 3 arguments by position, needs at most 2"):
        bind(
            contract(Parameter("x", "either", Leaf(0)), Parameter("y", "either", Leaf(1)), count=2),
            (1, 2, 3),
            {},
        )


def one(node: Node, count: int) -> Contract:
    return contract(Parameter("batch", "either", node), count=count)  # type: ignore[arg-type]


PAIR = (Leaf(0), Leaf(1))


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        (
            TupleNode(PAIR),
            [(1, 2)],
            [([1, 2], "batch: got a list, needs a tuple of 2"), (Point(1, 2), "a Point with fields"),
             ((1,), "got 1 items, needs 2"), (5, "got a int"), (None, "got a NoneType")],
        ),
        (
            ListNode(PAIR),
            [[1, 2]],
            [((1, 2), "batch: got a tuple, needs a list of 2"), ([1, 2, 3], "got 3 items, needs 2")],
        ),
        (
            DictNode(("ids", 3), PAIR),
            [{"ids": 1, 3: 2}, {3: 2, "ids": 1}, OrderedDict([("ids", 1), (3, 2)])],
            [({"ids": 1}, "got keys 'ids', needs a dict with keys 'ids', 3"),
             ({"ids": 1, 3: 2, "more": 3}, "got keys 'ids', 3, 'more'"), ({}, "got no keys"),
             ({"ids": 1, "3": 2}, "got keys"), ([1, 2], "got a list")],
        ),
        (
            NamedTupleNode("Point", ("left", "right"), PAIR),
            [Point(1, 2)],
            [((1, 2), "needs a Point with fields left, right"),
             (namedtuple("Other", ["x", "y"])(1, 2), "a Other with fields")],
        ),
    ],
)  # fmt: skip
def test_structure_is_strict(node: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    held = one(node, 2)
    for value in good:
        assert bind(held, (value,), {}) == (1, 2)
    for value, message in bad:
        with pytest.raises(GuardError, match="TC302") as caught:
            bind(held, (value,), {})
        assert message in str(caught.value)


def test_the_path_leads_to_the_fault() -> None:
    held = one(DictNode(("xs", "a b"), (ListNode((Leaf(0), TupleNode(()))), Leaf(1))), 2)
    with pytest.raises(GuardError) as caught:
        bind(held, ({"xs": [1, [2]], "a b": 3},), {})
    assert caught.value.argument == "batch.xs[1]"


# --- drawn structures -------------------------------------------------------------------------------


def nested() -> st.SearchStrategy[Any]:
    """Values in tuples, lists, dicts and named tuples; leaves are strings."""
    return st.recursive(
        st.just("leaf"),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
            st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        ),
        max_leaves=8,
    )


def described(value: Any, leaves: list[Any]) -> Any:
    """The node for a value, written down once more for the test."""
    if isinstance(value, str):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if isinstance(value, dict):
        return DictNode(tuple(value), tuple(described(item, leaves) for item in value.values()))
    items = tuple(described(item, leaves) for item in value)
    if isinstance(value, Point):
        return NamedTupleNode("Point", Point._fields, items)
    return ListNode(items) if isinstance(value, list) else TupleNode(items)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, (tuple, list)):
        alike = isinstance(other, tuple) if isinstance(one, tuple) else isinstance(other, list)
        fields = getattr(one, "_fields", None) == getattr(other, "_fields", None)
        return alike and fields and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@settings(max_examples=200, deadline=None)
@given(nested())
def test_what_is_flattened_is_rebuilt(value: Any) -> None:
    leaves: list[Any] = []
    node = described(value, leaves)
    flat = bind(one(node, len(leaves)), (value,), {})
    assert flat == tuple(leaves)
    numbered = tuple(range(len(flat)))
    rebuilt = builder(node)(numbered)
    assert bind(one(node, len(leaves)), (rebuilt,), {}) == numbered
    assert same(builder(node)(flat), value)


@settings(max_examples=200, deadline=None)
@given(nested(), nested())
def test_another_structure_is_refused(value: Any, other: Any) -> None:
    leaves: list[Any] = []
    node = described(value, leaves)
    if described(value, []) == described(other, []) or isinstance(value, str):
        return
    try:
        flat = bind(one(node, len(leaves)), (other,), {})
    except GuardError as error:
        assert error.code == "TC302"
        return
    # A leaf takes anything (the guards look at it), and the order of a dict's keys is free.
    assert len(flat) == len(leaves)


def test_plain_calls_are_recognised() -> None:
    x, y = Parameter("x", "either", Leaf(0)), Parameter("y", "either", Leaf(1))
    assert is_plain([x, y])
    assert not is_plain([y, x])
    assert not is_plain([x, Parameter("y", "keyword", Leaf(1))])
    assert not is_plain([x, Parameter("y", "either", TupleNode((Leaf(1),)))])
