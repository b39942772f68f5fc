"""Ops that are not torch's: computed by a lowering that comes with the model, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport

PAGE = Path(__file__).parents[2] / "docs" / "custom-ops.md"


@torch.library.custom_op("tcexport_tests::pair_sum", mutates_args=())
def pair_sum(x: torch.Tensor, other: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return (x[:, 0::2] + x[:, 1::2]) * scale + other


@pair_sum.register_fake
def _(x: torch.Tensor, other: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pair_sum(x * 2, x[:, :3]) + 1


def by_expression(x: Any, other: Any, scale: float) -> Any:
    from tvm import te

    def element(row: Any, column: Any) -> Any:
        return (x[row, 2 * column] + x[row, 2 * column + 1]) * scale + other[row, column]

    return te.compute((x.shape[0], 3), element)


def by_function(x: Any, other: Any, scale: float) -> Any:
    from tvm import te, tirx

    rows = tirx.Var("rows", "int64")
    a, b = te.placeholder((rows, 6), "float32"), te.placeholder((rows, 3), "float32")
    return te.create_prim_func([a, b, by_expression(a, b, scale)])


def check(lowering: Callable[..., Any]) -> Any:
    return tcexport.check(
        Net().eval(),
        (torch.rand(5, 6),),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 64)},
        lowerings={"tcexport_tests::pair_sum": lowering},
    )


@pytest.mark.parametrize("lowering", [by_expression, by_function])
def test_a_lowering_gives_eagers_numbers(lowering: Callable[..., Any], tmp_path: Path) -> None:
    report = tcexport.export(
        Net().eval(),
        (torch.rand(5, 6),),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 64)},
        lowerings={"tcexport_tests::pair_sum": lowering},
        out=tmp_path / "m.tcpkg",
        targets=("cpu:x86-64-v3",),
    )
    assert [use.op for use in report.ops if "::" in use.op] == ["tcexport_tests::pair_sum"]
    model = tcexport.load(report.path)
    for rows in (1, 7, 64):
        x = torch.rand(rows, 6)
        np.testing.assert_allclose(model(x.numpy()), Net()(x), rtol=1e-6)


def test_the_page_shows_an_example_that_works(tmp_path: Path) -> None:
    from tcexport.exporter.export import export_source
    from tcexport.exporter.source import load_source

    (example,) = re.findall(r"```python\n(# model.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "model.py").write_text(example)
    source = load_source(str(tmp_path / "model.py"))
    report = export_source(
        source, dynamic={"n": None}, out=tmp_path / "m.tcpkg", targets=("cpu:x86-64-v3",)
    )
    x = torch.rand(9, 8)
    with torch.no_grad():
        want = source.module(x)
    np.testing.assert_allclose(tcexport.load(report.path)(x.numpy()), want, rtol=1e-5, atol=1e-6)


def test_without_a_lowering_it_is_refused() -> None:
    (error,) = tcexport.check(Net().eval(), (torch.rand(5, 6),)).errors
    assert (error.code, "tcexport_tests.pair_sum" in error.message) == ("TC120", True)
    assert any("lowerings" in each for each in error.tries)


def _fails(x: Any, other: Any, scale: float) -> Any:
    raise RuntimeError("no such thing")


def _wide(x: Any, other: Any, scale: float) -> Any:
    from tvm import te

    return te.compute(x.shape, lambda *at: x(*at))


def _other_dtype(x: Any, other: Any, scale: float) -> Any:
    from tvm import te

    return te.compute(other.shape, lambda *at: other(*at).astype("float64"))


def _fewer_buffers(x: Any, other: Any, scale: float) -> Any:
    from tvm import te

    return te.create_prim_func([x, te.compute(x.shape, lambda *at: x(*at))])


@pytest.mark.parametrize(
    ("lowering", "words"),
    [
        (_fails, "failed: RuntimeError: no such thing"),
        (_wide, r"gives float32\[.*6\], the op's fake float32\[.*3\]"),
        (_other_dtype, r"gives float64\[.*3\], the op's fake float32"),
        (_fewer_buffers, "takes other than 2 buffers and one for the result"),
        (lambda *_: 3, "gave a int, not a te.Tensor or a PrimFunc"),
    ],
)
def test_a_lowering_that_does_not_fit_is_refused(lowering: Any, words: str) -> None:
    (error,) = check(lowering).errors
    assert error.code == "TC520"
    assert re.search(words, error.message), error.message
    assert error.location is not None and error.location.file.endswith("test_own_ops.py")


def test_a_lowering_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    def other(x: Any, other: Any, scale: float) -> Any:
        return by_expression(x, other, scale + 1)

    with pytest.raises(tcexport.ExportError, match="TC504"):
        tcexport.export(
            Net().eval(),
            (torch.rand(5, 6),),
            lowerings={"tcexport_tests::pair_sum": other},
            out=tmp_path / "m.tcpkg",
            targets=("cpu:x86-64-v3",),
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lowerings", [[1], {"pair_sum": by_expression}, {"a::b": 3}])
def test_what_is_no_dict_of_lowerings_is_refused(lowerings: Any) -> None:
    with pytest.raises(tcexport.UsageError, match="TC520"):
        tcexport.check(Net().eval(), (torch.rand(5, 6),), lowerings=lowerings)
