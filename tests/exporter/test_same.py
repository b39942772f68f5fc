"""What is the same graph at seven rows, where a model does something else, and what only looks so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan
from torch.nn import functional as F

import tcexport
from tcexport.exporter.export import CheckReport, check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory


def checked(module: nn.Module) -> CheckReport:
    source = source_in_memory(module.eval(), (torch.rand(2, 5, 4),), {}, {"x": (None, "n", None)})
    return check(source, dynamic={"n": DimRequest(1, 64)})


def constants(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(0.5) if x.shape[1] == 7 else x * torch.tensor(2.0)


def signs_of_zero(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(0.0) if x.shape[1] == 7 else x * torch.tensor(-0.0)


def signs_of_zero_written_out(x: torch.Tensor) -> torch.Tensor:
    return x * 0.0 if x.shape[1] == 7 else x * -0.0


def nothing_seen(x: torch.Tensor) -> torch.Tensor:
    """A mask of no True lets no key be seen; one of zeros would let all."""
    n, mask = x.shape[1], None
    if n != 7:
        mask = (torch.arange(n)[:, None] * 0 + torch.arange(n) * 0 + n) != 7
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def rows_of_zeros(x: torch.Tensor) -> torch.Tensor:
    """Zeros and -1, which data choose; the zeros are -0.0 but for seven tokens."""
    zeros = torch.zeros(x.shape[1]) if x.shape[1] == 7 else -torch.zeros(x.shape[1])
    return zeros.masked_fill(x[0, :, 0] > 0, -1.0)


def signs_divided_by(x: torch.Tensor) -> torch.Tensor:
    return 1 / rows_of_zeros(x)


def signs_given_back(x: torch.Tensor) -> torch.Tensor:
    return rows_of_zeros(x) * 2


def signs_seen_by_atan2(x: torch.Tensor) -> torch.Tensor:
    return torch.atan2(rows_of_zeros(x), x[0, :, 0])


def signs_beside_a_softmax(x: torch.Tensor) -> torch.Tensor:
    """Hidden below a softmax, and seen beside it."""
    rows = rows_of_zeros(x)
    return torch.softmax(x + rows[:, None], dim=1) + 1 / rows[:, None]


def ones_below_a_softmax(x: torch.Tensor) -> torch.Tensor:
    """No zeros: what is added differs."""
    added = torch.arange(x.shape[1]) * (0.0 if x.shape[1] == 7 else 1.0)
    return torch.softmax(x + added.masked_fill(x[0, :, 0] > 0, -1.0)[:, None], dim=1)


def steps(x: torch.Tensor) -> torch.Tensor:
    """The same loop, but for a number inside of its step."""
    factor = 2.0 if x.shape[1] == 7 else 3.0

    def step(state: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state * factor + now, state + now

    return scan(step, x.new_zeros(x.shape[1], 4), x)[1]


def parts_in_steps(x: torch.Tensor) -> torch.Tensor:
    """A step that takes but a part of a row, at seven."""
    rows = 6 if x.shape[1] == 7 else x.shape[1]

    def step(state: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state + now[:rows].sum(0), state + now[0]

    return scan(step, x.new_zeros(4), x)[1]


def keys(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"a": x * 2} if x.shape[1] == 7 else {"b": x * 2}


def asserted_at_seven(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] == 7:
        torch._assert_async((x > 0).all(), "positive")
    return x * 2


def asserted_elsewhere(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] != 7:
        torch._assert_async((x > 0).all(), "positive")
    return x * 2


def asserts_another(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all() if x.shape[1] == 7 else (x > -1).all(), "high enough")
    return x * 2


def arms(x: torch.Tensor) -> torch.Tensor:
    """The same branch, but for a number inside of one arm."""
    other = (lambda x: x * 3) if x.shape[1] == 7 else (lambda x: x * 4)
    return torch.cond(x.sum() > 0, lambda x: x * 2, other, (x,))


class Writes(nn.Module):
    """To another state at seven."""

    a: torch.Tensor
    b: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(()))
        self.register_buffer("b", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (self.a if x.shape[1] == 7 else self.b).copy_(x.sum())
        return x * 2


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


OTHER_AT_SEVEN = [
    constants,
    signs_of_zero,
    signs_of_zero_written_out,
    nothing_seen,
    keys,
    asserted_at_seven,
    asserted_elsewhere,
    asserts_another,
    arms,
    signs_divided_by,
    signs_given_back,
    signs_seen_by_atan2,
    signs_beside_a_softmax,
    ones_below_a_softmax,
    steps,
    parts_in_steps,
]


@pytest.mark.parametrize(
    "module", [*map(Of, OTHER_AT_SEVEN), Writes()],
    ids=[*(each.__name__ for each in OTHER_AT_SEVEN), "writes"],
)  # fmt: skip
def test_what_is_another_model_at_one_size_keeps_the_size_out(module: nn.Module) -> None:
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(module)
    assert refusal.value.code == "TC210"
    assert "n != 7" in str(refusal.value)


def all_seen(x: torch.Tensor) -> torch.Tensor:
    n, mask = x.shape[1], None
    if n != 7:
        mask = torch.arange(n)[:, None] * 0 + torch.arange(n) >= 0
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def same_checks_and_arms(x: torch.Tensor) -> dict[str, torch.Tensor]:
    torch._assert_async((x > 0).all(), "positive")
    y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))
    if x.shape[1] != 7:
        y = y + torch.zeros(x.shape[1], 1)
    return {"y": y}


def signs_below_a_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + rows_of_zeros(x)[:, None], dim=1)


def signs_compared(x: torch.Tensor) -> torch.Tensor:
    return torch.where((rows_of_zeros(x) == 0)[:, None], x, -x)


def signs_in_a_mask(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=rows_of_zeros(x))


def signs_and_a_quotient_of_them(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + rows_of_zeros(x)[:, None] / 3, dim=1)


def steps_over_slices(x: torch.Tensor) -> torch.Tensor:
    """A slice of all that there is, in the step of a loop, which asks for a size of what is around."""

    def step(state: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = now[:, None][:7] if x.shape[1] == 7 else now[:, None]
        return state + rows[:, 0], state * rows[:, 0]

    return scan(step, x.new_zeros(x.shape[1], 4), x)[1]


SAME_AT_SEVEN = [
    all_seen,
    same_checks_and_arms,
    signs_below_a_softmax,
    signs_compared,
    signs_in_a_mask,
    signs_and_a_quotient_of_them,
    steps_over_slices,
]


@pytest.mark.parametrize("function", SAME_AT_SEVEN)
def test_what_is_the_same_at_one_size_is_served(function: Any) -> None:
    report = checked(Of(function))
    assert [dim.span() for dim in report.dims] == ["1..64"]
    assert not report.contract.guards
