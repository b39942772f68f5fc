"""Other shapes of the same elements, and parts of them put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import Numbers, as_tensor, joined, picked, reshaped, transposed
from ..operands import dense, fixed_integers, integers, number, require, same_size
from ..registry import operator


@operator("Reshape")
def reshape(x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    """A size of 0 is that of the operand's own axis, unless ``allowzero``; one may be -1."""
    sizes = list(integers(shape, "a shape"))
    if not allowzero:
        for axis, size in enumerate(sizes):
            if size == 0:
                require(axis < len(x.shape), f"has a 0 at {axis}, an axis that its operand has not")
                sizes[axis] = x.shape[axis]
    if isinstance(x, Numbers) and all(isinstance(each, int) for each in sizes):
        return reshaped(x, sizes)
    return dense(as_tensor(x)).reshape(_without_question(list(x.shape), sizes))


def _without_question(have: list[Any], sizes: list[Any]) -> list[Any]:
    """Sizes without -1, where it is what remains when equal sizes of both sides are left out.

    Torch would divide the product of all by the product of the others, and ask whether that is even.
    """
    asked = [at for at, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(asked) != 1:
        return sizes
    rest = list(have)
    divisor = 1
    for size in (each for at, each in enumerate(sizes) if at != asked[0]):
        equal = [at for at, other in enumerate(rest) if same_size(size, other)]
        if equal:
            del rest[equal[0]]
        elif isinstance(size, int) and size > 0:
            divisor *= size
        else:
            return sizes
    whole = math.prod(rest)
    if isinstance(whole, int) and whole % divisor:
        return sizes
    return [*sizes[: asked[0]], whole // divisor, *sizes[asked[0] + 1 :]]


@operator("Flatten")
def flatten(x: Any, *, axis: int = 1) -> torch.Tensor:
    x = dense(as_tensor(x))
    axis = axis + x.dim() if axis < 0 else axis
    if axis == 0:
        return x.reshape(1, -1)
    if axis == x.dim():
        return x.reshape(-1, 1)
    front = x if axis == 1 else x.flatten(0, axis - 1)
    return front if front.dim() == 2 else front.flatten(1)


@operator("Transpose")
def transpose(x: Any, *, perm: list[int] | None = None) -> Any:
    order = perm if perm is not None else list(range(len(x.shape)))[::-1]
    return transposed(x, order) if isinstance(x, Numbers) else x.permute(order)


@operator("Squeeze", since=13)
def squeeze(x: Any, axes: Any = None) -> Any:
    rank = len(x.shape)
    given = {axis % rank for axis in fixed_integers(axes, "axes")} if axes is not None else None
    gone = {axis for axis in range(rank) if x.shape[axis] == 1} if given is None else given
    if isinstance(x, Numbers):
        kept = [size for axis, size in enumerate(x.shape) if axis not in gone]
        return reshaped(x, kept)
    for axis in sorted(gone, reverse=True):
        require(x.shape[axis] == 1, f"takes axis {axis} away, whose size is not 1")
        x = x.select(axis, 0)
    return x


@operator("Unsqueeze", since=13)
def unsqueeze(x: Any, axes: Any) -> Any:
    found = fixed_integers(axes, "axes")
    rank = len(x.shape) + len(found)
    new = sorted(axis % rank for axis in found)
    if isinstance(x, Numbers):
        sizes = list(x.shape)
        for axis in new:
            sizes.insert(axis, 1)
        return reshaped(x, sizes)
    for axis in new:
        x = x.unsqueeze(axis)
    return x


@operator("Concat")
def concat(*parts: Any, axis: int) -> Any:
    if all(isinstance(each, Numbers) for each in parts):
        return joined(parts, axis)
    return torch.cat([as_tensor(each) for each in parts], axis)


@operator("Split", since=13)
def split_evenly(x: Any, split: Any = None, *, outputs: int, axis: int = 0) -> tuple[Any, ...]:
    return _split(x, split, outputs, axis)


@operator("Split", since=18)
def split(
    x: Any, split: Any = None, *, outputs: int, axis: int = 0, num_outputs: int | None = None
) -> tuple[Any, ...]:
    return _split(x, split, num_outputs or outputs, axis)[:outputs]


def _split(x: Any, sizes: Any, count: int, axis: int) -> tuple[Any, ...]:
    axis = axis % len(x.shape)
    if sizes is not None:
        lengths = list(integers(sizes, "sizes"))
    else:
        # The last part is the smaller one where they cannot be equal.
        each = (x.shape[axis] + count - 1) // count
        lengths = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    if isinstance(x, Numbers) and all(isinstance(each, int) for each in lengths):
        starts = [sum(lengths[:at]) for at in range(len(lengths))]
        whole = [list(range(size)) for size in x.shape]
        return tuple(
            picked(x, [*whole[:axis], list(range(a, a + n)), *whole[axis + 1 :]])
            for a, n in zip(starts, lengths, strict=True)
        )
    return tuple(torch.split(as_tensor(x), lengths, axis))


@operator("Expand")
def expand(x: Any, shape: Any) -> torch.Tensor:
    """Broadcast both ways: an axis of either may be 1."""
    x, sizes = as_tensor(x), integers(shape, "a shape")
    return x.expand(_broadcast(x.shape, sizes))


def _broadcast(have: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    rank = max(len(have), len(wanted))
    own = [1] * (rank - len(have)) + list(have)
    other = [1] * (rank - len(wanted)) + list(wanted)
    result = []
    for a, b in zip(own, other, strict=True):
        if isinstance(b, int) and b == 1:
            result.append(a)
        elif isinstance(a, int) and a == 1:
            result.append(b)
        elif isinstance(a, int) and isinstance(b, int):
            result.append(a)
        else:
            result.append(torch.broadcast_shapes((a,), (b,))[0])
    return result


@operator("Tile")
def tile(x: Any, repeats: Any) -> torch.Tensor:
    return as_tensor(x).repeat(*integers(repeats, "repeats"))


@operator("Slice")
def slice_of(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    first, last = integers(starts, "starts"), integers(ends, "ends")
    over = range(len(first)) if axes is None else fixed_integers(axes, "axes")
    by = fixed_integers(steps, "steps") if steps is not None else (1,) * len(first)
    rank = len(x.shape)
    if not all(isinstance(each, int) for each in (*first, *last)):
        x = as_tensor(x)  # how many numbers there are depends on sizes
    for start, end, axis, step in zip(first, last, over, by, strict=True):
        if isinstance(x, Numbers):
            taken = [list(range(size)) for size in x.shape]
            places = taken[axis % rank]
            taken[axis % rank] = places[_python_slice(len(places), start, end, step)]
            x = picked(x, taken)
        elif step > 0:
            x = x[(slice(None),) * (axis % rank) + (slice(start, end, step),)]
        else:
            x = _backwards(x, axis % rank, start, end, step)
    return x


def _python_slice(size: int, start: int, end: int, step: int) -> slice:
    if step > 0:
        return slice(start, end, step)
    # Backwards, a start below every position is the first one, of which Python makes nothing; and an
    # end below every position takes the first element, too, for which Python has None.
    return slice(max(start, -size), None if end <= _LOWEST else end, step)


_LOWEST, _HIGHEST = -(2**31) + 1, 2**31 - 1


def _backwards(x: torch.Tensor, axis: int, start: Any, end: Any, step: int) -> torch.Tensor:
    """A slice with a negative step, as a slice of the flipped tensor."""
    size = x.shape[axis]
    all_of_it = isinstance(start, int) and isinstance(end, int)
    all_of_it = all_of_it and (start == -1 or start >= _HIGHEST) and end <= _LOWEST
    skipped, count = 0, size
    if not all_of_it:
        known = all(isinstance(each, int) for each in (size, start, end))
        require(known, "backwards from a position is not read on a dynamic axis", "a whole axis")
        places = range(size)[_python_slice(size, start, end, step)]
        if not places:
            return x.narrow(axis, 0, 0)
        skipped, count = size - 1 - places[0], places[0] - places[-1] + 1
    flipped = x.flip(axis)
    return flipped[(slice(None),) * axis + (slice(skipped, skipped + count, -step),)]


@operator("Pad", since=13)
def pad_all(x: Any, pads: Any, fill: Any = None, *, mode: str = "constant") -> torch.Tensor:
    return _pad(x, pads, fill, None, mode)


@operator("Pad", since=18)
def pad(
    x: Any, pads: Any, fill: Any = None, axes: Any = None, *, mode: str = "constant"
) -> torch.Tensor:
    return _pad(x, pads, fill, axes, mode)


_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(x: Any, pads: Any, fill: Any, axes: Any, mode: str) -> torch.Tensor:
    x = as_tensor(x)
    rank = x.dim()
    amounts = integers(pads, "pads")
    over = list(range(rank)) if axes is None else [a % rank for a in fixed_integers(axes, "axes")]
    before, after = [0] * rank, [0] * rank
    for at, axis in enumerate(over):
        before[axis], after[axis] = amounts[at], amounts[at + len(over)]
    backwards = [each for axis in range(rank - 1, -1, -1) for each in (before[axis], after[axis])]
    if mode == "constant":
        value = 0 if fill is None else number(fill, "the constant")
        return F.pad(x, backwards, value=value)
    require(mode in _MODES, f"is not read with mode {mode}")
    # torch wants the padded axes alone, with one or two before them.
    last = max(
        (rank - axis for axis in range(rank) if (before[axis], after[axis]) != (0, 0)), default=0
    )
    if last == 0:
        return x
    require(last <= 3, f"is not read with mode {mode} over {last} axes", "the last 3 axes at most")
    missing = last + 2 - rank
    if missing >= 0:
        wide = x.reshape([1] * missing + list(x.shape))
        return F.pad(wide, backwards[: 2 * last], mode=_MODES[mode]).reshape(
            [size + a + b for size, a, b in zip(x.shape, before, after, strict=True)]
        )
    front = rank - last - 1
    merged = x.flatten(0, front) if front else x
    result = F.pad(merged.unsqueeze(0), backwards[: 2 * last], mode=_MODES[mode]).squeeze(0)
    return result.reshape([*x.shape[: front + 1], *result.shape[1:]])


@operator("DepthToSpace")
def depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> torch.Tensor:
    x = as_tensor(x)
    images, channels, height, width = x.shape
    inner = channels // blocksize**2
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    blocks = x.reshape(images, blocksize, blocksize, inner, height, width)
    blocks = blocks.permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(images, inner, height * blocksize, width * blocksize)


@operator("SpaceToDepth")
def space_to_depth(x: Any, *, blocksize: int) -> torch.Tensor:
    x = as_tensor(x)
    images, channels, height, width = x.shape
    down, across = height // blocksize, width // blocksize
    blocks = x.reshape(images, channels, down, blocksize, across, blocksize)
    blocks = blocks.permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(images, channels * blocksize**2, down, across)


@operator("Trilu", since=14)
def trilu(x: Any, k: Any = None, *, upper: int = 1) -> torch.Tensor:
    diagonal = 0 if k is None else fixed_integers(k, "k")[0]
    x = as_tensor(x)
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)
