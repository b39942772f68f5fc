"""Example inputs at other sizes: for a trace that no size of the example fixes, and to verify with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..artifacts.expr import Expr, evaluate

AxisExprs: TypeAlias = "tuple[Expr, ...]"

_FEW = 8


def axis_sizes(axes: AxisExprs, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The concrete shape of a tensor whose axes are given as expressions over dims."""
    return tuple(evaluate(axis, sizes) for axis in axes)


def resized(
    tensor: torch.Tensor, axes: AxisExprs, sizes: Mapping[str, int], wanted: Mapping[str, int]
) -> torch.Tensor:
    """A clone of an example tensor at other sizes: repeated, or cut off, along each axis.

    An axis of size 0 is filled with zeros. The clone shares no memory with anything.
    """
    result = tensor.detach().clone()
    for axis, (old, new) in enumerate(
        zip(axis_sizes(axes, sizes), axis_sizes(axes, wanted), strict=True)
    ):
        if old == new:
            continue
        if old == 0:
            shape = list(result.shape)
            shape[axis] = new
            result = result.new_zeros(shape)
        else:
            result = result.index_select(axis, torch.arange(new) % old)
    return result


def drawn(tensor: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Random values of the kind that the example holds, in another shape.

    Integers, bools and floats with few distinct values (masks) are drawn from the example's own
    values; other floats from a normal distribution with the example's mean and deviation.
    """
    count = 1
    for size in shape:
        count *= size
    values = tensor.detach().reshape(-1)
    if values.numel() == 0:
        return torch.zeros(shape, dtype=tensor.dtype)
    if tensor.is_floating_point() and not _has_few_values(values):
        wide = values.double()
        finite = wide[torch.isfinite(wide)]
        spread = float(finite.std()) if finite.numel() > 1 else 0.0
        mean = float(finite.mean()) if finite.numel() else 0.0
        noise = torch.randn(count, generator=generator, dtype=torch.float64)
        return (noise * (spread or 1.0) + mean).reshape(tuple(shape)).to(tensor.dtype)
    picks = torch.randint(0, values.numel(), (count,), generator=generator)
    return values[picks].reshape(tuple(shape)).clone()


def _has_few_values(values: torch.Tensor) -> bool:
    distinct = torch.unique(values[:4096])
    return 1 < distinct.numel() <= min(_FEW, max(1, values.numel() // 2))


def contiguous_clone(leaf: Any) -> Any:
    """The leaf as it is passed to eager: a fresh tensor, or the plain value itself."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
