"""Images at other sizes: those of ONNX's many ways that torch has, number for number."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import as_tensor
from ..operands import integers, require
from ..registry import Unreadable, operator

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_HALF = ("half_pixel", "pytorch_half_pixel")


def _resize(
    x: Any,
    scales: Any,
    sizes: Any,
    axes: list[int] | None,
    mode: str,
    transform: str,
    nearest_mode: str,
    cubic: tuple[float, int],
) -> torch.Tensor:
    x = as_tensor(x)
    over = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    ratios, lengths = list(integers(scales, "scales")), list(integers(sizes, "sizes"))
    rank = x.dim() - 2
    require(rank in _LINEAR, f"is not read over {rank} spatial axes", "1, 2 or 3 of them")
    for axis, ratio in zip(over, ratios or lengths, strict=True):
        if axis < 2:
            same = ratio == (1 if ratios else x.shape[axis])
            require(bool(same), f"is not read along axis {axis}", "the axes after the channels")
    given: dict[int, Any] = dict(zip(over, ratios or lengths, strict=True))
    spatial = [given.get(axis, 1.0 if ratios else x.shape[axis]) for axis in range(2, x.dim())]
    if ratios:
        numbers = all(isinstance(each, float) for each in spatial)
        require(numbers, "is not read with scales that depend on sizes", "sizes in place of scales")
    target: dict[str, Any] = {"scale_factor": spatial} if ratios else {"size": spatial}
    if mode == "nearest":
        return F.interpolate(x, mode=_nearest(transform, nearest_mode, ratios, spatial), **target)
    require(transform in (*_HALF, "align_corners"), f"with {mode} is not read with {transform}")
    aligned = transform == "align_corners"
    if mode == "cubic":
        require(rank == 2, f"with cubic is not read over {rank} spatial axes", "2 of them")
        require(cubic == (-0.75, 0), "with cubic is not read with other than cubic_coeff_a=-0.75")
    name = "bicubic" if mode == "cubic" else _LINEAR[rank]
    result = F.interpolate(x, mode=name, align_corners=aligned, **target)
    if transform == "pytorch_half_pixel":
        for axis, length in enumerate(result.shape[2:], start=2):
            # There a result of one element is the first element; torch's own is in the middle.
            if length == 1:
                require(x.shape[axis] == 1, "with pytorch_half_pixel is not read to one element")
    return result


def _nearest(transform: str, nearest_mode: str, ratios: list[Any], spatial: list[Any]) -> str:
    """torch's mode for one of ONNX's, where both take the same elements."""
    if transform == "asymmetric" and nearest_mode == "floor":
        return "nearest"
    if transform in _HALF and nearest_mode == "round_prefer_ceil":
        return "nearest-exact"
    # Ties, which torch rounds up, are not among the positions of a whole factor.
    whole = bool(ratios) and all(each >= 1 and each == int(each) for each in spatial)
    if transform in _HALF and nearest_mode == "round_prefer_floor" and whole:
        return "nearest-exact"
    raise Unreadable(
        f"with nearest is not read with {transform} and {nearest_mode}",
        "asymmetric and floor, or half_pixel and round_prefer_ceil",
    )


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
    return _resize(
        x,
        scales,
        sizes,
        None,
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        (cubic_coeff_a, exclude_outside),
    )


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
    return _resize(
        x,
        scales,
        sizes,
        axes,
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        (cubic_coeff_a, exclude_outside),
    )


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
