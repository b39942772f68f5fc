"""Arguments as data: parameters, paths, defaults, and one normal form for equal calls."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from tcexport import UsageError
from tcexport.artifacts.contract import (
    AbsentNode,
    DictNode,
    Leaf,
    ListNode,
    NamedTupleNode,
    Parameter,
    TupleNode,
)
from tcexport.exporter.signature import bind

X, Y = torch.zeros(1), torch.ones(2)
DEFAULT = torch.zeros(2)
Point = namedtuple("Point", "x y")


def module(forward: Any) -> torch.nn.Module:
    """A module whose forward is the function given (its first parameter is self)."""
    return type("Net", (torch.nn.Module,), {"forward": forward})()


def refusal(*args: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        bind(*args)
    return caught.value


def test_every_kind_of_parameter() -> None:
    def forward(self, a, /, b, *rest, c, d=3, **more):  # type: ignore[no-untyped-def]
        return a

    bound = bind(module(forward), (X, 1, Y, 2), {"z": X, "c": "s", "e": None})
    assert bound.parameters == (
        Parameter("a", "positional", Leaf(0)),
        Parameter("b", "either", Leaf(1)),
        Parameter("rest[0]", "positional", Leaf(2)),
        Parameter("rest[1]", "positional", Leaf(3)),
        Parameter("c", "keyword", Leaf(4)),
        Parameter("d", "keyword", Leaf(5), optional=True),
        Parameter("e", "keyword", Leaf(6)),
        Parameter("z", "keyword", Leaf(7)),
    )
    assert bound.leaves == (
        *(("a", X), ("b", 1), ("rest[0]", Y), ("rest[1]", 2)),
        *(("c", "s"), ("d", 3), ("e", None), ("z", X)),
    )
    assert bound.args == (X, 1, Y, 2)
    assert list(bound.kwargs) == ["c", "d", "e", "z"]
    assert bound.tensors == {"a": X, "rest[0]": Y, "z": X}


def test_nested_arguments_have_paths() -> None:
    def forward(self, batch, pair):  # type: ignore[no-untyped-def]
        return pair

    batch = {"ids": X, "a b": 1, 3: [Y, {"m": None}], "at": Point(X, 2.5)}
    bound = bind(module(forward), (batch, (X, ())), {})
    assert [path for path, _ in bound.leaves] == [
        *("batch.ids", "batch['a b']", "batch[3][0]", "batch[3][1].m", "batch.at.x", "batch.at.y"),
        "pair[0]",
    ]
    assert [parameter.structure for parameter in bound.parameters] == [
        DictNode(
            ("ids", "a b", 3, "at"),
            (
                Leaf(0),
                Leaf(1),
                ListNode((Leaf(2), DictNode(("m",), (Leaf(3),)))),
                NamedTupleNode("Point", ("x", "y"), (Leaf(4), Leaf(5))),
            ),
        ),
        TupleNode((Leaf(6), TupleNode(()))),
    ]


def test_a_default_that_is_not_plain_must_be_left_out() -> None:
    def forward(self, x, table=(1, 2), k=2):  # type: ignore[no-untyped-def]
        return x

    bound = bind(module(forward), (X,), {"k": 5})
    assert bound.parameters[1] == Parameter("table", "either", AbsentNode(), optional=True)
    assert (bound.args, bound.kwargs) == ((X,), {"k": 5}), "what follows goes by name"
    assert bound.leaves == (("x", X), ("k", 5))


@given(st.permutations(["x", "a", "b", "e", "f"]), st.integers(0, 3))
def test_equal_calls_have_one_form(order: list[str], by_position: int) -> None:
    def forward(self, x, a, b=7, c=True, **more):  # type: ignore[no-untyped-def]
        return x

    values: dict[str, Any] = {"x": X, "a": 1, "b": 7, "e": Y, "f": 2}
    names = ["x", "a", "b"][:by_position]
    args = [values[name] for name in names]
    kwargs = {name: values[name] for name in order if name not in names}
    bound = bind(module(forward), args, kwargs)
    assert (bound.args, bound.kwargs) == ((X, 1, 7, True), {"e": Y, "f": 2})
    assert [path for path, _ in bound.leaves] == ["x", "a", "b", "c", "e", "f"]


_LEAVES = st.sampled_from([X, None, True, 3, 0.5, "s"])
_TREES = st.recursive(
    _LEAVES,
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.lists(below, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["b", "a", "long name", 1]), below, max_size=3),
        st.tuples(below, below).map(lambda pair: Point(*pair)),
    ),
    max_leaves=8,
)


@given(st.lists(_TREES, min_size=1, max_size=3))
def test_leaves_come_in_the_order_in_which_torch_flattens_the_call(trees: list[Any]) -> None:
    def forward(self, *xs):  # type: ignore[no-untyped-def]
        return xs

    bound = bind(module(forward), trees, {})
    flat = pytree.tree_leaves((bound.args, bound.kwargs))
    assert [id(leaf) for _, leaf in bound.leaves] == [id(leaf) for leaf in flat]
    assert len({path for path, _ in bound.leaves}) == len(flat), "every path is another"


def test_behind_a_wrapper_keywords_stay_keywords() -> None:
    """Hugging Face's decorators look for their keywords in **kwargs and add them again."""

    def forward(self, x, cached=None, scale=2):  # type: ignore[no-untyped-def]
        return x * scale if cached else x

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        kwargs["cached"] = kwargs.get("cached") or True
        return forward(self, *args, **kwargs)

    net = module(wrapper)
    bound = bind(net, (Y,), {"scale": 3})
    assert (bound.args, bound.kwargs) == ((Y,), {"cached": None, "scale": 3})
    assert torch.equal(net(*bound.args, **bound.kwargs), 3 * Y)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros(2), "x is of type numpy.ndarray"),
        (np.float32(1), "x is of type numpy.float32"),
        (1j, "x is of type complex"),
        ({1, 2}, "x is of type set"),
        (object(), "x is of type object"),
        (X.shape, "x is of type torch.Size"),
        (OrderedDict(a=X), "x is of type collections.OrderedDict"),
        ([{"k": X, "m": b"s"}], "x[0].m is of type bytes"),
        ({1.5: X}, "x is a dict with the key 1.5"),
        ({True: X}, "x is a dict with the key True"),
        (torch.zeros(2).to_sparse(), "x is a torch.sparse_coo tensor"),
        (torch.float32, "x is of type torch.dtype"),
    ],
)
def test_what_a_contract_cannot_hold_is_refused_by_path_and_type(value: Any, said: str) -> None:
    error = refusal(module(lambda self, x: x), (value,), {})
    assert error.code == "TC005"
    assert f"example inputs: {said}" in str(error)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((X, X, X), {}, "too many positional arguments"),
        ((X,), {"x": X}, "multiple values for argument 'x'"),
        ((X,), {"z": X}, "got an unexpected keyword argument 'z'"),
    ],
)
def test_a_call_that_does_not_fit_shows_the_signature(
    args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    def forward(self, x, y=DEFAULT):  # type: ignore[no-untyped-def]
        return x

    error = refusal(module(forward), args, kwargs)
    assert error.code == "TC005"
    assert "do not fit forward(x, y=…) of Net" in str(error)
    assert said in str(error)
    location = error.diagnostics[0].location
    assert location is not None and location.text.startswith("def forward(self, x, y=")


def test_two_arguments_of_one_name_are_refused() -> None:
    def forward(self, x, /, **more):  # type: ignore[no-untyped-def]
        return x

    assert "two arguments of forward have the same name" in str(
        refusal(module(forward), (X,), {"x": Y})
    )


def test_every_order_of_keywords_gives_one_order_of_leaves() -> None:
    def forward(self, x, **more):  # type: ignore[no-untyped-def]
        return x

    given = {"b": X, "a": Y, "x": 1}
    orders = {
        tuple(path for path, _ in bind(module(forward), (), dict(order)).leaves)
        for order in itertools.permutations(given.items())
    }
    assert orders == {("x", "a", "b")}
