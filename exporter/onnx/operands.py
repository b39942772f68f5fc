"""How operators read their inputs: as tensors, as sizes, or as one of both beside a tensor."""

from __future__ import annotations

from typing import Any

import torch

from .numbers import Numbers, as_tensor
from .registry import Unreadable


def all_numbers(*values: Any) -> bool:
    return all(isinstance(value, Numbers) for value in values)


def beside(value: Any) -> Any:
    """An operand of arithmetic with a tensor: a single number stays one, which costs no read.

    ONNX has one dtype for both operands, so that torch has nothing to promote.
    """
    if isinstance(value, Numbers) and value.shape == () and value.dtype != torch.bool:
        return value.values[0]
    return as_tensor(value)


def two(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands of arithmetic, one of which is a tensor."""
    if isinstance(a, Numbers):
        return (as_tensor(a) if isinstance(b, Numbers) else beside(a)), as_tensor(b)
    return as_tensor(a), beside(b)


def integers(value: Any, what: str) -> tuple[Any, ...]:
    """The sizes, axes or positions that an input holds; None gives none.

    Raises:
        Unreadable: they are computed from data.
    """
    if value is None:
        return ()
    if isinstance(value, Numbers):
        return value.values
    if value.numel() == 0:
        return ()
    raise Unreadable(
        f"is not read with {what} computed from data",
        f"{what} from constants and the shapes of inputs",
    )


def fixed_integers(value: Any, what: str) -> tuple[int, ...]:
    """The same for what must be constant, such as axes."""
    found = integers(value, what)
    if not all(isinstance(each, (int, float)) for each in found):
        raise Unreadable(f"is not read with {what} that depend on sizes", f"constant {what}")
    return tuple(int(each) for each in found)


def number(value: Any, what: str) -> Any:
    """The one number that an input of one element holds."""
    found = integers(value, what)
    if len(found) != 1:
        raise Unreadable(f"has {len(found)} numbers where {what} should be one")
    return found[0]


def require(condition: bool, reason: str, instead: str = "") -> None:
    """Refuse a use of an operator unless ``condition``."""
    if not condition:
        raise Unreadable(reason, instead)


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are one expression; that sizes happen to be equal does not count."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return isinstance(a, int) and isinstance(b, int) and a == b


def dense(x: torch.Tensor) -> torch.Tensor:
    """A tensor in row-major order. Of another one torch asks, before it reshapes it, whether sizes are
    1: ONNX has no such order, and a model of ONNX's no sizes that are left out for it."""
    wanted: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if not same_size(stride, wanted):
            return x.clone(memory_format=torch.contiguous_format)
        wanted = wanted * size
    return x
