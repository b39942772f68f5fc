"""Inputs that a contract takes, drawn at given sizes: to warm a model up, to measure it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..artifacts.contract import Contract, Fixed, TensorInput, ValueSource
from ..artifacts.expr import evaluate
from ..artifacts.weights import Weight
from .library import LOADING
from .structure import call_of
from .tensors import WITHOUT_NUMPY, bits_of, from_bits


def drawn_call(
    contract: Contract, sizes: Mapping[str, int], seed: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call with `drawn_inputs`; as numpy arrays, or as TVM tensors for a dtype that
    numpy does not have."""
    drawn = drawn_inputs(contract, sizes, seed)
    values: list[Any] = []
    for index, item in enumerate(contract.inputs):
        if isinstance(item, Fixed):
            values.append(item.value)
            continue
        weight = drawn[f"{index}"]
        without = weight.dtype in WITHOUT_NUMPY
        values.append(from_bits(weight.data, weight.dtype) if without else weight.data)
    return call_of(contract, values)


def drawn_inputs(contract: Contract, sizes: Mapping[str, int], seed: int) -> dict[str, Weight]:
    """Random tensor inputs by their index in the contract.

    Floats are normally distributed; integers are 0 and 1, or lie within the index guards; an input
    whose value is a dim holds that dim's size.
    """
    with LOADING:  # numpy imports this part of it when it is first asked for
        generator = np.random.default_rng(seed)
    inputs: dict[str, Weight] = {}
    for index, item in enumerate(contract.inputs):
        if not isinstance(item, TensorInput):
            continue
        shape = tuple(evaluate(size, sizes) for size in item.shape)
        data = _drawn(item.dtype, shape, generator)
        _draw_indices(data, contract, index, sizes, generator)
        for dim in contract.dims:
            if isinstance(dim.source, ValueSource) and dim.source.input == index:
                data[...] = sizes[dim.name]
        inputs[f"{index}"] = Weight(data, item.dtype)
    return inputs


def _drawn(dtype: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        bits = generator.standard_normal(shape, np.float32).view(np.uint32)
        return np.asarray(bits >> 16).astype(np.uint16)
    if dtype in WITHOUT_NUMPY:  # 8 bits: 0 to 0x37 are numbers from 0 to 1
        return generator.integers(0, 0x38, shape, bits_of(dtype))
    if dtype.startswith("float"):
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    if dtype.startswith("complex"):
        pair = generator.standard_normal((2, *shape))
        return np.asarray(pair[0] + 1j * pair[1]).astype(dtype)
    return np.asarray(generator.integers(0, 2, shape)).astype(dtype)


def _draw_indices(
    data: np.ndarray,
    contract: Contract,
    index: int,
    sizes: Mapping[str, int],
    generator: np.random.Generator,
) -> None:
    """Draw the values of input ``index`` that index guards are about, within all of their bounds,
    into ``data``."""
    parts = []
    for guard in contract.index_guards:
        if guard.input != index:
            continue
        where: list[Any] = [slice(None)] * data.ndim
        for part in guard.parts:
            where[part.axis] = slice(evaluate(part.start, sizes), evaluate(part.stop, sizes))
        low, high = evaluate(guard.lo, sizes), evaluate(guard.hi, sizes)
        parts.append((data[(*where, ...)], low, high))
    for values, low, high in parts:
        if values.size:
            values[...] = generator.integers(low, high, values.shape, endpoint=True)
    for values, low, high in parts:  # where guards overlap, the last one drew for all
        np.clip(values, low, high, out=values)
