"""Images at other sizes: by torch's functions where they give ONNX's numbers, else by positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import as_tensor
from ..operands import integers, require
from ..registry import operator
from .resampling import Way, length_of, resampled

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_HALF = ("half_pixel", "pytorch_half_pixel")


def _resize(x: Any, scales: Any, sizes: Any, axes: list[int] | None, way: Way) -> torch.Tensor:
    x = as_tensor(x)
    over = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    ratios, lengths = list(integers(scales, "scales")), list(integers(sizes, "sizes"))
    require(way.mode in ("nearest", "linear", "cubic"), f"is not read with mode {way.mode}")
    given: dict[int, Any] = dict(zip(over, ratios or lengths, strict=True))
    if ratios:
        numbers = all(isinstance(each, float) for each in ratios)
        require(numbers, "is not read with scales that depend on sizes", "sizes in place of scales")
        if way.transform == "align_corners":
            # The specification spreads the corners over size * scale, ONNX Runtime over the whole
            # pixels of the result.
            whole = all(_whole_pixels(x.shape[axis], each) for axis, each in given.items())
            require(whole, "with align_corners is not read with scales of part of a pixel", "sizes")
    found = _by_torch(x, given, bool(ratios), way)
    if found is not None:
        return found
    for axis, each in given.items():
        if ratios and each == 1:
            continue
        if not ratios and isinstance(each, int) and each == x.shape[axis]:
            continue
        length = length_of(x.shape[axis], each) if ratios else each
        x = resampled(x, axis, length, each if ratios else None, way)
    return x


def _by_torch(
    x: torch.Tensor, given: dict[int, Any], by_scale: bool, way: Way
) -> torch.Tensor | None:
    """With torch's own function, where it takes the same elements."""
    rank = x.dim() - 2
    if rank not in _LINEAR or not x.is_floating_point():
        return None
    for axis in (0, 1):
        if axis in given and not bool(given[axis] == (1 if by_scale else x.shape[axis])):
            return None
    spatial = [given.get(axis, 1.0 if by_scale else x.shape[axis]) for axis in range(2, x.dim())]
    for size, each in zip(x.shape[2:], spatial, strict=True):
        if by_scale and isinstance(size, int) and length_of(size, each) != math.floor(size * each):
            return None
    target: dict[str, Any] = {"scale_factor": spatial} if by_scale else {"size": spatial}
    # There a result of one element is the first element; torch's own is in the middle.
    several = all(isinstance(each, (int, float)) and each >= 2 for each in spatial)
    if way.transform == "pytorch_half_pixel" and not several:
        return None
    if way.mode == "nearest":
        name = _nearest(way, spatial if by_scale else [])
        return F.interpolate(x, mode=name, **target) if name else None
    aligned = way.transform == "align_corners"
    if way.transform not in _HALF and not aligned:
        return None
    plain = (way.cubic_a, way.exclude_outside) == (-0.75, False)
    if way.mode == "cubic" and (rank != 2 or not plain):
        return None
    name = "bicubic" if way.mode == "cubic" else _LINEAR[rank]
    return F.interpolate(x, mode=name, align_corners=aligned, **target)


def _whole_pixels(size: Any, ratio: float) -> bool:
    """Whether a size and a scale give a whole size; of a dynamic size only a whole scale does."""
    if ratio == int(ratio):
        return True
    return isinstance(size, int) and abs(size * ratio - round(size * ratio)) < 1e-4


def _nearest(way: Way, scales: list[float]) -> str:
    """torch's mode for one of ONNX's, where both take the same elements; "" for the others."""
    if way.transform == "asymmetric" and way.nearest_mode == "floor":
        return "nearest"
    if way.transform in _HALF and way.nearest_mode == "round_prefer_ceil":
        return "nearest-exact"
    # Ties, which torch rounds up, are not among the positions of a whole factor.
    whole = bool(scales) and all(each >= 1 and each == int(each) for each in scales)
    if way.transform in _HALF and way.nearest_mode == "round_prefer_floor" and whole:
        return "nearest-exact"
    return ""


@operator("Resize", since=11)
def resize(
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> torch.Tensor:
    transform = coordinate_transformation_mode
    way = Way(mode, transform, nearest_mode, cubic_coeff_a, bool(exclude_outside))
    return _resize(x, scales, sizes, None, way)


@operator("Resize", since=18)
def resize_along_axes(
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> torch.Tensor:
    require(not antialias, "is not read with antialias=1", "antialias=0")
    stretched = keep_aspect_ratio_policy == "stretch"
    require(stretched, f"is not read with keep_aspect_ratio_policy={keep_aspect_ratio_policy}")
    transform = coordinate_transformation_mode
    way = Way(mode, transform, nearest_mode, cubic_coeff_a, bool(exclude_outside))
    return _resize(x, scales, sizes, axes, way)


@operator("GridSample", since=16)
def grid_sample_as_torch(
    x: Any,
    grid: Any,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> torch.Tensor:
    return F.grid_sample(as_tensor(x), as_tensor(grid), mode, padding_mode, bool(align_corners))


@operator("GridSample", since=20)
def grid_sample(
    x: Any, grid: Any, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> torch.Tensor:
    names = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    require(mode in names, f"is not read with mode {mode}")
    return F.grid_sample(
        as_tensor(x), as_tensor(grid), names[mode], padding_mode, bool(align_corners)
    )


@operator("AffineGrid", since=20)
def affine_grid(theta: Any, size: Any, *, align_corners: int = 0) -> torch.Tensor:
    sizes = list(integers(size, "a size"))
    return F.affine_grid(as_tensor(theta), sizes, align_corners=bool(align_corners))
