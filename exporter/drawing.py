"""Eager mode with the random numbers that a bundle draws: the same bits, from the same generator."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..lowering.draws import IN_PLACE, WORDS, draws, generator_of
from .signature import Bound

SEED = 20261130  # of every comparison at export


class Drawing(TorchDispatchMode):
    """While active, what torch draws is what the call number ``call`` of a session draws.

    What no bundle draws is left to torch's own generator: calls with other seeds differ by it.
    """

    supports_higher_order_operators = True

    def __init__(self, call: int = 1) -> None:
        super().__init__()
        self._generator = generator_of(SEED, call)
        self._drawn = 0
        self._draws = draws(self._words)

    def _words(self, count: int) -> torch.Tensor:
        number = self._drawn
        self._drawn += 1
        words: torch.Tensor = WORDS(self._generator, count, number)
        return words

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draw = self._draws.get(IN_PLACE.get(func, func))
        made = NotImplemented if draw is None else draw(*args, **kwargs)
        if made is NotImplemented:
            return func(*args, **kwargs)
        return args[0].copy_(made) if func in IN_PLACE else made


def drawing(bound: Bound, call: int = 1) -> contextlib.AbstractContextManager[Any]:
    """`Drawing` for a call of a model that draws; nothing else is changed by it."""
    return Drawing(call) if bound.draws else contextlib.nullcontext()
