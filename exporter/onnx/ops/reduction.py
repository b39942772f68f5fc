"""Reductions over axes, cumulative sums, positions of extremes, and the largest elements."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from ..numbers import Numbers, as_tensor, scalar, vector
from ..operands import fixed_integers, number, require
from ..registry import Function, operator


def _require_floats(x: torch.Tensor) -> None:
    """Of integers the result is no integer, which ONNX cuts to one."""
    require(x.is_floating_point(), "of integers is not read", "a Cast to float before it")


def _sum(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _mean(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    _require_floats(x)
    return x.mean(axes, keepdim=keep)


def _prod(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _max(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    if x.dtype == torch.bool:
        return x.any(axes, keepdim=keep)
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    return _with_one(x, axes, lowest).amax(axes, keepdim=keep)


def _min(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    if x.dtype == torch.bool:
        return x.all(axes, keepdim=keep)
    highest = math.inf if x.is_floating_point() else torch.iinfo(x.dtype).max
    return _with_one(x, axes, highest).amin(axes, keepdim=keep)


def _with_one(x: torch.Tensor, axes: list[int], value: Any) -> torch.Tensor:
    """Of no elements the extreme is ``value``, for which torch has an error."""
    none = [axis for axis in axes if isinstance(x.shape[axis], int) and x.shape[axis] == 0]
    if not none:
        return x
    return x.new_full([1 if axis in none else size for axis, size in enumerate(x.shape)], value)


def _l1(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    return _sum(x.abs(), axes, keep)


def _l2(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    _require_floats(x)
    return _sum(x * x, axes, keep).sqrt()


def _log_sum(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    _require_floats(x)
    return _sum(x, axes, keep).log()


def _log_sum_exp(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    _require_floats(x)
    return torch.logsumexp(x, axes, keepdim=keep)


def _sum_square(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    return _sum(x * x, axes, keep)


_REDUCTIONS: dict[str, Function] = {
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _max,
    "ReduceMean": _mean,
    "ReduceMin": _min,
    "ReduceProd": _prod,
    "ReduceSum": _sum,
    "ReduceSumSquare": _sum_square,
}
_OF_NUMBERS: dict[str, Function] = {
    "ReduceMax": functools.partial(functools.reduce, torch.sym_max),
    "ReduceMin": functools.partial(functools.reduce, torch.sym_min),
    "ReduceProd": math.prod,
    "ReduceSum": sum,
}
_OF_EACH = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")


def _reduced(name: str, x: Any, axes: tuple[int, ...], keep: bool, noop: bool) -> Any:
    if not axes and noop:
        # The specification says the operand itself, ONNX Runtime gives the function of each element.
        require(name not in _OF_EACH, "is not read with noop_with_empty_axes=1 and no axes")
        return x
    rank = len(x.shape)
    over = [axis % rank for axis in axes] if axes else list(range(rank))
    if isinstance(x, Numbers) and rank == 1 and name in _OF_NUMBERS and x.values:
        result = _OF_NUMBERS[name](x.values)
        return vector([result], x.dtype) if keep else scalar(result, x.dtype)
    x = as_tensor(x)
    if rank == 0:
        # Over no axis: torch takes an empty list for all of them, which is the same element.
        return _REDUCTIONS[name](x.reshape(1), [0], False)
    return _REDUCTIONS[name](x, over, keep)


def _with_attribute(name: str) -> Function:
    def reduce(x: Any, *, axes: list[int] | None = None, keepdims: int = 1) -> Any:
        return _reduced(name, x, tuple(axes or ()), bool(keepdims), False)

    return reduce


def _with_input(name: str) -> Function:
    def reduce(
        x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        over = fixed_integers(axes, "axes")
        return _reduced(name, x, over, bool(keepdims), bool(noop_with_empty_axes))

    return reduce


for _name in _REDUCTIONS:
    if _name != "ReduceSum":
        operator(_name)(_with_attribute(_name))
    operator(_name, since=13 if _name == "ReduceSum" else 18)(_with_input(_name))


def _position(of: Function, x: Any, axis: int, keep: bool, last: bool) -> torch.Tensor:
    x = as_tensor(x)
    if not last:
        result: torch.Tensor = of(x, axis, keepdim=keep)
        return result
    return x.shape[axis] - 1 - of(x.flip(axis), axis, keepdim=keep)


@operator("ArgMax")
def argmax(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> torch.Tensor:
    return _position(torch.argmax, x, axis, bool(keepdims), bool(select_last_index))


@operator("ArgMin")
def argmin(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> torch.Tensor:
    return _position(torch.argmin, x, axis, bool(keepdims), bool(select_last_index))


@operator("CumSum")
def cumsum(x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> torch.Tensor:
    x = as_tensor(x)
    along = int(fixed_integers(axis, "axis")[0]) % x.dim()
    x = x.flip(along) if reverse else x
    total = torch.cumsum(x, along, dtype=x.dtype)
    if exclusive:
        # Not total - x, which is not the same number among floats.
        first = torch.zeros_like(total.narrow(along, 0, 1))
        total = torch.cat([first, total.narrow(along, 0, x.shape[along] - 1)], along)
    return total.flip(along) if reverse else total


@operator("TopK")
def topk(
    x: Any, k: Any, *, outputs: int, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[torch.Tensor, ...]:
    """Of equal elements the first come first, also where any order is allowed."""
    x = as_tensor(x)
    values, places = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    count = number(k, "K")
    return (values.narrow(axis, 0, count), places.narrow(axis, 0, count))[:outputs]
