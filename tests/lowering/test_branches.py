"""torch.cond: both sides are computed, and each result is taken from one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tcexport


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(6, 6)
        self.large = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6))

    def forward(self, x):
        y = torch.cond((x > 0).any(), self.large, self.small, (x,))
        more, less = torch.cond(
            x.mean() > 0, lambda x, y: (x + 1, y * 2), lambda x, y: (x, y), (x, y)
        )
        return more, less, y


def test_the_side_that_the_condition_says_is_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Sides().eval()
    path = tmp_path / "m.tcpkg"
    tcexport.export(
        model,
        (torch.randn(5, 6),),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 64)},
        out=path,
        targets=("cpu:x86-64-v3",),
    )
    bundle = tcexport.load(path)
    for x in (torch.rand(3, 6), -torch.rand(7, 6), torch.randn(1, 6) - 0.5):
        with torch.no_grad():
            y = model.large(x) if (x > 0).any() else model.small(x)
        want = (x + 1, y * 2, y) if x.mean() > 0 else (x, y, y)
        for a, b in zip(bundle(x), want, strict=True):
            torch.testing.assert_close(a, b)


class Demanding(nn.Module):
    """Each side asserts something; the sizes of the results may be 0."""

    def forward(self, x):
        def positive(x):
            torch._assert_async((x < 10).all(), "small")
            return torch.cond((x > 1).all(), torch.sqrt, torch.sin, (x,))

        def other(x):
            torch._assert_async((x > -10).all())
            return x * 2

        return torch.cond(x.sum() > 0, positive, other, (x,))


def test_a_side_asserts_where_it_is_taken(export_once: Callable[..., Path]) -> None:
    model = Demanding().eval()
    bundle = tcexport.load(
        export_once(
            "sides", model, (torch.rand(3, 4) + 2,), axes={"x": ("n", "m")},
            dynamic={"n": (0, 8), "m": (0, 8)},
        )
    )  # fmt: skip
    for x, want in (
        (torch.tensor([[4.0, 9.0]]), torch.tensor([[2.0, 3.0]])),
        (torch.tensor([[0.5], [2.0]]), torch.tensor([[0.5], [2.0]]).sin()),
        (torch.tensor([[-20.0, 21.0]]), None),
        (torch.tensor([[-9.0, 5.0]]), torch.tensor([[-18.0, 10.0]])),
        (torch.tensor([[-9.0, 11.0, -5.0]]), torch.tensor([[-18.0, 22.0, -10.0]])),
        (torch.tensor([[-11.0, 2.0]]), None),
        (torch.ones(0, 4), torch.ones(0, 4)),
        (torch.ones(3, 0), torch.ones(3, 0)),
    ):
        if want is not None:
            torch.testing.assert_close(bundle(x), want)
            continue
        with pytest.raises(tcexport.GuardError) as error:
            bundle(x)
        assert error.value.code == "TC311"
        assert ("(x < 10)" if x.sum() > 0 else "(x > -10)") in str(error.value)


def test_a_condition_on_sizes_is_no_tensor_and_is_decided_by_the_trace() -> None:
    class BySize(nn.Module):
        def forward(self, x):
            return torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(tcexport.ExportError) as error:
        tcexport.export(
            BySize().eval(),
            (torch.randn(5, 6),),
            axes={"x": ("n", None)},
            dynamic={"n": (1, 64)},
            out="never.tcpkg",
        )
    assert error.value.code in ("TC210", "TC501")
