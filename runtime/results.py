"""Memory for large results, which is used again once nobody looks at it any more.

The system fills new memory with zeros page by page as it is written to; for the logits of a language
model that costs as much as the sums. Numpy asks for large pages, and memory used before has them all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..artifacts.contract import Contract, TensorOutput
from ..artifacts.expr import Expr, dims_of
from ..artifacts.manifest import Entry
from ..artifacts.parts import box_of
from ..artifacts.prove import bounds
from .guards import Sizes
from .tensors import ALIGNMENT, bits_of, from_bits

WORTH = 4 << 20  # bytes of a result from which on memory is kept for it
_KEPT_CALLS = 64  # memory that so many calls of a thread had no use for goes back to the system

# Whether `sys.getrefcount` tells that nobody else has an object.
_COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()


@dataclass(frozen=True)
class GivenResult:
    """A result that the compiled code writes where it is told. ``shape``: for each axis the place of
    its size among those that the checks answer."""

    dtype: str
    shape: tuple[int, ...]

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(sizes[place] for place in self.shape)


def given_results(contract: Contract, entry: Entry, sizes: list[Expr]) -> tuple[GivenResult, ...]:
    """The results for which memory is given, in the order that the entry takes them; none where all
    of them stay small.

    Args:
        sizes: what the checks are asked for; what the shapes need besides is appended.
    """
    outputs = {each.result: each for each in contract.outputs if isinstance(each, TensorOutput)}
    chosen = [outputs[number] for number in entry.given]
    if not any(_most_bytes(contract, output) >= WORTH for output in chosen):
        return ()

    def place(size: Expr) -> int:
        if size not in sizes:
            sizes.append(size)
        return sizes.index(size)

    return tuple(
        GivenResult(output.dtype, tuple(place(size) for size in output.shape)) for output in chosen
    )


def _most_bytes(contract: Contract, output: TensorOutput) -> float:
    """The bytes of a result at the largest sizes that are served."""
    box = box_of(contract.dims)
    total = float(bits_of(output.dtype).itemsize)
    for size in output.shape:
        total *= bounds(size, box)[1] if dims_of(size) else size
    return total


@dataclass
class _Block:
    memory: np.ndarray
    used: int


class Spare:
    """Memory for the results of one thread's calls: of each result two, so that the last one may be
    looked at while the next is computed."""

    def __init__(self, results: Sequence[GivenResult]) -> None:
        self._results = results
        self._dtypes = [bits_of(result.dtype) for result in results]
        self._blocks: list[_Block] = []
        self._calls = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, or that results lie in."""
        return sum(block.memory.nbytes for block in self._blocks)

    def take(self, sizes: Sizes) -> list[Any] | None:
        """A TVM tensor for each result; None where they are too small to be worth it."""
        self._calls += 1
        shapes = [result.shape_at(sizes) for result in self._results]
        counts = [
            math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(shapes, self._dtypes, strict=True)
        ]
        if self._blocks:
            oldest = self._calls - _KEPT_CALLS
            self._blocks = [block for block in self._blocks if block.used > oldest]
        if max(counts) < WORTH or not min(counts):
            return None
        tensors = []
        rows = zip(self._results, shapes, self._dtypes, counts, strict=True)
        for result, shape, dtype, count in rows:
            block = self._free(count)
            start = -block.memory.ctypes.data % ALIGNMENT
            bits = block.memory[start : start + count].view(dtype).reshape(shape)
            tensors.append(from_bits(bits, result.dtype))
            if _COUNTED:
                self._blocks.append(block)
        del self._blocks[: -2 * len(self._results)]
        return tensors

    def _free(self, count: int) -> _Block:
        """Memory that nobody looks at, taken out of the list: a call from within a call (a signal
        handler, a finalizer) gets another one."""
        for _ in range(len(self._blocks)):
            block = self._blocks.pop(0)
            free = sys.getrefcount(block.memory) == 2  # the block's, and the call's own
            if free and count + ALIGNMENT <= block.memory.nbytes <= 2 * count + ALIGNMENT:
                block.used = self._calls
                return block
            self._blocks.append(block)
        return _Block(np.empty(count + ALIGNMENT, np.uint8), self._calls)
