"""Small tensors whose elements Python knows: shapes, axes, pads, and what a graph computes of them.

ONNX computes sizes with tensors (``Shape``, ``Gather``, ``Concat``, ``Reshape``). As tensors they would
be data; as `Numbers` their elements are ints, or the sizes that a trace calls by a symbol, so that
``Reshape`` gets a shape and not a question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch


class Numbers(NamedTuple):
    """``values`` in row-major order; each a bool, int or float, or a symbolic one."""

    values: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


Value: TypeAlias = "torch.Tensor | Numbers"

MAX_ELEMENTS = 64  # of a constant that is taken for numbers


def numbers_of(tensor: torch.Tensor) -> Numbers | None:
    """A constant as numbers, where it is small enough to be a shape, a scale or a bound."""
    if tensor.dim() > 2 or tensor.numel() > MAX_ELEMENTS or tensor.dtype.is_complex:
        return None
    values = tuple(tensor.reshape(-1).tolist())
    return Numbers(values, tuple(tensor.shape), tensor.dtype)


def vector(values: Sequence[Any], dtype: torch.dtype = torch.int64) -> Numbers:
    return Numbers(tuple(values), (len(values),), dtype)


def scalar(value: Any, dtype: torch.dtype = torch.int64) -> Numbers:
    return Numbers((value,), (), dtype)


def as_tensor(value: Any) -> torch.Tensor:
    """A value as a tensor: numbers are put into one."""
    if not isinstance(value, Numbers):
        tensor: torch.Tensor = value
        return tensor
    if all(isinstance(each, (bool, int, float)) for each in value.values):
        return torch.tensor(list(value.values), dtype=value.dtype).reshape(value.shape)
    each_one = [torch.full((), each, dtype=value.dtype) for each in value.values]
    return torch.stack(each_one).reshape(value.shape)


def shape_of(value: Value) -> Sequence[Any]:
    return value.shape


# --- arithmetic -----------------------------------------------------------------------------------


def elementwise(
    function: Callable[..., Any], *operands: Numbers, dtype: torch.dtype | None = None
) -> Numbers:
    """``function`` of each element, with the operands broadcast against each other."""
    shape = _broadcast([each.shape for each in operands])
    columns = [_expanded(each, shape) for each in operands]
    values = tuple(function(*row) for row in zip(*columns, strict=True))
    return Numbers(values, shape, dtype or operands[0].dtype)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    result = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            raise ValueError(f"shapes {shapes} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _expanded(numbers: Numbers, shape: tuple[int, ...]) -> tuple[Any, ...]:
    own = (1,) * (len(shape) - len(numbers.shape)) + numbers.shape
    if own == shape:
        return numbers.values
    taken = [[0] * size if have == 1 else list(range(size)) for have, size in zip(own, shape)]  # noqa: B905
    return picked(Numbers(numbers.values, own, numbers.dtype), taken).values


def cast(numbers: Numbers, dtype: torch.dtype) -> Numbers:
    """Numbers of another dtype; floats to integers are cut off towards zero, as ONNX does."""
    return Numbers(tuple(_cast_one(each, dtype) for each in numbers.values), numbers.shape, dtype)


def _cast_one(value: Any, dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return value if isinstance(value, (bool, torch.SymBool)) else value != 0
    if dtype.is_floating_point:
        # A size stays one: what is computed of it and other whole numbers is one, too.
        return value if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)
    if isinstance(value, torch.SymFloat):
        return torch.sym_int(value)
    return value if isinstance(value, torch.SymInt) else int(value)


# --- moving elements ------------------------------------------------------------------------------


def picked(numbers: Numbers, taken: Sequence[Sequence[int]]) -> Numbers:
    """The elements at every combination of positions: one list of them for each axis."""
    places = [0]
    for size, positions in zip(numbers.shape, taken, strict=True):
        places = [place * size + position for place in places for position in positions]
    shape = tuple(len(positions) for positions in taken)
    return Numbers(tuple(numbers.values[place] for place in places), shape, numbers.dtype)


def transposed(numbers: Numbers, order: Sequence[int]) -> Numbers:
    strides = [1] * len(numbers.shape)
    for axis in range(len(strides) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * numbers.shape[axis + 1]
    places = [0]
    for axis in order:
        step = strides[axis]
        places = [place + step * at for place in places for at in range(numbers.shape[axis])]
    shape = tuple(numbers.shape[axis] for axis in order)
    return Numbers(tuple(numbers.values[place] for place in places), shape, numbers.dtype)


def joined(parts: Sequence[Numbers], axis: int) -> Numbers:
    """Concatenation along an axis."""
    rank = len(parts[0].shape)
    axis = axis % rank
    order = (axis, *(each for each in range(rank) if each != axis))
    front = [transposed(each, order) for each in parts]
    values = tuple(value for each in front for value in each.values)
    shape = (sum(each.shape[0] for each in front), *front[0].shape[1:])
    back = tuple(order.index(each) for each in range(rank))
    return transposed(Numbers(values, shape, parts[0].dtype), back)


def reshaped(numbers: Numbers, shape: Sequence[int]) -> Numbers:
    """Another shape, of which one size may be -1."""
    known = math.prod(size for size in shape if size != -1)
    count = len(numbers.values)
    full = tuple((count // known if known else 0) if size == -1 else size for size in shape)
    if math.prod(full) != count:
        raise ValueError(f"the shape {list(shape)} does not hold {count} elements")
    return Numbers(numbers.values, full, numbers.dtype)
