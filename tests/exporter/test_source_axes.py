"""Axis names: from every place where they are given, and held against the example."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcexport import UsageError
from tcexport.artifacts.expr import render
from tcexport.exporter.axes import (
    Axes,
    axes_from_python,
    check_axes,
    check_dynamic_names,
    dim_names,
    dim_sizes,
    parse_axes,
    parse_axis,
)
from tcexport.exporter.source import load_source

MODEL = """
import torch
class Net(torch.nn.Module):
    def forward(self, ids, mask=None, k=2): return ids
example_inputs = (torch.zeros(4, 8, dtype=torch.int64), torch.ones(4, 8))
"""


def load(folder: Path, text: str, **options: Any) -> Axes:
    path = folder / "model.py"
    path.write_text(dedent(text))
    return load_source(str(path), **options).axes


def refusal(function: Any, *args: Any, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        function(*args, **options)
    return caught.value


def test_the_file_names_axes(tmp_path: Path) -> None:
    axes = load(tmp_path, MODEL + 'axes = {"ids": ("batch", "seq")}')
    assert axes == {"ids": ("batch", "seq"), "mask": (None, None)}


def test_the_command_line_goes_before_the_file_input_by_input(tmp_path: Path) -> None:
    text = MODEL + 'axes = {"ids": ("batch", "seq"), "mask": ("batch", "seq")}'
    axes = load(tmp_path, text, axes=["ids=b,_"])
    assert axes == {"ids": ("b", None), "mask": ("batch", "seq")}


def test_input_options_name_axes(tmp_path: Path) -> None:
    axes = load(tmp_path, MODEL, inputs=["ids=int64[n=4,2*m=6]"], axes=["mask=-,m+5"])
    assert axes == {"ids": ("n", "2*m"), "mask": (None, "m + 5")}


def test_jaxtyping_annotations_name_what_nothing_else_names(tmp_path: Path) -> None:
    text = """
    from __future__ import annotations
    from typing import Optional
    import torch
    from jaxtyping import Float, Int
    from torch import Tensor
    class Net(torch.nn.Module):
        def forward(
            self,
            ids: Int[Tensor, "batch seq"],
            x: Float[Tensor, "batch 2*seq 16"],
            y: Optional[Float[Tensor, "rows=4 *rest seq"]] = None,
            z: Float[Tensor, "#batch _ ... n+1"] | None = None,
            w: NotImported = None,
            own: Float[Tensor, "a b"] = None,
        ): return ids
    example_inputs = (
        torch.zeros(4, 8, dtype=torch.int64), torch.zeros(4, 16, 16), torch.zeros(4, 1, 1, 8),
        torch.zeros(1, 2, 3), torch.zeros(2), torch.zeros(2, 3),
    )
    axes = {"own": ("p", None)}
    """
    assert load(tmp_path, text) == {
        "ids": ("batch", "seq"),
        "x": ("batch", "2*seq", 16),
        "y": (4, None, None, "seq"),
        "z": (None, None, "n + 1"),
        "w": (None,),
        "own": ("p", None),
    }


def test_an_annotation_of_another_rank_is_refused(tmp_path: Path) -> None:
    text = """
    import torch
    from jaxtyping import Float
    class Net(torch.nn.Module):
        def forward(self, x: Float[torch.Tensor, "batch seq"]): return x
    example_inputs = torch.zeros(3)
    """
    error = refusal(load, tmp_path, text)
    assert error.code == "TC007"
    assert 'forward says x is "batch seq", but the example has 1 axis' in str(error)


def test_a_wrong_input_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    error = refusal(load, tmp_path, MODEL, axes=["idz=batch,seq"])
    assert error.code == "TC006"
    assert str(error) == (
        "error[TC006] axes: there is no input idz\n"
        "  tensor inputs: ids, mask\n"
        "  try: --axes ids=batch,seq\n"
        "  try: axes={\"ids\": ('batch', 'seq')}"
    )


def test_an_input_without_axes_is_said_to_have_none(tmp_path: Path) -> None:
    error = refusal(load, tmp_path, MODEL, axes=["k=batch"])
    assert (error.code, "k is a plain value, it has no axes" in str(error)) == ("TC006", True)


def test_a_nested_argument_is_named_leaf_by_leaf() -> None:
    tensors = {"batch.ids": torch.zeros(2), "batch.mask": torch.zeros(2)}
    error = refusal(check_axes, {"batch": ("n",)}, tensors, [])
    assert "batch holds several inputs, name them one by one" in str(error)
    assert "--axes batch.ids=batch" in str(error)


@pytest.mark.parametrize(
    ("axes", "shapes", "said"),
    [
        ({"x": ("n",)}, {"x": (4, 8)}, "x has 2 axes (the example is [4, 8]), but 1 are named: n"),
        ({"x": ("n", 7)}, {"x": (4, 8)}, "x axis 1 is said to be 7, but the example has 8"),
        ({"x": ("n", "n")}, {"x": (4, 8)}, "n is 4 on x axis 0 and 8 on x axis 1 in the example"),
        (
            {"x": ("n",), "y": ("n",)},
            {"x": (4,), "y": (5,)},
            "n is 4 on x axis 0 and 5 on y axis 0 in the example",
        ),
        (
            {"x": ("n",), "y": ("2*n",)},
            {"x": (4,), "y": (9,)},
            "y axis 0 is 2*n = 8, but the example has 9",
        ),
        ({"x": ("2*n",)}, {"x": (9,)}, "x axis 0 is 2*n, which is 9 in the example for no size"),
        ({"x": ("a + b",)}, {"x": (9,)}, "nothing says what a and b are"),
        ({"x": ("n//0",)}, {"x": (9,)}, "x axis 0"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    axes: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], said: str
) -> None:
    tensors = {path: torch.zeros(shape) for path, shape in shapes.items()}
    error = refusal(check_axes, axes, tensors, [])
    assert error.code == "TC007"
    assert said in str(error)


def test_derived_dims_are_solved_without_their_root() -> None:
    tensors = {"x": torch.zeros(10), "y": torch.zeros(6), "z": torch.zeros(5, 16)}
    axes = {"x": ("2*n",), "y": ("n+1",), "z": ("n", "n + k")}
    assert dim_sizes(axes, tensors) == {"n": 5, "k": 11}


@given(
    n=st.integers(0, 50),
    a=st.integers(1, 7),
    b=st.integers(0, 7),
    shift=st.sampled_from([-1, 0, 1]),
)
def test_a_linear_axis_fits_exactly_its_own_sizes(n: int, a: int, b: int, shift: int) -> None:
    size = a * n + b + shift
    if size < 0:
        return
    axes, tensors = {"x": (f"{a}*n + {b}",)}, {"x": torch.zeros(size)}
    fits = size >= b and (size - b) % a == 0
    if fits:
        assert dim_sizes(axes, tensors) == {"n": (size - b) // a}
    else:
        assert refusal(dim_sizes, axes, tensors).code == "TC007"


@pytest.mark.parametrize("text", ["n", "2*n", "n + 1", "(n + 1)*2", "a*b", "n//2", "n - m - 1"])
def test_an_expression_is_read_as_it_is_written(text: str) -> None:
    assert render(parse_axis(text)) == text.replace("//", " // ")


@pytest.mark.parametrize("text", ["2n", "n/2", "n**2", "in", "f(n)", "n.m", "-n", "", "a b", "1.5"])
def test_what_is_no_axis_name_is_refused(text: str) -> None:
    error = refusal(parse_axis, text)
    assert (error.code, f"{text!r} does not name an axis" in str(error)) == ("TC007", True)


@pytest.mark.parametrize(
    ("value", "code"), [("ids", "TC008"), ("=a", "TC008"), ("ids=", "TC008"), ("x=2n", "TC007")]
)
def test_a_malformed_axes_option_is_refused(value: str, code: str) -> None:
    assert refusal(parse_axes, [value]).code == code


def test_one_input_is_named_once() -> None:
    assert "names x twice" in str(refusal(parse_axes, ["x=a", "x=b"]))


@pytest.mark.parametrize(
    ("axes", "tried"),
    [
        ({"x": "seq"}, "axes = {\"x\": ('seq',)}"),
        ({"x": "batch, seq"}, "axes = {\"x\": ('batch', 'seq')}"),
        ({"x": {0: "batch"}}, "axes = {\"x\": ('batch',)}"),
        (["batch"], 'axes = {"input_ids": ("batch", "seq")}'),
    ],
)
def test_axes_of_another_form_are_refused_with_the_right_one(axes: Any, tried: str) -> None:
    error = refusal(axes_from_python, axes)
    assert (error.code, error.diagnostics[0].tries) == ("TC007", (tried,))


def test_a_misspelt_dim_is_answered_with_the_nearest_and_the_list() -> None:
    axes: Axes = {"ids": ("batch", "seq"), "x": ("2*seq", None)}
    assert dim_names(axes) == ["batch", "seq"]
    check_dynamic_names({"seq": None, "batch": None}, axes)
    assert str(refusal(check_dynamic_names, {"sep": None}, axes)) == (
        "error[TC006] no axis is called sep\n"
        "  axes: ids (batch, seq), x (2*seq, _)\n"
        "  try: --dynamic seq"
    )


def test_a_dim_without_any_names_is_answered_with_how_to_name() -> None:
    error = refusal(check_dynamic_names, {"seq": None}, {"ids": (None, None), "k": ()})
    assert str(error) == (
        "error[TC006] no axis is called seq: the axes have no names yet\n"
        "  inputs: ids (2 axes), k (0 axes)\n"
        "  try: --axes ids=seq,_\n"
        "  try: axes={\"ids\": ('seq', None)}"
    )
