"""The steps of recipes: what makes a stored tensor of the parameters of a model (see `recipes`).

Tensors travel as their bits (see `Weight`): all steps but ``cast`` and those of a norm only move them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .recipes import OPERANDS, Recipe, RecipeError, Steps
from .weights import Weight


def reshape(weight: Weight, shape: Sequence[int]) -> Weight:
    return Weight(np.ascontiguousarray(weight.data).reshape(tuple(shape)), weight.dtype)


def transpose(weight: Weight, axes: Sequence[int]) -> Weight:
    return Weight(weight.data.transpose(tuple(axes)), weight.dtype)


def rows(weight: Weight, first: int, count: int) -> Weight:
    """``count`` of the entries along the first axis, from number ``first``."""
    if first + count > len(weight.data):
        raise RecipeError(f"no rows {first}..{first + count} in a tensor of {len(weight.data)}")
    return Weight(weight.data[first : first + count], weight.dtype)


def panels(weight: Weight, width: int) -> Weight:
    """``[n, k]`` in panels ``[ceil(n / width), k, width]``, padded with zeros: what a GEMM reads."""
    n, k = weight.data.shape
    count = -(-n // width)
    padded = np.zeros((count * width, k), weight.data.dtype)
    padded[:n] = weight.data
    return Weight(padded.reshape(count, width, k).transpose(0, 2, 1), weight.dtype)


def gate_panels(weight: Weight, gates: int, units: int, width: int) -> Weight:
    """``[gates * hidden, k]`` in panels ``[ceil(hidden / units), k, width]``, padded with zeros: each
    holds ``units`` hidden units, one gate behind the other."""
    hidden, k = weight.data.shape[0] // gates, weight.data.shape[1]
    count = -(-hidden // units)
    padded = np.zeros((gates, count * units, k), weight.data.dtype)
    padded[:, :hidden] = weight.data.reshape(gates, hidden, k)
    columns = padded.reshape(gates, count, units, k).transpose(1, 3, 0, 2)
    made = np.zeros((count, k, width), weight.data.dtype)
    made[:, :, : gates * units] = columns.reshape(count, k, gates * units)
    return Weight(made, weight.dtype)


def cast(weight: Weight, dtype: str) -> Weight:
    """Between floats, rounded to the nearest, ties to even; to a half by way of float32, as torch."""
    if weight.dtype == dtype:
        return weight
    values = numbers(weight)
    if dtype in ("float16", "bfloat16"):
        values = values.astype(np.float32)
    if dtype == "bfloat16":
        return Weight(_bfloat16(values), dtype)
    with np.errstate(over="ignore"):
        return Weight(values.astype(dtype), dtype)


def numbers(weight: Weight) -> np.ndarray:
    """The values of a float tensor in a dtype that numpy has."""
    if weight.dtype != "bfloat16":
        return weight.data
    return (weight.data.astype(np.uint32) << 16).view(np.float32)


def _bfloat16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).reshape(values.shape).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def norm_scale(variance: Weight, gamma: Weight | None, epsilon: float) -> np.ndarray:
    """What a batch norm multiplies by, in double."""
    scale: np.ndarray = 1 / np.sqrt(numbers(variance).astype(np.float64) + epsilon)
    return scale if gamma is None else scale * numbers(gamma).astype(np.float64)


def norm_weight(weight: Weight, variance: Weight, gamma: Weight | None, epsilon: float) -> Weight:
    """The filters ``[o, …]`` of a convolution with the batch norm behind it folded in, float32."""
    scale = norm_scale(variance, gamma, epsilon)
    folded = numbers(weight).astype(np.float64) * scale.reshape(-1, *(1,) * (weight.data.ndim - 1))
    return Weight(folded.astype(np.float32), "float32")


def norm_bias(
    bias: Weight | None,
    mean: Weight,
    variance: Weight,
    gamma: Weight | None,
    beta: Weight | None,
    epsilon: float,
) -> Weight:
    """The bias that goes with `norm_weight`, float32."""
    scale = norm_scale(variance, gamma, epsilon)
    offset = -numbers(mean).astype(np.float64) * scale
    if bias is not None:
        offset = offset + numbers(bias).astype(np.float64) * scale
    if beta is not None:
        offset = offset + numbers(beta).astype(np.float64)
    return Weight(offset.astype(np.float32), "float32")


_STEPS: dict[str, Callable[..., Weight]] = {
    "reshape": reshape,
    "transpose": transpose,
    "rows": rows,
    "panels": panels,
    "gate_panels": gate_panels,
    "cast": cast,
    "norm_weight": norm_weight,
    "norm_bias": norm_bias,
}


def made(recipe: Recipe, parameters: Mapping[str, Weight]) -> Weight:
    """What a recipe makes of parameters.

    Raises:
        RecipeError: a shape that a step does not fit.
        KeyError: a parameter is not there.
    """
    if isinstance(recipe, str):
        return parameters[recipe]
    function, count = _STEPS[recipe[0]], OPERANDS[recipe[0]]
    operands = [None if each is None else made(each, parameters) for each in recipe[1 : 1 + count]]
    return stepped(function, operands, recipe[1 + count :])


def stepped(
    function: Callable[..., Weight], operands: Sequence[Weight | None], more: Sequence[Any]
) -> Weight:
    try:
        return function(*operands, *more)
    except (ValueError, IndexError) as error:
        raise RecipeError(f"{function.__name__}: {error}") from None


def stepped_through(weight: Weight, steps: Steps) -> Weight:
    """What several steps make of one tensor, one after the other."""
    for name, *more in steps:
        weight = stepped(_STEPS[name], [weight], more)
    return weight
