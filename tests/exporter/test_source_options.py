"""What is typed: --dynamic, --target, --input; each form, and each way to get it wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcexport import UsageError
from tcexport.exporter.arms import with_cover
from tcexport.exporter.inputs import merged, parse_inputs
from tcexport.exporter.options import (
    DimRequest,
    dynamic_from_python,
    parse_dynamic,
    parse_plain,
    parse_targets,
)
from tcexport.exporter.profiles import parse_cover


def refusal(function: Any, *args: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        function(*args)
    return caught.value


# --- dynamic --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["seq"], {"seq": None}),
        (["seq=1..1024"], {"seq": DimRequest(1, 1024)}),
        (["seq=0..0"], {"seq": DimRequest(0, 0)}),
        (["w=4..16:4"], {"w": DimRequest(4, 16, 4)}),
        (["w=4.."], {"w": DimRequest(4)}),
        (["w=4..:4"], {"w": DimRequest(4, None, 4)}),
        (["seq=1..8,batch"], {"seq": DimRequest(1, 8), "batch": None}),
        (["seq = 1 .. 8 , batch"], {"seq": DimRequest(1, 8), "batch": None}),
        (["seq=1..8", "batch"], {"seq": DimRequest(1, 8), "batch": None}),
        (["seq", "seq"], {"seq": None}),
        ([], {}),
    ],
)
def test_dynamic_in_each_form(typed: list[str], meant: dict[str, Any]) -> None:
    assert parse_dynamic(typed) == meant


@given(
    st.dictionaries(
        st.sampled_from(["seq", "batch", "n_2", "größe"]),
        st.none()
        | st.builds(
            lambda lo, more, step: DimRequest(lo, None if more is None else lo + more, step),
            st.integers(0, 9999),
            st.none() | st.integers(0, 9999),
            st.integers(1, 64),
        ),
    )
)
def test_what_is_printed_can_be_typed_and_given_in_python(
    dynamic: dict[str, DimRequest | None],
) -> None:
    typed = [name if asked is None else f"{name}={asked}" for name, asked in dynamic.items()]
    assert parse_dynamic(typed) == dynamic
    written = {
        name: None if asked is None else (asked.lo, asked.hi, asked.step)
        for name, asked in dynamic.items()
    }
    assert dynamic_from_python(written) == dynamic


@pytest.mark.parametrize(
    ("typed", "said", "tried"),
    [
        ("seq=1-1024", "'1-1024' is not a range", "--dynamic seq=1..1024"),
        ("seq=1:1024", "'1:1024' is not a range", "--dynamic seq=1..1024"),
        ("seq=1...8", "'1...8' is not a range", "--dynamic seq=1..8"),
        ("seq=512", "'512' is not a range", "--dynamic seq=1..512"),
        ("seq=", "'' is not a range", "--dynamic seq=1..512"),
        ("seq=..8", "'..8' is not a range", "--dynamic seq=1..8"),
        ("seq=a..b", "'a..b' is not a range", "--dynamic seq=1..512"),
        ("seq=-1..8", "'-1..8' is not a range", "--dynamic seq=1..8"),
        ("seq=9..4", "the range is empty, 9 is more than 4", "--dynamic seq=4..9"),
        ("seq=1..8:0", "the step must be at least 1", None),
        ("seq=1..9999999999999999999", "a size lies between 0 and 2**62", None),
        ("seq=1,1024", "'1' is not a range", "--dynamic seq=1..1"),
        ("2*n", "'2*n' is not the name of a dim", "--dynamic seq=1..512"),
        ("=1..8", "a range is written LO..HI", "--dynamic seq=1..512"),
        ("seq,", "'' is not the name of a dim", "--dynamic seq=1..512"),
    ],
)
def test_a_malformed_dynamic_says_what_is_read(typed: str, said: str, tried: str | None) -> None:
    error = refusal(parse_dynamic, [typed])
    assert error.code == "TC008"
    assert f"--dynamic {typed}" in str(error)
    assert said in str(error)
    assert error.diagnostics[0].tries == (() if tried is None else (tried,))


def test_what_to_type_names_the_option_that_was_typed() -> None:
    error = refusal(parse_cover, ["seq=9..4"])
    assert error.diagnostics[0].tries == ("--cover seq=4..9",)


def test_a_dim_is_dynamic_and_covered_in_one_range() -> None:
    span, other = DimRequest(1, 64), DimRequest(1, 9)
    for asked in ({}, {"seq": None}, {"seq": span}):
        assert with_cover({"b": None, **asked}, "seq", span) == {"b": None, "seq": span}
    error = refusal(with_cover, {"seq": other}, "seq", span)
    assert error.code == "TC008" and "1..9 in --dynamic, and 1..64 in --cover" in str(error)


def test_one_dim_with_two_ranges_is_refused() -> None:
    error = refusal(parse_dynamic, ["seq=1..8", "seq=1..9"])
    assert "dim seq is asked for twice, with 1..8 and 1..9" in str(error)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["seq"], 'dynamic={"seq": None}'),
        ("seq", 'dynamic={"seq": None}'),
        ({"seq": 8}, "is not (lo, hi), (lo, hi, step) or None"),
        ({"seq": "1..8"}, "is not (lo, hi), (lo, hi, step) or None"),
        ({"seq": (1.0, 8)}, "the bounds must be ints"),
        ({"seq": (True, 8)}, "the bounds must be ints"),
        ({"seq": (None, 8)}, "the bounds must be ints"),
        ({"seq": (9, 4)}, "the range is empty"),
        ({"seq": (-1, 4)}, "a size lies between 0 and 2**62"),
        ({"2*n": (1, 4)}, "'2*n' is not the name of a dim"),
        ({3: (1, 4)}, "3 is not the name of a dim"),
    ],
)
def test_a_malformed_dynamic_in_python_says_what_to_write(written: Any, said: str) -> None:
    error = refusal(dynamic_from_python, written)
    assert error.code == "TC008"
    assert said in str(error)


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["cpu"], ["x86-64-v3", "x86-64-v4"]),
        (["cpu:x86-64-v4+x86-64-v3"], ["x86-64-v3", "x86-64-v4"]),
        (["cpu:x86-64-v2", "cpu:x86-64-v2"], ["x86-64-v2"]),
        (["cpu:x86-64-v3", "cpu:aarch64"], ["aarch64", "x86-64-v3"]),
        ("cpu:aarch64", ["aarch64"]),
        ("cpu:arm64-macos+x86-64-v3", ["arm64-macos", "x86-64-v3"]),
    ],
)
def test_targets_in_each_form(typed: Any, meant: list[str]) -> None:
    assert [target.name for target in parse_targets(typed)] == meant


@pytest.mark.parametrize(
    ("typed", "said", "tried"),
    [
        ("gpu", "cannot be built by this version", "--target cpu"),
        ("cpu:x86-64-v5", "no CPU level 'x86-64-v5'", "--target cpu:x86-64-v"),
        ("x86-64-v3", "cannot be built by this version", "--target cpu:x86-64-v3"),
        ("cpu:", "no CPU level ''", "--target cpu"),
    ],
)
def test_an_unknown_target_is_refused_with_the_list(typed: str, said: str, tried: str) -> None:
    error = refusal(parse_targets, [typed])
    assert error.code == "TC506"
    assert said in str(error)
    levels = "cpu:x86-64-v2, cpu:x86-64-v3, cpu:x86-64-v4, cpu:aarch64, cpu:arm64-macos"
    assert f"targets: cpu, {levels}" in str(error)
    assert error.diagnostics[0].tries[0].startswith(tried)


# --- inputs ---------------------------------------------------------------------------------------


def test_tensors_come_with_dtype_shape_and_names() -> None:
    ids, x, mask, scalar = parse_inputs(
        [
            "ids=int64[batch=4,seq=128]<30000",
            "x=float32[3, 2*n=8]",
            "mask=bool[4,seq=128]",
            "s=float64[]",
        ]
    )
    assert (ids.value.dtype, tuple(ids.value.shape)) == (torch.int64, (4, 128))
    assert (ids.value.min() >= 0, ids.value.max() > 10000, ids.value.max() < 30000) == (1, 1, 1)
    assert (ids.axes, x.axes, mask.axes) == (("batch", "seq"), (None, "2*n"), (None, "seq"))
    assert x.value.std() > 0.5
    assert set(mask.value.unique().tolist()) == {False, True}
    assert scalar.value.shape == ()


def test_integers_without_a_bound_are_0_and_1_and_draws_repeat() -> None:
    (first,), (again,) = (parse_inputs(["ids=int32[9,9]"]) for _ in range(2))
    assert set(first.value.unique().tolist()) == {0, 1}
    assert torch.equal(first.value, again.value)
    a, b = parse_inputs(["a=float32[9]", "b=float32[9]"])
    assert not torch.equal(a.value, b.value), "two inputs are not one by chance"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-5", 1e-5),
        ("true", True),
        ("False", False),
        ("none", None),
        ("'abc'", "abc"),
        ('"3"', "3"),
    ],
)
def test_plain_values(text: str, value: Any) -> None:
    found = parse_plain("k", text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("ids=int46[2]", "no dtype int46"),
        ("ids=int64[2", "a tensor is read as dtype[dim,dim,…]"),
        ("ids=[2,3]", "a tensor is read as dtype[dim,dim,…]"),
        ("ids=int64[seq]", "'seq' has no size"),
        ("ids=int64[2,,3]", "'' has no size"),
        ("ids=int64[-1]", "'-1' has no size"),
        ("x=float32[2]<3", "a bound is for integers and is at least 1"),
        ("ids=int64[2]<0", "a bound is for integers and is at least 1"),
        ("ids=uint8[2]<300", "cannot hold 299"),
        ("ids=int64[2n=4]", "'2n' does not name an axis"),
        ("x=float32[99999,99999,99999]", "are too many for an example"),
        ("x=abc", "abc is no value"),
        ("x=[1, 2]", "cannot read"),
        ("x", "it is read as INPUT=VALUE"),
        ("x=", "it is read as INPUT=VALUE"),
        ("3x=1", "it is read as INPUT=VALUE"),
        ("x..y=1", "it is read as INPUT=VALUE"),
    ],
)
def test_a_malformed_input_says_what_is_read(typed: str, said: str) -> None:
    error = refusal(parse_inputs, [typed])
    assert error.code in ("TC007", "TC008")
    assert said in str(error)


def test_a_misspelt_dtype_is_answered_with_the_whole_option() -> None:
    error = refusal(parse_inputs, ["ids=int46[batch=4]"])
    assert error.diagnostics[0].tries == ("--input 'ids=int64[batch=4]'",)


def test_a_str_without_quotes_is_answered_with_how_to_quote_it() -> None:
    assert refusal(parse_inputs, ["s=abc"]).diagnostics[0].tries == ("--input \"s='abc'\"",)


def test_inputs_take_the_place_of_the_examples() -> None:
    given = parse_inputs(["b=2", "c=3", "d.x=4", "d.y=5", "e[1]=7", "e[0]=6", "f[0].z=8"])
    args, kwargs = merged((10, 20), {"c": 30}, ["a", "b"], given)
    assert args == (10, 2)
    assert kwargs == {"c": 3, "d": {"x": 4, "y": 5}, "e": (6, 7), "f": ({"z": 8},)}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["a=1", "a=2"], "gives a twice"),
        (["a=1", "a.b=2"], "gives a whole and a.b too"),
        (["a.b=1", "a.b.c=2"], "gives a.b whole and parts of it too"),
        (["a[0]=1", "a[2]=2"], "the parts of a are not a[0], a[1], …"),
        (["a[0]=1", "a.b=2"], "the parts of a are not a[0], a[1], …"),
    ],
)
def test_inputs_that_contradict_each_other_are_refused(typed: list[str], said: str) -> None:
    error = refusal(lambda: merged((), {}, [], parse_inputs(typed)))
    assert (error.code, said in str(error)) == ("TC008", True), str(error)
