"""Conditions on numbers that only the graph knows: a call for which one does not hold is refused, by
the code where the graph computes the number, before it where an input is the number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.expr import render
from tcexport.exporter.export import check
from tcexport.exporter.source import source_in_memory


class Checked(nn.Module):
    """Sizes, counts, floats and equal numbers, each asserted."""

    def forward(self, x, lengths, mask, same):
        n = lengths.sum().item()
        torch._check(n >= 0)
        torch._check(2 * n + 1 <= x.shape[0])
        torch._check(x.sum().item() > 0.25)
        found = mask.nonzero()
        torch._check(found.shape[0] <= 3)
        equal = same.sum().item()
        torch._check(equal == x.shape[0])
        return x[:n] * 2, found, x.reshape(equal) + 1, torch.arange(n)


def test_a_call_for_which_a_condition_does_not_hold_is_refused(
    export_once: Callable[..., Path],
) -> None:
    module = Checked().eval()
    x, lengths, mask = torch.ones(5), torch.tensor([1, 1]), torch.tensor([True, False, True])
    same = torch.tensor([2, 3])
    model = tcexport.load(
        export_once(
            "numbers", module, (x, lengths, mask, same),
            axes={"x": ("n",), "lengths": ("k",), "mask": ("m",), "same": (None,)},
            dynamic={"n": (2, 9), "k": (1, 4), "m": (1, 9)},
        )
    )  # fmt: skip
    held = [guard.what for guard in model.contract.computed_guards]
    assert {"item() >= 0", "2*item() + 1 <= n", "size of nonzero <= 3"} <= {*held}
    for call in (
        (x, lengths, mask, same),
        (torch.ones(9), torch.tensor([4]), torch.ones(3, dtype=torch.bool), torch.tensor([9, 0])),
        (torch.ones(2), torch.zeros(3, dtype=torch.int64), mask, torch.tensor([5, -3])),
    ):
        for got, want in zip(model(*call), module(*call), strict=True):
            torch.testing.assert_close(got, want)
    huge = torch.tensor([2**62, 0])  # twice that is no number of 64 bits, but below zero
    for wrong, needs, line in (
        ((x, torch.tensor([2, 1]), mask, same), "2*item() + 1 <= n", "n = lengths.sum()"),
        ((x, huge, mask, same), "2*item() + 1 <= n", "n = lengths.sum()"),
        ((x, torch.tensor([-1]), mask, same), "item() >= 0", ""),
        ((-x, lengths, mask, same), "0.25", "x.sum().item() > 0.25"),
        ((x, lengths, torch.ones(4, dtype=torch.bool), same), "size of nonzero <= 3", ""),
        ((x, lengths, mask, same + 1), "== n", ""),
    ):
        with pytest.raises(RuntimeError):
            module(*wrong)
        with pytest.raises(tcexport.GuardError) as error:
            model(*wrong)
        assert error.value.code == "TC311"
        assert needs in str(error.value) and line in str(error.value)
        assert "test_numbers.py" in str(error.value)
    for got, want in zip(
        model(x, lengths, mask, same), module(x, lengths, mask, same), strict=True
    ):
        torch.testing.assert_close(got, want)  # whole after a refusal


class Two(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, i, x):
        return self.function(i.item(), x)


@pytest.mark.parametrize(
    ("function", "guards"),
    [
        # Of a value that must be equal to something, torch keeps that something alone.
        (lambda n, x: (torch._check(n == 4), x * n)[1], {"i == 4"}),
        (lambda n, x: (torch._check(n == x.shape[0]), x.reshape(n))[1], {"i == n"}),
        (
            lambda n, x: (torch._check(n >= -3), torch._check(n < 8), x * n)[2],
            {"i >= -3", "i <= 7"},
        ),
    ],
)
def test_the_value_of_an_input_is_looked_at_before_a_call(
    function: Callable[..., Any], guards: set[str]
) -> None:
    example = (torch.tensor(4), torch.ones(4))
    source = source_in_memory(Two(function).eval(), example, {}, {"x": ("n",)})
    contract = check(source, dynamic={"n": None}).contract
    assert guards == {render(guard.expr) for guard in contract.guards}
    assert not contract.computed_guards


def test_a_condition_that_is_asserted_in_one_trace_alone_makes_another_graph() -> None:
    """At one size the model asserts something of its data: that size stays excluded."""

    class AtOne(nn.Module):
        def forward(self, x):
            if x.shape[0] == 1:
                torch._check(x.sum().item() > 0)
            return x * 2

    source = source_in_memory(AtOne().eval(), (torch.ones(4),), {}, {"x": ("n",)})
    contract = check(source, dynamic={"n": None}).contract
    (dim,) = contract.dims
    assert dim.lo == 2 and not contract.computed_guards


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: (torch._check(mask.any().item()), x * 2)[1],
        lambda x, mask: (torch._check(math.sqrt(x.sum().item()) > 1), x * 2)[1],
        lambda x, mask: (torch._check(x.sum().item() == 5.0), x * 2)[1],
        lambda x, mask: (y := _per_column(x, mask), torch._check(y.shape[0] <= 5))[0],
    ],
)
def test_what_cannot_be_looked_at_is_refused(function: Callable[..., Any]) -> None:
    """The first is lost by torch.export itself, in whose own programs it holds for every call. In the
    last, a mask of two hits ten times."""
    example = (torch.ones(5), torch.tensor([True, False]))
    source = source_in_memory(Applied(function).eval(), example, {}, {"x": ("n",)})
    with pytest.raises(tcexport.ExportError) as error:
        check(source, dynamic={"n": None})
    assert error.value.code == "TC211"
    assert "assert it of a tensor" in str(error.value)
    assert not re.search(r"assumes [\d.]+ == ", str(error.value))


def _per_column(x, mask):
    return x[:, None].expand(-1, 2).masked_select(mask)


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, x, mask):
        return self.function(x, mask)
