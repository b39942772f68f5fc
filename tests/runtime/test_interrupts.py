"""What the handler of a signal raises during a call reaches the caller, and the next call works."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport


class TooLong(Exception):
    pass


class Long(nn.Module):
    def forward(self, x):
        for _ in range(24):
            x = torch.sin(x)
        return x.sum(-1)  # a small result: the short way


@pytest.fixture(scope="module")
def long(export_once) -> Path:
    return export_once(
        "interrupted", Long(), (torch.randn(512, 1024),), axes={"x": ("rows", None)},
        dynamic={"rows": (1, 16384)},
    )  # fmt: skip


@pytest.fixture
def alarm() -> Iterator[Any]:
    """Have an exception raised by a handler, soon."""
    before = signal.getsignal(signal.SIGALRM)

    def arm(error: BaseException, seconds: float) -> None:
        def handler(number: int, frame: Any) -> None:
            raise error

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [TooLong, RuntimeError, ValueError, MemoryError, SystemExit])
@pytest.mark.parametrize("library", ["numpy", "torch", "copied"])
def test_an_exception_of_a_handler_comes_through(
    long: Path, alarm: Any, error: type[BaseException], library: str
) -> None:
    model = tcexport.load(long, num_threads=1)
    large: Any = np.ones((16384, 1024), np.float32)
    small: Any = np.ones((1, 1024), np.float32)
    if library == "torch":
        large, small = torch.from_numpy(large), torch.from_numpy(small)
    if library == "copied":  # the long way
        large = np.ones((1024, 16384), np.float32).T
    model(small)
    raised = error("late")
    alarm(raised, 0.02)
    with pytest.raises(error) as caught:
        model(large)
    assert caught.value is raised
    assert not raised.__suppress_context__
    want = Long()(torch.as_tensor(small))
    torch.testing.assert_close(torch.as_tensor(model(small)), want, rtol=1e-5, atol=1e-5)
