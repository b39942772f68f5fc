"""How a stored tensor is made of the parameters of a model: data, so that weights can be exchanged.

A recipe is the name of a parameter or ``(step, recipe, …)``. Export makes its tensors by these steps,
and `update` repeats them on other values: the same code on the same bits. Tensors travel as their bits
(see `Weight`): all steps but ``cast`` and those of a norm only move them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .weights import Weight

Recipe: TypeAlias = "str | tuple[Any, ...]"
Steps: TypeAlias = "Sequence[tuple[Any, ...]]"  # each its name and numbers, one upon the other

FLOATS = ("float16", "bfloat16", "float32", "float64")
MAX_DEPTH = 16
MAX_RANK = 32
MAX_PANEL = 1024


class RecipeError(ValueError):
    """The data is not a recipe, or its steps do not fit the tensors."""


# --- steps ----------------------------------------------------------------------------------------


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


# How many recipes each step takes (the rest are numbers), and which may be missing.
_STEPS: dict[str, tuple[Callable[..., Weight], int]] = {
    "reshape": (reshape, 1),
    "transpose": (transpose, 1),
    "rows": (rows, 1),
    "panels": (panels, 1),
    "gate_panels": (gate_panels, 1),
    "cast": (cast, 1),
    "norm_weight": (norm_weight, 3),
    "norm_bias": (norm_bias, 5),
}
_OPTIONAL = {("norm_weight", 2), ("norm_bias", 0), ("norm_bias", 3), ("norm_bias", 4)}


# --- recipes --------------------------------------------------------------------------------------


def recipe_from_data(data: Any) -> Recipe:
    """Turn decoded JSON into a recipe; refuse everything else.

    Raises:
        RecipeError: an unknown step, too deep, or numbers out of bounds.
    """

    def build(node: Any, depth: int) -> Any:
        if isinstance(node, str):
            return node
        if depth > MAX_DEPTH or not isinstance(node, (list, tuple)) or not node:
            raise RecipeError(f"not a recipe: {node!r:.80}")
        step = node[0]
        if not isinstance(step, str) or step not in _STEPS:
            raise RecipeError(f"unknown step {step!r:.40}")
        count = _STEPS[step][1]
        operands, numbers_ = node[1 : 1 + count], node[1 + count :]
        if len(operands) != count or not _fits(step, numbers_):
            raise RecipeError(f"step {step!r} with {node[1:]!r:.80}")
        built = [
            None if operand is None and (step, number) in _OPTIONAL else build(operand, depth + 1)
            for number, operand in enumerate(operands)
        ]
        return (step, *built, *(tuple(n) if isinstance(n, list) else n for n in numbers_))

    return build(data, 0)


def _fits(step: str, given: Sequence[Any]) -> bool:
    if step == "rows":
        return len(given) == 2 and all(_is_size(each) for each in given)
    if step == "gate_panels":
        if len(given) != 3 or not all(_is_size(each) for each in given):
            return False
        gates, units, width = given
        return 0 < gates * units <= width <= MAX_PANEL
    if len(given) != 1:
        return False
    (value,) = given
    if step in ("reshape", "transpose"):
        sizes = isinstance(value, (list, tuple)) and len(value) <= MAX_RANK
        if not sizes or not all(_is_size(each) for each in value):
            return False
        return step == "reshape" or sorted(value) == list(range(len(value)))
    if step == "panels":
        return _is_size(value) and 0 < value <= MAX_PANEL
    if step == "cast":
        return value in FLOATS
    return type(value) in (int, float) and math.isfinite(value)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def names_of(recipe: Recipe) -> list[str]:
    """The parameters that a recipe takes, each once."""
    if isinstance(recipe, str):
        return [recipe]
    count = _STEPS[recipe[0]][1]
    taken = [name for each in recipe[1 : 1 + count] if each is not None for name in names_of(each)]
    return list(dict.fromkeys(taken))


def made(recipe: Recipe, parameters: Mapping[str, Weight]) -> Weight:
    """What a recipe makes of parameters.

    Raises:
        RecipeError: a shape that a step does not fit.
        KeyError: a parameter is not there.
    """
    if isinstance(recipe, str):
        return parameters[recipe]
    function, count = _STEPS[recipe[0]]
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
        weight = stepped(_STEPS[name][0], [weight], more)
    return weight
