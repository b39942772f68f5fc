"""Two codes of one bundle timed in turn: what slows the machine down for a while slows both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.manifest import GENERAL
from .served import served

BURST = 0.02  # seconds of one burst, about


@dataclass(frozen=True)
class Pair:
    """A variant, and sizes that both it and the general code take."""

    variant: str
    sizes: dict[str, int]


def measure(
    bundle: Path, pair: Pair, *, rounds: int, threads: int | None
) -> list[tuple[float, float]]:
    """Seconds of a call of the general code and of the variant, the means of a burst, for each round.
    Who begins changes from round to round."""
    from ..runtime import load
    from ..runtime.drawn import drawn_call

    calls = []
    for name in (GENERAL, pair.variant):
        model = load(bundle, device="cpu", variant=name, num_threads=threads)
        args, kwargs = drawn_call(model.contract, pair.sizes)
        calls.append(_bound(served(model), args, kwargs))
    warm = [_burst(call, 3) for call in calls]
    count = max(1, int(BURST / max(min(warm), 1e-7)))
    found = []
    for number in range(rounds):
        order = (0, 1) if number % 2 else (1, 0)
        times = {which: _burst(calls[which], count) for which in order}
        found.append((times[0], times[1]))
    return found


def _bound(call: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Any]:
    return lambda: call(*args, **kwargs)


def _burst(call: Callable[[], Any], count: int) -> float:
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count
