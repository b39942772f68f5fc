"""Arithmetic of two and more operands, which are broadcast as numpy does."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..numbers import Numbers, as_tensor, elementwise
from ..operands import all_numbers, beside, require, two
from ..registry import operator

_FEW = 16  # elements of a range that may be axes or positions


@operator("Add")
def add(a: Any, b: Any) -> Any:
    if all_numbers(a, b):
        return elementwise(lambda x, y: x + y, a, b)
    a, b = two(a, b)
    return a + b


@operator("Sub")
def sub(a: Any, b: Any) -> Any:
    if all_numbers(a, b):
        return elementwise(lambda x, y: x - y, a, b)
    a, b = two(a, b)
    return a - b


@operator("Mul")
def mul(a: Any, b: Any) -> Any:
    if all_numbers(a, b):
        return elementwise(lambda x, y: x * y, a, b)
    a, b = two(a, b)
    return a * b


@operator("Div")
def div(a: Any, b: Any) -> Any:
    """Integers are divided towards zero."""
    if all_numbers(a, b) and 0 not in b.values:
        if a.dtype.is_floating_point:
            return elementwise(lambda x, y: x / y, a, b)
        if all(_never_negative(each) for each in b.values):
            return elementwise(_quotient, a, b)
    floats = a.dtype.is_floating_point
    a, b = two(a, b)
    return a / b if floats else torch.div(a, b, rounding_mode="trunc")


def _quotient(x: Any, y: Any) -> Any:
    """``x / y`` towards zero, of a ``y`` that is not negative: Python's ``//`` goes down."""
    if _never_negative(x):
        return x // y
    return torch.sym_max(x, 0) // y - torch.sym_max(-x, 0) // y


def _never_negative(value: Any) -> bool:
    return bool(statically_known_true(value >= 0))


@operator("Mod")
def mod(a: Any, b: Any, *, fmod: int = 0) -> Any:
    if all_numbers(a, b) and not fmod and 0 not in b.values and not a.dtype.is_floating_point:
        return elementwise(lambda x, y: x % y, a, b)
    floats = a.dtype.is_floating_point
    require(bool(fmod) or not floats, "of floats is not read without fmod=1")
    a, b = two(a, b)
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


@operator("Pow")
def power(a: Any, b: Any) -> Any:
    """The result has the dtype of the base."""
    dtype = a.dtype
    if all_numbers(a, b):
        a = as_tensor(a)
    a, b = two(a, b)
    return torch.pow(a, b).to(dtype)


@operator("PRelu")
def prelu(x: Any, slope: Any) -> torch.Tensor:
    x = as_tensor(x)
    return torch.where(x < 0, x * beside(slope), x)


@operator("Max")
def maximum(*operands: Any) -> Any:
    if all_numbers(*operands):
        return functools.reduce(functools.partial(elementwise, torch.sym_max), operands)
    return functools.reduce(torch.maximum, [as_tensor(each) for each in operands])


@operator("Min")
def minimum(*operands: Any) -> Any:
    if all_numbers(*operands):
        return functools.reduce(functools.partial(elementwise, torch.sym_min), operands)
    return functools.reduce(torch.minimum, [as_tensor(each) for each in operands])


@operator("Sum")
def total(*operands: Any) -> Any:
    return functools.reduce(add, operands)


@operator("Mean")
def mean(*operands: Any) -> Any:
    return as_tensor(functools.reduce(add, operands)) / len(operands)


@operator("BitwiseAnd")
def bitwise_and(a: Any, b: Any) -> torch.Tensor:
    return torch.bitwise_and(as_tensor(a), as_tensor(b))


@operator("BitwiseOr")
def bitwise_or(a: Any, b: Any) -> torch.Tensor:
    return torch.bitwise_or(as_tensor(a), as_tensor(b))


@operator("BitwiseXor")
def bitwise_xor(a: Any, b: Any) -> torch.Tensor:
    return torch.bitwise_xor(as_tensor(a), as_tensor(b))


@operator("BitShift")
def bit_shift(a: Any, b: Any, *, direction: str) -> torch.Tensor:
    a, b = as_tensor(a), as_tensor(b)
    shift = torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift
    return shift(a, b)


@operator("Range")
def range_of(start: Any, limit: Any, delta: Any) -> Any:
    """``start``, ``start + delta``, … below ``limit``."""
    require(
        all_numbers(start, limit, delta),
        "is not read with bounds computed from data",
        "bounds from constants and the shapes of inputs",
    )
    first, last, step = (each.values[0] for each in (start, limit, delta))
    if all(type(each) is int for each in (first, last, step)):
        values = tuple(range(first, last, step))
        if len(values) <= _FEW:
            return Numbers(values, (len(values),), start.dtype)
    if start.dtype.is_floating_point:
        # Computed as the specification says, not by torch's way of counting floats.
        count = _count(first, last, step)
        return torch.arange(count, dtype=start.dtype) * step + first
    return torch.arange(first, last, step, dtype=start.dtype)


def _count(first: Any, last: Any, step: Any) -> Any:
    """How many elements a range of floats has; of whole numbers it is computed as of integers."""
    bounds = (first, last, step)
    if not all(
        isinstance(each, torch.SymInt) or (isinstance(each, float) and each.is_integer())
        for each in bounds
    ):
        return max(math.ceil((last - first) / step), 0)
    first, last, step = (int(each) if isinstance(each, float) else each for each in bounds)
    return torch.sym_max(-((first - last) // step), 0)
