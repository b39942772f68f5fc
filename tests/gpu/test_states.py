"""Models that keep state, on the stand-in: each session its own, written in place, call after call."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import tcexport
from tcexport.artifacts.errors import UsageError
from tcexport.tools import gpu_check

from . import standin
from .exported import Exported, exported_for_gpu
from .small import on_device, to_host

LENGTH = 16


class Decoder(nn.Module):
    """Attention to all that was seen, with keys and values in buffers: written at positions that are
    given, as a part of a buffer, and as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 40)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 2, LENGTH, 16))
        self.register_buffer("counts", torch.full((40,), 2.0))
        self.register_buffer("last", torch.zeros(2, 32))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.embedding(ids)
        q, k, v = (
            part(x).unflatten(-1, (2, 16)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        self.keys.index_copy_(2, positions, k)
        self.values[:, :, positions] = v
        seen = torch.arange(LENGTH)[None] <= positions[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, seen)
        before = self.last[1].clone()
        self.last[1] = x[0, -1]
        self.counts.mul_(1.5).add_(1)
        return self.head(y.transpose(1, 2).flatten(2)), before, self.counts


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    return exported_for_gpu(
        tmp_path_factory.mktemp("decoder"),
        Decoder(),
        (torch.randint(0, 40, (1, 5)), torch.arange(5)),
        axes={"ids": (None, "seq"), "positions": ("seq",)},
        dynamic={"seq": (1, 8)},
    )


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        return x + self.total


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """For the CPU, too."""
    return exported_for_gpu(
        tmp_path_factory.mktemp("both"),
        Counting(),
        (torch.randn(3, 4),),
        also=("cpu",),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 4)},
    )


def steps(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Some tokens, and then one after the other."""
    rng = np.random.default_rng(seed)
    ends = [0, 5, 6, 7, 8, 12, 13]
    return [
        (rng.integers(0, 40, (1, stop - start)), np.arange(start, stop))
        for start, stop in itertools.pairwise(ends)
    ]


def by_eager(
    model: nn.Module, calls: list[tuple[np.ndarray, np.ndarray]]
) -> list[list[np.ndarray]]:
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        results = [
            [each.clone().numpy() for each in model(torch.from_numpy(a), torch.from_numpy(b))]
            for a, b in calls
        ]
    model.load_state_dict(kept)
    return results


def require_same(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", ["", "reverse"])
def test_sessions_keep_states_of_their_own_from_call_to_call(
    decoder: Exported, kernels: Path, driver: Callable[..., None], order: str
) -> None:
    driver(order=order, lazy="1")
    model = tcexport.load(decoder.for_standin(kernels), device="cuda")
    assert model.device == "cuda:0"
    sessions = [model.session() for _ in range(2)]
    wanted = [by_eager(decoder.model, steps(seed)) for seed in range(2)]
    held = []
    for step in range(len(wanted[0])):
        for seed, session in enumerate(sessions):
            ids, positions = steps(seed)[step]
            if step % 2:
                require_same(list(session(ids, positions)), wanted[seed][step])
            else:
                held.append((session(on_device(ids), on_device(positions)), wanted[seed][step]))
    for results, right in held:  # a state that was given back is not the state itself
        require_same([to_host(each) for each in results], right)
    first = sessions[0]
    kept = first.state()
    first.reset()
    for (ids, positions), right in zip(steps(0), wanted[0], strict=True):
        require_same(list(first(ids, positions)), right)
    assert all(np.array_equal(first.state()[name], kept[name]) for name in kept)
    sessions[1].restore(kept)
    assert all(np.array_equal(sessions[1].state()[name], kept[name]) for name in kept)


def test_the_run_on_a_device_holds_the_states_of_a_session_against_the_cpu(
    both: Exported, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standin.build_driver()))
    result = CliRunner().invoke(gpu_check.main, [str(both.for_standin(kernels))])
    assert result.exit_code == 0, result.output
    assert "states                       8 calls of a session, off by" in result.output
    assert "graphs                       none: the model keeps state" in result.output


def test_without_a_session_it_is_refused_and_graphs_are_none(
    decoder: Exported, kernels: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tcexport.device"):
        model = tcexport.load(decoder.for_standin(kernels), device="cuda", cuda_graphs=True)
    assert "keeps state, which has other addresses in each session" in caplog.text
    ids, positions = steps(0)[0]
    with pytest.raises(UsageError, match="TC321"):
        model(ids, positions)
    session = model.session()
    for _ in range(3):
        session.reset()
        require_same(list(session(ids, positions)), by_eager(decoder.model, steps(0))[0])
    assert model.metrics.replays == 0
