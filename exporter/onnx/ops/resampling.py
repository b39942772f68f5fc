"""An axis at another size, by positions: where torch has no function for a way of ONNX's ``Resize``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..numbers import Numbers, as_tensor
from ..operands import require

_TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Way:
    """How elements are found: the attributes of ``Resize`` with their names in the specification."""

    mode: str
    transform: str
    nearest_mode: str
    cubic_a: float
    exclude_outside: bool


def resampled(
    x: torch.Tensor, axis: int, length: Any, scale: float | None, way: Way
) -> torch.Tensor:
    """``x`` with ``length`` elements along an axis.

    Args:
        scale: as it is given; None where the length is, of which the scale is then computed.

    Raises:
        Unreadable: the transformation is one that is not read.
    """
    require(way.transform in _TRANSFORMS, f"is not read with {way.transform}")
    size = x.shape[axis]
    places = _places(size, length, scale, way.transform)
    if way.mode == "nearest":
        return x.index_select(axis, _clamped(_rounded(places, way.nearest_mode), size))
    require(x.is_floating_point(), f"with {way.mode} is not read of integers", "a Cast before it")
    wide = x.to(torch.float32) if x.dtype.itemsize < 4 else x
    parts = _linear(places, size) if way.mode == "linear" else _cubic(places, size, way)
    weights = [-1] + [1] * (x.dim() - 1 - axis)
    total: Any = 0
    for taken, weight in parts:
        each = wide.index_select(axis, _clamped(taken, size))
        total = total + each * weight.reshape(weights).to(wide.dtype)
    result: torch.Tensor = total.to(x.dtype)
    return result


def _number(value: Any) -> torch.Tensor:
    return as_tensor(Numbers((value,), (), torch.float32))


def _places(size: Any, length: Any, scale: float | None, transform: str) -> torch.Tensor:
    """Where each element of the result lies among those of the operand, in float32 as ONNX Runtime."""
    steps = torch.arange(length).to(torch.float32)
    ratio = _number(length) / _number(size) if scale is None else _number(scale)
    if transform == "asymmetric":
        return steps / ratio
    if transform == "align_corners":
        return steps * _number(size - 1) / _number(torch.sym_max(length - 1, 1))
    places = (steps + 0.5) / ratio - 0.5
    if transform == "pytorch_half_pixel":
        return places * (_number(length) > 1)
    if transform == "half_pixel_symmetric":
        part = _number(length) / (ratio * _number(size))
        return _number(size) / 2 * (1 - part) + places
    return places


def _rounded(places: torch.Tensor, rounding: str) -> torch.Tensor:
    require(rounding in _ROUNDINGS, f"with nearest is not read with {rounding}")
    if rounding == "floor":
        return torch.floor(places)
    if rounding == "ceil":
        return torch.ceil(places)
    return (
        torch.ceil(places - 0.5) if rounding == "round_prefer_floor" else torch.floor(places + 0.5)
    )


def _clamped(places: torch.Tensor, size: Any) -> torch.Tensor:
    return torch.clamp(places.to(torch.int64), 0, size - 1)


def _linear(places: torch.Tensor, size: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    first = torch.floor(places)
    part = places - first
    return [(first, 1 - part), (first + 1, part)]


def _cubic(places: torch.Tensor, size: Any, way: Way) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys' kernel over four elements (R. Keys 1981, doi:10.1109/TASSP.1981.1163711)."""
    first, a = torch.floor(places), way.cubic_a
    part = places - first
    taken = [first + step for step in (-1, 0, 1, 2)]
    weights: list[torch.Tensor] = []
    for distance in (part + 1, part, 1 - part, 2 - part):
        if len(weights) in (1, 2):
            weights.append(((a + 2) * distance - (a + 3)) * distance * distance + 1)
        else:
            weights.append(((distance - 5) * distance + 8) * distance * a - 4 * a)
    if way.exclude_outside:
        inside = [(each >= 0) & (each <= size - 1) for each in taken]
        weights = [w * there for w, there in zip(weights, inside, strict=True)]
        whole = weights[0] + weights[1] + weights[2] + weights[3]
        weights = [each / whole for each in weights]
    return list(zip(taken, weights, strict=True))


def length_of(size: Any, scale: float) -> Any:
    """The size of a result: the operand's times the scale, cut off; in float32 as ONNX Runtime, which
    rounds 10 times what float32 has of 0.7 up to 7."""
    if isinstance(size, int):
        return int(torch.tensor(size, dtype=torch.float32) * scale)
    if scale == int(scale):
        return size * int(scale)
    if 1 / scale == int(1 / scale):
        return size // int(1 / scale)
    return math.floor(size * scale)
