"""Loops of torch's, end to end: traced, guarded, compiled, checked."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop

import tcexport


class StateSpace(nn.Module):
    """A selective state-space layer as Mamba has it: its recurrence is a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.rate = nn.Linear(8, 8)
        self.mix = nn.Linear(8, 4 * 2)
        self.decay = nn.Parameter(-torch.rand(8, 4))
        self.out = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.inner(x).transpose(0, 1)
        delta = nn.functional.softplus(self.rate(u))
        b, c = self.mix(u).chunk(2, -1)

        def step(state: torch.Tensor, now: Any) -> Any:
            u, delta, b, c = now
            kept = torch.exp(delta[..., None] * self.decay)
            state = kept * state + (delta * u)[..., None] * b[:, None]
            return state, (state * c[:, None]).sum(-1)

        _, y = scan(step, x.new_zeros(x.shape[0], 8, 4), (u, delta, b, c))
        return self.out(y.transpose(0, 1))


class Newton(nn.Module):
    """Steps until the square roots are right."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def goes_on(count: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((y * y - x).abs() > 1e-3 * x).any() & (count < 60)

        def step(count: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return count + 1, (y + x / y) / 2

        return while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x + 1))


def eager(model: nn.Module, x: torch.Tensor) -> Any:
    """Torch compiles its loops even in eager mode, and gives up after some sizes."""
    torch._dynamo.reset()
    with torch.no_grad():
        return model(x)


def test_a_state_space_layer_takes_any_number_of_steps(tmp_path: Path) -> None:
    model = StateSpace().eval()
    report = tcexport.export(
        model,
        (torch.randn(2, 5, 6),),
        axes={"x": ("batch", "seq", None)},
        dynamic={"batch": (1, 8), "seq": (1, 4096)},
        out=tmp_path / "m.tcpkg",
    )
    loaded = tcexport.load(report.path)
    for batch, seq in ((1, 1), (3, 2), (2, 1000)):
        x = torch.randn(batch, seq, 6)
        want = eager(model, x)
        torch.testing.assert_close(loaded(x), want, rtol=1e-4, atol=1e-5)


def test_a_loop_stops_where_the_data_say(tmp_path: Path) -> None:
    model = Newton().eval()
    report = tcexport.export(
        model,
        (torch.rand(5) + 1,),
        axes={"x": ("n",)},
        dynamic={"n": (1, 100)},
        out=tmp_path / "m.tcpkg",
    )
    loaded = tcexport.load(report.path)
    for scale in (1e-3, 1.0, 1e6):
        x = torch.rand(7) * scale + scale
        count, y = loaded(x)
        wanted, root = eager(model, x)
        assert int(count) == int(wanted)
        torch.testing.assert_close(y, root)
