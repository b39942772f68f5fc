"""The generated choice among variants against a plain walk over their contracts."""

from __future__ import annotations

import dis
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcexport.artifacts.contract import (
    Contract,
    Guard,
    IndexGuard,
    TensorInput,
    TensorOutput,
    checked,
)
from tcexport.artifacts.errors import GuardError
from tcexport.artifacts.expr import ExprError, evaluate
from tcexport.artifacts.manifest import Entry
from tcexport.runtime.explain import explain, look
from tcexport.runtime.guards import Part, compile_dispatch
from tcexport.runtime.variants import Route, refuse

from .bundles import GIVEN, contract_of, dim

INPUTS = {"x": TensorInput("x", "float32", ("n", "m"))}
OUTPUTS = [TensorOutput("out", "float32", ("n",), 0)]


def contract(
    n: tuple[int, int | None, int], m: tuple[int, int | None, int], *guards: Any
) -> Contract:
    dims = [dim("n", 0, 0, n[0], n[1], step=n[2]), dim("m", 0, 1, m[0], m[1], step=m[2])]
    return checked(
        contract_of(INPUTS, OUTPUTS, dims, guards=tuple(Guard(each, GIVEN) for each in guards))
    )


SPAN = st.tuples(st.integers(0, 6), st.none() | st.integers(6, 12), st.integers(1, 3))
SIZE = st.recursive(
    st.integers(0, 6) | st.sampled_from(["n", "m"]),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), inner, inner),
    max_leaves=4,
)
GUARD = st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), SIZE, SIZE)
PARTS = st.lists(
    st.tuples(st.builds(contract, SPAN, SPAN, GUARD), st.lists(SIZE, max_size=2)), max_size=4
)


@settings(max_examples=300, deadline=None)
@given(
    whole=st.builds(contract, SPAN, SPAN),
    parts=PARTS,
    general=st.booleans(),
    sizes=st.tuples(st.integers(0, 14), st.integers(0, 14)),
)
def test_the_first_variant_whose_guards_hold_takes_the_call(
    whole: Contract, parts: list, general: bool, sizes: tuple[int, int]
) -> None:
    made = [Part(each, tuple(values)) for each, values in parts]
    if general or not made:
        made.append(Part(whole, ("n",)))
    checks = compile_dispatch(whole, made)
    x = np.zeros(sizes, np.float32)
    leaves = look(whole, [x])
    want = None
    if _meets(whole, leaves):
        want = next((k for k, part in enumerate(made) if _meets(part.contract, leaves)), None)
    dims = dict(zip(("n", "m"), sizes, strict=True))
    for check, flat in ((checks.numpy, [x]), (checks.seen, leaves)):
        if want is None:
            assert check(flat) is None
            continue
        try:
            values = [evaluate(size, dims) for size in made[want].sizes]
        except ExprError:
            assert _answer(check, flat) is None or check(flat)[-1] > want
            continue
        assert check(flat) == (*values, want)


def _answer(check: Any, flat: Any) -> Any:
    try:
        return check(flat)
    except ExprError:
        return None


def _meets(contract: Contract, leaves: Any) -> bool:
    try:
        explain(contract, leaves)
    except GuardError:
        return False
    return True


def _route(number: int, name: str, contract: Contract) -> Route:
    return Route(contract, (), number, name, Entry("main", (0,), (), (), 1), 0, (), (), ())


def test_a_call_that_no_variant_takes_says_what_each_needs() -> None:
    whole = contract((1, 100, 1), (1, 1, 1))
    low, high = contract((1, 10, 1), (1, 1, 1)), contract((20, 100, 1), (1, 1, 1))
    routes = [_route(0, "low", low), _route(1, "high", high)]
    x = np.zeros((15, 1), np.float32)
    assert compile_dispatch(whole, routes).numpy([x]) is None
    with pytest.raises(GuardError, match="got 15, which no variant takes") as error:
        refuse(whole, routes, look(whole, [x]))
    assert error.value.code == "TC320"
    assert error.value.needs == "n <= 10; or n >= 20"
    assert [note.partition(":")[0] for note in error.value.diagnostics[0].notes] == [
        "variant low",
        "variant high",
    ]


def test_what_the_bundle_refuses_as_a_whole_is_told_in_its_own_words() -> None:
    whole = contract((1, 100, 1), (1, 1, 1))
    routes = [_route(0, "low", contract((1, 10, 1), (1, 1, 1)))]
    with pytest.raises(GuardError, match="needs n <= 100"):
        refuse(whole, routes, look(whole, [np.zeros((101, 1), np.float32)]))


def test_dispatch_looks_at_what_variants_share_once() -> None:
    """The values of a tensor are gone through once, whatever the number of variants."""
    guarded = contract_of(
        {"x": TensorInput("x", "int64", ("n",))},
        OUTPUTS,
        [dim("n", 0, 0, 1, 64)],
        index_guards=(IndexGuard(0, 0, 3, GIVEN),),
    )
    whole = checked(guarded)
    parts = []
    for size in (1, 2, 3):
        (one,) = whole.dims
        narrow = msgspec.structs.replace(one, lo=size, hi=size)
        parts.append(Part(msgspec.structs.replace(whole, dims=(narrow,)), ()))
    check = compile_dispatch(whole, [*parts, Part(whole, ())]).numpy
    looks = [each for each in dis.get_instructions(check.__code__) if each.argval == "within"]
    assert len(looks) == 1
    assert check([np.array([3, 2])]) == (1,)
