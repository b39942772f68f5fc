"""State: what a model keeps from call to call, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .contract import DTYPES, MAX_RANK, MAX_SIZE, check_name


class StateTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor that the compiled code takes between the sizes and the weights, and writes to.

    ``name`` is the user's (``cache.k``); ``initial`` names the tensor of weights.safetensors that it
    starts as, empty for zeros.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial: str = ""


class StateError(ValueError):
    """States that make no sense."""


def check_states(states: Sequence[StateTensor]) -> None:
    """Whether every state has a name of its own, a dtype and a size that there can be.

    Raises:
        StateError, ContractError: not so.
    """
    if len({state.name for state in states}) != len(states):
        raise StateError("two states with one name")
    for state in states:
        check_name(state.name)
        if state.dtype not in DTYPES:
            raise StateError(f"state {state.name!r:.80}: unknown dtype {state.dtype!r:.40}")
        sound = all(0 <= size <= MAX_SIZE for size in state.shape)
        if not sound or len(state.shape) > MAX_RANK or math.prod(state.shape) > MAX_SIZE:
            raise StateError(f"state {state.name!r:.80}: shape out of bounds")


def check_generator(states: Sequence[StateTensor], name: str) -> None:
    """Whether ``name`` is the state of a generator that has no seed yet, or "".

    Raises:
        StateError: not so.
    """
    named = [state for state in states if state.name == name]
    if name and named != [StateTensor(name, "int64", (2,))]:
        raise StateError(f"{name!r:.80} is no state of a generator of random numbers")
