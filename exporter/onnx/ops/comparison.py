"""Comparisons, logic, and the choice between two tensors."""

from __future__ import annotations

import operator as python
from typing import Any

import torch

from ..numbers import Numbers, as_tensor, elementwise
from ..operands import all_numbers, beside, two
from ..registry import Function, operator

_COMPARISONS: dict[str, Function] = {
    "Equal": python.eq,
    "Greater": python.gt,
    "GreaterOrEqual": python.ge,
    "Less": python.lt,
    "LessOrEqual": python.le,
}
_LOGIC: dict[str, tuple[Function, Function]] = {
    "And": (torch.logical_and, python.and_),
    "Or": (torch.logical_or, python.or_),
    "Xor": (torch.logical_xor, python.ne),
}


def _comparison(function: Function) -> Function:
    def compare(a: Any, b: Any) -> Any:
        if all_numbers(a, b):
            return elementwise(function, a, b, dtype=torch.bool)
        return function(*two(a, b))

    return compare


def _logic(of_tensors: Function, of_numbers: Function) -> Function:
    def combine(a: Any, b: Any) -> Any:
        if all_numbers(a, b):
            return elementwise(of_numbers, a, b)
        return of_tensors(as_tensor(a), as_tensor(b))

    return combine


for _name, _function in _COMPARISONS.items():
    operator(_name)(_comparison(_function))
for _name, _both in _LOGIC.items():
    operator(_name)(_logic(*_both))


@operator("Where")
def where(condition: Any, a: Any, b: Any) -> Any:
    if all_numbers(condition, a, b):
        return elementwise(_chosen, condition, a, b, dtype=a.dtype)
    if isinstance(a, Numbers) and isinstance(b, Numbers):
        return torch.where(as_tensor(condition), as_tensor(a), as_tensor(b))
    return torch.where(as_tensor(condition), beside(a), beside(b))


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b
