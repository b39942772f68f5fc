"""Tensors that are made of sizes alone, and the shapes of others."""

from __future__ import annotations

from typing import Any

import torch

from ..dtypes import DTYPES, dtype_name
from ..numbers import MAX_ELEMENTS, Numbers, as_tensor, numbers_of, scalar, vector
from ..operands import integers, number, require
from ..registry import operator


@operator("Constant")
def constant(
    *,
    value: Any = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> torch.Tensor:
    given = [
        each for each in (value_int, value_ints, value_float, value_floats) if each is not None
    ]
    require((value is None) == (len(given) == 1), "is not read without one value")
    if value is not None:
        tensor: torch.Tensor = value
        return tensor
    floats = value_int is None and value_ints is None
    return torch.tensor(given[0], dtype=torch.float32 if floats else torch.int64)


@operator("Shape")
def shape(x: Any, *, start: int = 0, end: int | None = None) -> Numbers:
    return vector(tuple(x.shape)[start:end])


@operator("Size")
def size(x: Any) -> Numbers:
    count: Any = 1
    for each in x.shape:
        count = count * each
    return scalar(count)


@operator("ConstantOfShape")
def constant_of_shape(shape: Any, *, value: Any = None) -> Any:
    """``value``: one element; 0.0 where there is none."""
    sizes = integers(shape, "a shape")
    fill = (
        0.0
        if value is None
        else number(value if isinstance(value, Numbers) else numbers_of(value), "the value")
    )
    dtype = torch.float32 if value is None else value.dtype
    if len(sizes) <= 1 and all(isinstance(each, int) for each in sizes) and not dtype.is_complex:
        count = sizes[0] if sizes else 1
        if count <= MAX_ELEMENTS:  # it may be a part of a shape
            return Numbers((fill,) * count, tuple(sizes), dtype)
    return torch.full(tuple(sizes), fill, dtype=dtype)


@operator("EyeLike")
def eye_like(x: Any, *, dtype: int | None = None, k: int = 0) -> torch.Tensor:
    require(dtype is None or dtype in DTYPES, f"is not read in {dtype_name(dtype or 0)}")
    kind = x.dtype if dtype is None else DTYPES[dtype]
    rows, columns = x.shape
    places = torch.arange(columns) - torch.arange(rows).unsqueeze(1)
    return (places == k).to(kind)


@operator("OneHot")
def one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> torch.Tensor:
    """``values`` are those of off and on; an index outside of -depth..depth-1 is off everywhere."""
    indices, values = as_tensor(indices), as_tensor(values)
    classes = number(depth, "the depth")
    axis = axis % (indices.dim() + 1)
    places = torch.arange(classes).reshape([-1] + [1] * (indices.dim() - axis))
    wanted = indices.to(torch.int64).unsqueeze(axis)
    hot = (wanted == places) | (wanted + classes == places)
    return torch.where(hot, values[1], values[0])
