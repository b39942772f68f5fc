"""How a stored tensor is made of the parameters of a model: data, so that weights can be exchanged.

A recipe is the name of a parameter or ``(step, recipe, …)``. Export makes its tensors by these steps,
and `update` repeats them on other values: the same code, in `steps`, on the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from .names import clipped

Recipe: TypeAlias = "str | tuple[Any, ...]"
Steps: TypeAlias = "Sequence[tuple[Any, ...]]"  # each its name and numbers, one upon the other

FLOATS = ("float16", "bfloat16", "float32", "float64")
MAX_DEPTH = 16
MAX_RANK = 32
MAX_PANEL = 1024


class RecipeError(ValueError):
    """The data is not a recipe, or its steps do not fit the tensors."""


# How many recipes each step takes (the rest are numbers), and which may be missing.
OPERANDS = {
    "reshape": 1,
    "transpose": 1,
    "rows": 1,
    "panels": 1,
    "gate_panels": 1,
    "cast": 1,
    "norm_weight": 3,
    "norm_bias": 5,
}
_OPTIONAL = {("norm_weight", 2), ("norm_bias", 0), ("norm_bias", 3), ("norm_bias", 4)}


def recipe_from_data(data: Any) -> Recipe:
    """Turn decoded JSON into a recipe; refuse everything else.

    Raises:
        RecipeError: an unknown step, too deep, or numbers out of bounds.
    """

    def build(node: Any, depth: int) -> Any:
        if isinstance(node, str):
            return node
        if depth > MAX_DEPTH or not isinstance(node, (list, tuple)) or not node:
            raise RecipeError(f"not a recipe: {clipped(node, 80)}")
        step = node[0]
        if not isinstance(step, str) or step not in OPERANDS:
            raise RecipeError(f"unknown step {clipped(step, 40)}")
        count = OPERANDS[step]
        operands, numbers_ = node[1 : 1 + count], node[1 + count :]
        if len(operands) != count or not _fits(step, numbers_):
            raise RecipeError(f"step {step!r} with {clipped(list(node[1:]), 80)}")
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
    count = OPERANDS[recipe[0]]
    taken = [name for each in recipe[1 : 1 + count] if each is not None for name in names_of(each)]
    return list(dict.fromkeys(taken))
