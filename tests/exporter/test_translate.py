"""Quotients that Python rounds, over the dims: what the contract computes is what Python does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy.functions import (
    CeilToInt,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    ToFloat,
    TruncToInt,
)

import tcexport
from tcexport.artifacts.contract import SizeOutput
from tcexport.artifacts.errors import ExportError
from tcexport.artifacts.expr import evaluate, render
from tcexport.exporter.export import check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory
from tcexport.exporter.translate import substitute, to_expr

H, W = sympy.symbols("s0 s1", integer=True, positive=True)
V = sympy.Symbol("s2", integer=True)
DIMS = {H: "h", W: "w", V: "v"}
GRID = range(14)
ROUNDINGS: list[tuple[Any, Callable[[float], int]]] = [
    (TruncToInt, int),
    (CeilToInt, math.ceil),
    (FloorToInt, math.floor),
]


@pytest.mark.parametrize("rounding, in_python", ROUNDINGS)
@pytest.mark.parametrize("divisor", [1, 2, 4, 7, -1, -4, -7])
@pytest.mark.parametrize("numerator", [H, H - W, W - 2 * H, H - 9, V, -H, 3 * V - W, H * V])
def test_a_rounded_quotient_is_what_python_makes_of_it(
    rounding: Any, in_python: Callable[[float], int], divisor: int, numerator: Any
) -> None:
    expr = to_expr(rounding(IntTrueDiv(numerator, sympy.Integer(divisor))), DIMS)
    number = sympy.lambdify((H, W, V), numerator)
    for h, w, v in itertools.product(GRID, GRID[::3], range(-9, 10, 3)):
        expected = in_python(number(h, w, v) / divisor)
        assert evaluate(expr, {"h": h, "w": w, "v": v}) == expected, render(expr)


@pytest.mark.parametrize("rounding, in_python", ROUNDINGS)
@pytest.mark.parametrize("factor", [1.5, 0.25, 2.75])
def test_a_rounded_product_is_what_python_makes_of_it(
    rounding: Any, in_python: Callable[[float], int], factor: float
) -> None:
    expr = to_expr(rounding(sympy.Float(factor) * ToFloat(H - 9)), DIMS)
    for h in GRID:
        assert evaluate(expr, {"h": h}) == in_python((h - 9) * factor), render(expr)


@pytest.mark.parametrize("rounding, in_python", ROUNDINGS)
def test_a_quotient_of_two_sizes_is_rounded_as_python_does(
    rounding: Any, in_python: Callable[[float], int]
) -> None:
    expr = to_expr(rounding(IntTrueDiv(H - 9, W)), DIMS)
    for h, w in itertools.product(GRID, GRID[1:]):
        assert evaluate(expr, {"h": h, "w": w}) == in_python((h - 9) / w), render(expr)


def test_a_floor_division_by_a_negative_number_is_pythons() -> None:
    expr = to_expr(FloorDiv(H - 9, sympy.Integer(-4)), DIMS)
    for h in GRID:
        assert evaluate(expr, {"h": h}) == (h - 9) // -4


def test_what_is_never_negative_is_divided_plainly() -> None:
    assert render(to_expr(TruncToInt(IntTrueDiv(H + 2 * W, sympy.Integer(4))), DIMS)) in (
        "(h + 2*w) // 4",
        "(2*w + h) // 4",
    )


class Quarter(nn.Module):
    def forward(self, x):
        h, w = x.shape
        return x * 3 if int((h - w) / 4) == -1 else x * 2


class Given(nn.Module):
    def forward(self, x):
        h, w = x.shape
        return x, int((h - w) / 4), int((h - 9) * 1.5)


def _source(module: nn.Module, *shape: int) -> Any:
    return source_in_memory(module.eval(), (torch.randn(*shape),), {}, {"x": ("h", "w")})


DYNAMIC = {"h": DimRequest(1, 20), "w": DimRequest(1, 20)}


def test_a_branch_on_int_of_a_negative_quotient_is_checked_as_eager_takes_it() -> None:
    contract = check(_source(Quarter(), 17, 9), dynamic=DYNAMIC, narrow=True).contract
    for h, w in itertools.product(range(1, 21), repeat=2):
        inside = all(dim.lo <= {"h": h, "w": w}[dim.name] <= dim.hi for dim in contract.dims)
        served = inside and all(evaluate(each.expr, {"h": h, "w": w}) for each in contract.guards)
        assert served == (inside and int((h - w) / 4) != -1), (h, w)


def test_an_output_that_is_int_of_a_negative_quotient_is_eagers() -> None:
    contract = check(_source(Given(), 17, 9), dynamic=DYNAMIC).contract
    first, second = (each.value for each in contract.outputs if isinstance(each, SizeOutput))
    for h, w in itertools.product(range(1, 21), repeat=2):
        assert evaluate(first, {"h": h, "w": w}) == int((h - w) / 4)
        assert evaluate(second, {"h": h, "w": w}) == int((h - 9) * 1.5)


class Scaled(nn.Module):
    def forward(self, x):
        return x * round(x.shape[0] / 4)


def test_a_size_that_torch_cannot_save_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as refusal:
        tcexport.export(
            Scaled().eval(),
            (torch.randn(17),),
            axes={"x": ("n",)},
            dynamic={"n": (1, 64)},
            out=tmp_path / "rows.tcpkg",
        )
    (found,) = refusal.value.diagnostics
    assert found.code == "TC211" and "round()" in found.message
    assert found.location is not None and "round(" in found.location.text


class Rounded(nn.Module):
    """Sizes and numbers, rounded up and down, on both sides of zero."""

    def forward(self, x):
        n = x.shape[0]
        return (
            *(x.new_ones(each(n / 4)) for each in (math.ceil, math.floor)),
            *(x.new_ones(each((n - 9) / 4) + 3) for each in (math.ceil, math.floor)),
            *(x * each((n - 9) * 0.75) for each in (math.ceil, math.floor)),
            torch.nn.functional.pad(x, (0, math.ceil(n / 8) * 8 - n)),
        )


def test_sizes_are_rounded_up_and_down_as_python_does(export_once: Callable[..., Path]) -> None:
    model = Rounded().eval()
    path = export_once(
        "rounded", model, (torch.randn(17),), axes={"x": ("n",)}, dynamic={"n": (1, 64)}
    )
    bundle = tcexport.load(path)
    for n in range(1, 65):
        x = torch.randn(n)
        for mine, eager in zip(bundle(x), model(x), strict=True):
            assert mine.shape == eager.shape and torch.equal(torch.as_tensor(mine), eager)


@pytest.mark.parametrize("op", ["//", "%"])
@pytest.mark.parametrize("factor", [1, 2, 3, 12])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_a_dim_that_is_known_leaves_its_quotients_as_they_are(op: str, factor: int, n: int) -> None:
    expr = (op, ("*", factor, "h", ("min", 4, "n")), "n")
    for h in GRID:
        known = evaluate(substitute(expr, {"n": n}), {"h": h})
        assert known == evaluate(expr, {"h": h, "n": n})
    assert substitute(("//", ("*", "h", ("min", 4, "n")), "n"), {"n": 1}) == "h"
