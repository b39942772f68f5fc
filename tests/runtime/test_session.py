"""Sessions: state from call to call, where it lies, apart from every other session."""

from __future__ import annotations

import asyncio
import math
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport

LENGTH, HEADS, WIDTH, VOCABULARY = 64, 2, 16, 50


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        q, k, v = (
            each.view(1, rows, HEADS, WIDTH).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        q, k = rotated(q, turn), rotated(k, turn)
        self.k.index_copy_(2, position, k)
        self.v.index_copy_(2, position, v)
        seen = torch.arange(LENGTH) <= position[:, None]
        scores = (q @ self.k.transpose(-1, -2)) / math.sqrt(WIDTH)
        scores = scores.masked_fill(~seen, float("-inf"))
        mixed = scores.softmax(-1) @ self.v
        return self.out(mixed.transpose(1, 2).reshape(1, rows, -1))


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * turn.cos() + torch.cat([-b, a], -1) * turn.sin()


class Decoder(nn.Module):
    """Two layers of a Llama with a static cache. Any number of tokens at any positions."""

    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.embedding = nn.Embedding(VOCABULARY, size)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(size) for _ in range(2))
        self.head = nn.Linear(size, VOCABULARY)
        speed = 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("speed", torch.cat([speed, speed]), persistent=False)
        self.register_buffer("calls", torch.tensor(7))

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        turn = position[:, None] * self.speed
        x = self.embedding(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x), position, turn)
        return self.head(x), self.calls.clone()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Path]:
    torch.manual_seed(0)
    module = Decoder().eval()
    path = tmp_path_factory.mktemp("decoder") / "m.tcpkg"
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    report = tcexport.export(
        module,
        (torch.tensor([[1, 2, 3]]), torch.arange(3)),
        axes={"ids": (None, "rows"), "position": ("rows",)},
        dynamic={"rows": (1, LENGTH)},
        out=path,
        targets=("cpu:x86-64-v3",),
    )
    assert {note.code for note in report.notes} == {"TC121", "TC122"}
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name]), f"the export changed {name}"
    return module, path


@pytest.fixture
def model(decoder: tuple[Decoder, Path]) -> Any:
    return tcexport.load(decoder[1])


def test_64_steps_give_what_the_whole_sequence_gives(
    decoder: tuple[Decoder, Path], model: Any
) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, LENGTH))
    with torch.no_grad():
        whole, _ = decoder[0](torch.from_numpy(ids), torch.arange(LENGTH))
    decoder[0].calls.fill_(7)
    session = model.session()
    for step in range(LENGTH):
        logits, calls = session(ids[:, step : step + 1], np.array([step]))
        np.testing.assert_allclose(logits[0, 0], whole[0, step], rtol=1e-4, atol=1e-4)
        assert calls == 8 + step
    prefilled = model.session()
    logits, _ = prefilled(ids[:, :40], np.arange(40))
    np.testing.assert_allclose(logits[0], whole[0, :40], rtol=1e-4, atol=1e-4)
    logits, _ = prefilled(ids[:, 40:41], np.array([40]))
    np.testing.assert_allclose(logits[0, 0], whole[0, 40], rtol=1e-4, atol=1e-4)


def test_calls_of_a_session_can_be_awaited(model: Any) -> None:
    session, other = model.session(), model.session()

    async def steps() -> None:
        for step in range(4):
            loop_went_on = asyncio.create_task(asyncio.sleep(0))
            awaited = await session.acall(np.array([[step]]), np.array([step]))
            await loop_went_on
            for mine, theirs in zip(
                awaited, other(np.array([[step]]), np.array([step])), strict=True
            ):
                np.testing.assert_array_equal(mine, theirs)
        with pytest.raises(tcexport.GuardError, match="TC309"):
            await session.acall(np.array([[1]]), np.array([LENGTH]))

    asyncio.run(steps())
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, other.state()[name])


def test_the_state_stays_where_it_is_and_results_are_not_in_it(model: Any) -> None:
    session = model.session()
    places = [tensor.data_ptr() for tensor in session.tensors]
    _, first = session(np.array([[1]]), np.array([0]))
    session(np.array([[2]]), np.array([1]))
    assert first == 8
    assert [tensor.data_ptr() for tensor in session.tensors] == places


def test_sessions_know_nothing_of_each_other(model: Any) -> None:
    one, other = model.session(), model.session()
    one(np.array([[1]]), np.array([0]))
    one(np.array([[1]]), np.array([1]))
    other(np.array([[1]]), np.array([0]))
    assert (one.state()["calls"], other.state()["calls"]) == (9, 8)


def test_a_call_without_a_session_is_refused(model: Any) -> None:
    with pytest.raises(tcexport.UsageError, match=r"TC321.*calls"):
        model(np.array([[1]]), np.array([0]))


def test_a_refused_call_leaves_the_state_as_it_was(model: Any) -> None:
    session = model.session()
    session(np.array([[1]]), np.array([3]))
    before = session.state()
    with pytest.raises(tcexport.GuardError, match="TC309"):
        session(np.array([[1]]), np.array([LENGTH]))
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, before[name])
    session(np.array([[1]]), np.array([4]))


def test_state_survives_a_file_and_reset_forgets_it(model: Any, tmp_path: Path) -> None:
    session = model.session()
    start = session.state()
    for step in range(3):
        session(np.array([[step]]), np.array([step]))
    np.savez(tmp_path / "state.npz", **session.state())
    next_one, _ = session(np.array([[9]]), np.array([3]))
    session.reset()
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, start[name])
    other = model.session()
    with np.load(tmp_path / "state.npz") as kept:
        other.restore(dict(kept))
    again, _ = other(np.array([[9]]), np.array([3]))
    np.testing.assert_array_equal(again, next_one)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("calls"), "has no calls"),
        (lambda state: state.update(more=np.zeros(1)), "'more', which is no state"),
        (lambda state: state.update(calls=np.zeros((), np.int32)), r"calls is int32 \[\]"),
        (lambda state: state.update(calls=np.zeros(2, np.int64)), r"calls is int64 \[2\]"),
        (lambda state: state.update(calls=8), "calls is a int"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(model: Any, change: Any, words: str) -> None:
    session = model.session()
    session(np.array([[1]]), np.array([0]))
    state = {name: np.ones_like(value) for name, value in session.state().items()}
    change(state)
    with pytest.raises(tcexport.UsageError, match=words):
        session.restore(state)
    assert session.state()["calls"] == 8


def test_a_session_is_for_one_thread_at_a_time(model: Any) -> None:
    session = model.session()
    refused, stop = [], threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                session(np.ones((1, LENGTH), np.int64), np.arange(LENGTH))
            except tcexport.UsageError as error:
                refused.append(error.code)
                stop.set()

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) == {"TC322"}
    before = session.state()["calls"]
    session(np.array([[1]]), np.array([0]))
    assert session.state()["calls"] == before + 1


class Ring(nn.Module):
    """Where it writes is state itself, which no check before the call can know. One of its buffers
    is large: 32 MB, of which each call writes 32 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 4))
        self.register_buffer("used", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(8, 1 << 20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, self.used, x)
        self.cache[:, self.used] = x.sum()
        self.used += 1
        return self.rows.sum(0)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("ring") / "m.tcpkg"
    report = tcexport.export(
        Ring().eval(), (torch.ones(1, 4),), out=path, targets=("cpu:x86-64-v3",)
    )
    assert report.weights_size < 1 << 20, "zeros need no bytes in the file"
    return tcexport.load(path, num_threads=1)


def test_a_call_costs_what_it_writes(ring: Any) -> None:
    """A copy of the large buffer would take some milliseconds, and as much memory again."""
    session = ring.session()
    x = np.ones((1, 4), np.float32)
    session(x)
    peak, fastest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, math.inf
    for _ in range(20):
        session.reset()
        start = time.perf_counter()
        session(x)
        fastest = min(fastest, time.perf_counter() - start)
    assert fastest < 1e-3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 16 << 10  # KiB
    assert (session.state()["cache"] != 0).sum() == 8


def test_after_a_call_that_fails_while_it_runs_there_is_no_state(ring: Any) -> None:
    session = ring.session()
    x = np.ones((1, 4), np.float32)
    kept = session.state()
    for count in (1, 2, 3):
        np.testing.assert_array_equal(session(x), np.full(4, count, np.float32))
    with pytest.raises(tcexport.GuardError, match="TC309"):
        session(x)
    for attempt in (lambda: session(x), session.state):
        with pytest.raises(tcexport.UsageError, match="TC323"):
            attempt()
    session.restore(kept)
    np.testing.assert_array_equal(session(x), x[0])
    session.reset()
    np.testing.assert_array_equal(session(x), x[0])
