"""Axes and shapes of several operands as torch brings them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from .symbols import Shape, Size


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis % max(rank, 1)


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of some operands.

    Only a size that is the constant 1 is stretched: where torch's trace stretches an axis that is 1
    by chance, it has fixed that axis.
    """
    rank = max(len(shape) for shape in shapes)
    result: list[Size] = []
    for axis in range(rank):
        sizes = [shape[axis - rank] for shape in shapes if rank - axis <= len(shape)]
        wide = [size for size in sizes if size != 1]
        # Of several names for one size, the constant says most.
        constant = [size for size in wide if isinstance(size, int)]
        result.append((constant or wide or [1])[0])
    return tuple(result)


def broadcast_index(shape: Shape, position: Sequence[Any]) -> list[Any]:
    """Where an operand of ``shape`` is read for an element of the common shape."""
    tail = position[len(position) - len(shape) :]
    return [
        tirx.IntImm("int64", 0) if size == 1 else index
        for size, index in zip(shape, tail, strict=True)
    ]
