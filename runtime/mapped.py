"""The weights of a bundle, where they lie in its file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..artifacts.container import Bundle
from ..artifacts.manifest import WEIGHTS_NAME
from ..artifacts.states import StateTensor
from ..artifacts.weights import Weight, WeightsError, read_weights
from .tensors import empty_tensor, from_bits

Initial = tuple[tuple[StateTensor, "np.ndarray | None"], ...]


def weights_of(bundle: Bundle, names: Iterable[str]) -> dict[str, Weight]:
    """The tensors of a bundle, among them all that are named; {} where none is.

    Raises:
        WeightsError: one is not there, or the member is damaged.
    """
    wanted = tuple(names)
    if not wanted:
        return {}
    found = read_weights(bundle.view(WEIGHTS_NAME))
    missing = [name for name in wanted if name not in found]
    if missing:
        raise WeightsError(f"{WEIGHTS_NAME} has no tensor {missing[0]!r:.80}")
    return found


def initial_states(states: Sequence[StateTensor], weights: Mapping[str, Weight]) -> Initial:
    """The states of a bundle with the bits that they start as; None for zeros.

    Raises:
        WeightsError: one is not in the weights as the tensor that is declared.
    """
    initial: list[tuple[StateTensor, np.ndarray | None]] = []
    for state in states:
        weight = weights[state.initial] if state.initial else None
        if weight is not None and (weight.dtype, weight.data.shape) != (state.dtype, state.shape):
            raise WeightsError(f"state {state.name!r:.80} has no initial value that fits it")
        initial.append((state, None if weight is None else weight.data))
    return tuple(initial)


def map_weights(
    bundle: Bundle, found: Mapping[str, Weight], names: Sequence[Sequence[str]]
) -> tuple[tuple[tuple[Any, ...], ...], tuple[int, int]]:
    """TVM tensors on the mapped file, for each of ``names`` those that it names, and the addresses
    that all weights lie in.

    Args:
        found: what `weights_of` gave for all of the names.
    """
    if not found:
        return tuple(() for _ in names), (0, 0)
    view = bundle.view(WEIGHTS_NAME)
    start = np.frombuffer(view, np.uint8).ctypes.data
    tensors = {name: _tensor_on(found[name]) for name in set(itertools.chain(*names))}
    weights = tuple(tuple(tensors[name] for name in each) for each in names)
    return weights, (start, start + len(view))


def _tensor_on(weight: Weight) -> Any:
    if not weight.data.size:
        return empty_tensor(weight.data.shape, weight.dtype)
    return from_bits(weight.data, weight.dtype)
