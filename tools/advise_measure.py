"""The general code of a bundle and a variant of it, timed in turn at sizes that both take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.manifest import GENERAL
from .served import served


@dataclass(frozen=True)
class Pair:
    """A variant, and sizes that both it and the general code take."""

    variant: str
    sizes: dict[str, int]


def measure(
    bundle: Path, pair: Pair, *, rounds: int, threads: int | None
) -> list[tuple[float, float]]:
    """Seconds of a call of the general code and of the variant, see `race.in_turn`."""
    from ..runtime.race import in_turn

    general, variant = (_call(bundle, name, pair, threads) for name in (GENERAL, pair.variant))
    return in_turn((general, variant), rounds)


def _call(bundle: Path, name: str, pair: Pair, threads: int | None) -> Callable[[], Any]:
    from ..runtime import load
    from ..runtime.drawn import drawn_call

    model = load(bundle, device="cpu", variant=name, num_threads=threads)
    args, kwargs = drawn_call(model.contract, pair.sizes)
    call = served(model)
    return lambda: call(*args, **kwargs)
