"""What torch checks in its kernels and writes down nowhere: each kind becomes a guard, or a check in
the compiled code. Each of these was once answered in silence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tcexport
from tcexport.artifacts.contract import Contract
from tcexport.artifacts.expr import render
from tcexport.exporter.export import check
from tcexport.exporter.options import dynamic_from_python
from tcexport.exporter.source import source_in_memory
from tcexport.runtime.coverage import coverage


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def checked(function: Callable[..., Any], example: torch.Tensor, **ranges: Any) -> Contract:
    source = source_in_memory(Applied(function).eval(), (example,), {}, {"x": ("b", "n")})
    return check(source, dynamic=dynamic_from_python(ranges), narrow=True).contract


@pytest.mark.parametrize(
    ("function", "spans"),
    [
        (lambda x: x.amax(1), {"b": "0..9", "n": "1..9"}),
        (lambda x: x.max(), {"b": "1..9", "n": "1..9"}),
        (lambda x: x.argmin(0), {"b": "1..9", "n": "0..9"}),
        (lambda x: x[:, 0], {"b": "0..9", "n": "1..9"}),
        (lambda x: x[:, -3], {"b": "0..9", "n": "3..9"}),
        (lambda x: x.squeeze(1), {"b": "0..9", "n": "2..9"}),
        (lambda x: x * (1 / x.shape[1]), {"b": "0..9", "n": "1..9"}),
        (lambda x: x * (100 // x.shape[1]), {"b": "0..9", "n": "1..9"}),
        (lambda x: x * (x.shape[1] % x.shape[0]), {"b": "1..9", "n": "0..9"}),
        (lambda x: x * x.shape[1] ** -0.5, {"b": "0..9", "n": "1..9"}),
        # Of these torch leaves nothing of the division.
        (lambda x: x * (x.shape[0] * x.shape[1] // x.shape[1]), {"b": "0..9", "n": "1..9"}),
        (lambda x: x * (x.shape[1] * 3 % x.shape[1]), {"b": "0..9", "n": "1..9"}),
        (lambda x: x.new_zeros(0 // x.shape[0]), {"b": "1..9", "n": "0..9"}),
        (lambda x: x.long() // x.shape[0], {"b": "0..9", "n": "0..9"}),  # then there is no element
        (lambda x: x.new_ones(3, dtype=torch.int64) // x.shape[0], {"b": "1..9", "n": "0..9"}),
        # Torch takes every size to be positive, whatever its range is.
        (lambda x: x * 2 if x.shape[0] > 0 else x.new_zeros(3), {"b": "1..9", "n": "0..9"}),
        (lambda x: x * 2 if x.shape[1] else x.new_zeros(3, 3), {"b": "0..9", "n": "1..9"}),
        (lambda x: F.conv1d(x[:1][None], torch.ones(2, 1, 3)), {"b": "1..9", "n": "3..9"}),
        # Of -0 torch does not know from which end it counts: served from 1 on.
        (lambda x: x + torch.ones(4, 9)[:, -x.shape[0] :].sum(), {"b": "1..9", "n": "0..9"}),
        # Ends of unknown sign: on the side of zero that they have in the example.
        (lambda x: x[:, : x.shape[1] - x.shape[1] // 3], {"b": "0..9", "n": "0..9"}),
        (lambda x: x[:, : -(x.shape[1] // 3)], {"b": "0..9", "n": "3..9"}),
        (lambda x: x[:, : 7 - x.shape[1]], {"b": "0..9", "n": "0..7"}),
        # What the trace cannot take where a size may be 0.
        (lambda x: torch.where(x[:, :1] > 0, x, -1.0), {"b": "0..9", "n": "1..9"}),
        # What torch's shape functions do not look at.
        (lambda x: F.avg_pool1d(x[None], 2, padding=1), {"b": "1..9", "n": "1..9"}),
        (lambda x: F.interpolate(x[None], scale_factor=1.5), {"b": "1..9", "n": "1..9"}),
        (lambda x: F.pad(x[None], (1, 1), mode="replicate"), {"b": "1..9", "n": "1..9"}),
        (lambda x: torch.arange(1, x.shape[1]), {"b": "0..9", "n": "1..9"}),
        (lambda x: x.new_zeros(x.shape[0] - 2), {"b": "2..9", "n": "0..9"}),
        (lambda x: x.reshape(-1, x.shape[1]), {"b": "0..9", "n": "1..9"}),
        (lambda x: x.softmax(1).sum(0), {"b": "0..9", "n": "0..9"}),
        (lambda x: x[:, -2:].mean(1), {"b": "0..9", "n": "0..9"}),
        (lambda x: x + torch.ones(24, 9)[: x.shape[0], : x.shape[1]], {"b": "0..9", "n": "0..9"}),
    ],
)
def test_sizes_at_which_eager_raises_are_not_served(
    function: Callable[..., Any], spans: dict[str, str]
) -> None:
    contract = checked(function, torch.randn(3, 5), b=(0, 9), n=(0, 9))
    assert {dim.name: dim.span() for dim in contract.dims} == spans
    sizes = [tuple(range(dim.lo, (dim.hi or 0) + 1)) for dim in contract.dims]
    for b, n in ((sizes[0][0], sizes[1][0]), (sizes[0][-1], sizes[1][-1])):
        function(torch.randn(b, n))
    for place, name in enumerate("bn"):
        below = sizes[place][0] - 1
        if below >= 0 and function(torch.randn(4, 4)).dim() != 2:
            with pytest.raises((RuntimeError, IndexError, ZeroDivisionError)):
                function(torch.randn(*(below if each == name else 4 for each in "bn")))


@pytest.mark.parametrize(
    ("function", "dtype", "guards"),
    [
        (lambda i: nn.functional.one_hot(i, 7), torch.int64, ["0 <= 6"]),
        (lambda i: torch.ones(9)[i + 2], torch.int64, ["-11 <= 6"]),
        # What may have wrapped around, or has an offset that hangs on its value: looked at in the code.
        (lambda i: torch.ones(200)[i.to(torch.int8).long()], torch.int64, []),
        (lambda i: torch.ones(200)[(i + 100).long()], torch.int8, []),
        (lambda i: torch.ones(9)[torch.where(i >= 0, i, i + 9)], torch.int64, []),
        # A type that holds all values of the other changes none.
        (lambda i: torch.ones(200)[i.long()], torch.int8, ["-200 <= 199"]),
        (lambda i: torch.ones(200)[i.int()], torch.uint8, ["-200 <= 199"]),
    ],
)
def test_indices_are_bounded_as_they_are_computed(
    function: Callable[..., Any], dtype: torch.dtype, guards: list[str]
) -> None:
    contract = checked(function, torch.ones(2, 3, dtype=dtype), b=(1, 9), n=(1, 9))
    found = [f"{render(each.lo)} <= {render(each.hi)}" for each in contract.index_guards]
    assert found == guards
    assert len(contract.computed_guards) == (0 if guards else 1)


class Asserting(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200, 3)

    def forward(self, x, ids):
        torch._assert_async((x > 0).all(), "only positive numbers")
        torch._assert_async((x < 50).all())
        return x * 2, self.table((ids + 100).long())


def test_assertions_on_values_hold_in_the_bundle(export_once: Callable[..., Path]) -> None:
    module, x = Asserting(), torch.tensor([1.0, 2.0])
    ids = torch.tensor([0, 27], dtype=torch.int8)
    model = tcexport.load(
        export_once(
            "asserting", module, (x, ids), axes={"x": ("n",), "ids": ("m",)},
            dynamic={"n": (0, 9), "m": (0, 9)},
        )
    )  # fmt: skip
    for some in (x, torch.ones(9), torch.ones(0)):
        for got, want in zip(model(some, ids), module(some, ids), strict=True):
            torch.testing.assert_close(got, want.detach())
    with pytest.raises(tcexport.GuardError) as error:
        model(torch.tensor([1.0, -2.0]), ids)
    assert error.value.code == "TC311"
    assert "only positive numbers" in str(error.value)
    assert "torch._assert_async((x > 0).all()" in str(error.value)
    with pytest.raises(tcexport.GuardError) as error:
        model(torch.tensor([1.0, 60.0]), ids)
    assert error.value.code == "TC311"
    assert "torch._assert_async((x < 50).all())" in str(error.value)
    with pytest.raises(tcexport.GuardError) as error:  # 100 + 100 is -56 in eight bits
        model(x, torch.tensor([100], dtype=torch.int8))
    assert error.value.code == "TC309"
    with pytest.raises(IndexError):
        module(x, torch.tensor([100], dtype=torch.int8))
    assert model.metrics.violations == {"TC311": 2, "TC309": 1}
    torch.testing.assert_close(model(x, ids)[0], x * 2)  # whole after a refusal


class Demanding(nn.Module):
    def forward(self, x, y, repeats):
        picked = torch.zeros(4).masked_scatter(y > 2, x.float())
        return x // y, x % (y - 1), x.repeat_interleave(repeats, 0), picked


def test_what_ops_require_of_values_holds_in_the_bundle(export_once: Callable[..., Path]) -> None:
    module = Demanding().eval()
    x, y, repeats = (
        torch.tensor([7, -8, 9, 5]),
        torch.tensor([2, 3, 2, 9]),
        torch.tensor([0, 2, 1, 3]),
    )
    model = tcexport.load(export_once("demanding", module, (x, y, repeats)))
    for good in (repeats, torch.zeros(4, dtype=torch.int64)):
        for got, want in zip(model(x, y, good), module(x, y, good), strict=True):
            torch.testing.assert_close(got, want)
    for wrong, needs, line in (
        ((x, torch.tensor([2, 0, 2, 3]), repeats), "no divisor is 0", "return x // y,"),
        ((x, torch.tensor([2, 3, 1, 3]), repeats), "no divisor is 0", "return x // y,"),
        ((x, y, torch.tensor([0, -2, 1, 3])), "no number of repeats is negative", "return x // y,"),
    ):
        with pytest.raises(RuntimeError):
            module(*wrong)
        with pytest.raises(tcexport.GuardError) as error:
            model(*wrong)
        assert error.value.code == "TC311"
        assert f"does not hold: {needs}" in str(error.value) and line in str(error.value)
    torch.testing.assert_close(model(x, y, repeats)[0], x // y)  # whole after a refusal


@pytest.mark.parametrize(
    ("function", "assumed"),
    [
        (lambda x, k: x[:, : k.item()], "the trace assumes size of slice <= 9"),
        (lambda x, k: x[: k.item(), k.item() :], "the trace assumes size of slice"),
        (
            lambda x, k: (torch._check(math.sqrt(k.float().item()) > 1), x)[1] * 2,
            "the trace assumes sqrt(item()) > 1",
        ),
        (lambda x, k: x[:, : k.sum().item() // 2] * 2, "size of slice <= 9"),
        (lambda x, k: (x * 2, k.sum().item() + 1), "the output [1] is a number computed"),
    ],
)
def test_numbers_that_the_model_computes_are_named_by_their_op_and_line(
    function: Callable[..., Any], assumed: str
) -> None:
    source = source_in_memory(
        Two(function).eval(), (torch.randn(3, 5), torch.tensor(2)), {}, {"x": ("b", "n")}
    )
    with pytest.raises(tcexport.ExportError) as error:
        check(source, dynamic=dynamic_from_python({"b": (0, 9), "n": (0, 9)}))
    assert error.value.code == "TC211"
    told = str(error.value)
    assert assumed in told and "test_conditions.py" in told
    assert ("torch._check(n <= x.shape[0])" in told) == ("size of slice" in assumed)
    without_source = [line for line in told.splitlines() if "test_conditions.py" not in line]
    assert not re.search(r"\b(s|u|zuf)\d+\b", "\n".join(without_source))


class Two(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, x, k):
        return self.function(x, k)


def test_the_value_of_an_input_has_a_range_with_open_ends() -> None:
    def head(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(k.item())

    source = source_in_memory(
        Two(head).eval(), (torch.randn(3), torch.tensor(2)), {}, {"x": ("n",)}
    )
    contract = check(source, dynamic=dynamic_from_python({"n": None})).contract
    assert {dim.name: dim.span() for dim in contract.dims} == {"n": "1..", "k": ".."}
    assert [render(guard.expr) for guard in contract.guards] == ["k >= 0"]
    served = coverage(contract, {"k": (0, 5)})
    assert served.served and [each.needs for each in served.conditions] == ["k >= 0"]
    assert not coverage(contract, {"k": (-1, 5)}).served


class Empty(nn.Module):
    def forward(self, x):
        return torch.cat([x, x[:1]]), x.new_ones(max(x.shape[0], 1)), x.roll(1, 0)


def test_sizes_of_0_are_what_eager_makes_of_them(export_once: Callable[..., Path]) -> None:
    module = Empty().eval()
    model = tcexport.load(
        export_once(
            "empty", module, (torch.randn(3, 2),), axes={"x": ("n", "m")},
            dynamic={"n": (0, 4), "m": (0, 4)},
        )
    )  # fmt: skip
    for shape in ((0, 2), (1, 2), (3, 0), (0, 0), (4, 4)):
        x = torch.randn(shape)
        for got, want in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("function", "first", "second", "guards"),
    [
        (lambda x, v: x.index_put((torch.tensor([0, 0, 1]),), v), (4, "n"), ("k", "m"), {"k": 3}),
        (lambda x, v: x.index_copy(0, torch.tensor([2, 0]), v), (4, "n"), ("k", "m"), {"k": 2}),
        (
            lambda x, v: F.conv1d(x[:, : v.shape[0]], torch.ones(2, 3, 1)),
            (1, 5, "n"),
            ("k",),
            {"k": 3},
        ),
    ],
)
def test_what_does_not_fit_is_not_served(
    function: Callable[..., Any], first: Any, second: Any, guards: dict[str, int]
) -> None:
    """Values of another shape than the place they are put to, another number of channels."""
    sizes = {"n": 6, "m": 6, **guards}

    def made(shape: Any) -> torch.Tensor:
        return torch.randn(*(sizes.get(size, size) for size in shape))

    def named(shape: Any) -> Any:
        return tuple(size if isinstance(size, str) else None for size in shape)

    names = [size for size in (*first, *second) if isinstance(size, str)]
    source = source_in_memory(
        Two(function).eval(), (made(first), made(second)), {},
        {"x": named(first), "k": named(second)},
    )  # fmt: skip
    with pytest.raises(tcexport.ExportError) as error:
        check(source, dynamic=dynamic_from_python(dict.fromkeys(names, (1, 9))))
    told = str(error.value)
    assert all(f"{name} can't be dynamic: the trace fixed it at {size}" in told
               for name, size in guards.items())  # fmt: skip
    assert "m" not in names or "m and n must be equal" in told


class SideOfValue(nn.Module):
    def forward(self, x, k):
        def taken(x, k):
            n = k.item()
            torch._check(n >= 3)
            return x * n

        return torch.cond(x.sum() > 0, taken, lambda x, k: x - 1.0, (x, k))


def test_what_a_side_asserts_of_the_value_of_an_input_holds_for_every_call() -> None:
    source = source_in_memory(
        SideOfValue().eval(), (torch.randn(3), torch.tensor(4)), {}, {"x": ("n",), "k": ()}
    )
    contract = check(source, dynamic=dynamic_from_python({"n": (1, 9)})).contract
    assert [render(guard.expr) for guard in contract.guards] == ["k >= 3"]


class SideOfNumber(nn.Module):
    def forward(self, x, k):
        def taken(x, k):
            n = (k > 0).sum().item()
            torch._check(n >= 3)
            return x * n

        return torch.cond(x.sum() > 0, taken, lambda x, k: x - 1.0, (x, k))  # here


def test_what_a_side_asserts_of_a_number_that_it_computes_is_refused_at_its_line() -> None:
    source = source_in_memory(
        SideOfNumber().eval(), (torch.randn(3), torch.arange(4)), {}, {"x": ("n",), "k": ("m",)}
    )
    with pytest.raises(tcexport.ExportError) as error:
        check(source, dynamic=dynamic_from_python({"n": (1, 9)}))
    (told,) = error.value.diagnostics
    assert told.code == "TC211" and told.location is not None
    assert told.location.text.endswith("# here")
