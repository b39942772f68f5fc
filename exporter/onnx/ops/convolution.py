"""Convolutions, whose pads may differ at both ends and may come from the sizes (``auto_pad``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ..numbers import as_tensor
from ..operands import integers, require
from ..registry import operator

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def window_pads(
    x: torch.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> tuple[list[Any], list[Any]]:
    """How much is added before and after each spatial axis."""
    rank = len(kernel)
    if auto_pad == "NOTSET":
        given = list(pads or [0] * (2 * rank))
        return given[:rank], given[rank:]
    if auto_pad == "VALID":
        return [0] * rank, [0] * rank
    require(auto_pad in ("SAME_UPPER", "SAME_LOWER"), f"is not read with auto_pad={auto_pad}")
    before, after = [], []
    for size, width, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        reach = (width - 1) * dilation + 1
        steps = (size + stride - 1) // stride
        missing = torch.sym_max(0, (steps - 1) * stride + reach - size) if stride > 1 else reach - 1
        small = missing // 2
        large = missing - small
        before.append(small if auto_pad == "SAME_UPPER" else large)
        after.append(large if auto_pad == "SAME_UPPER" else small)
    return before, after


def padded(x: torch.Tensor, before: Sequence[Any], after: Sequence[Any], fill: Any) -> torch.Tensor:
    """With ``fill`` around the spatial axes; as it is where nothing is added."""
    if all(isinstance(each, int) and each == 0 for each in (*before, *after)):
        return x
    amounts: list[Any] = []
    for first, last in zip(reversed(before), reversed(after), strict=True):
        amounts += [first, last]
    return F.pad(x, amounts, value=fill)


def same_at_both_ends(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(
        isinstance(a, int) and isinstance(b, int) and a == b
        for a, b in zip(before, after, strict=True)
    )


def _spatial(x: torch.Tensor, known: Any) -> int:
    rank = x.dim() - 2
    require(rank in known, f"is not read over {rank} spatial axes", "1, 2 or 3 of them")
    return rank


@operator("Conv")
def conv(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> torch.Tensor:
    x, w = as_tensor(x), as_tensor(w)
    rank = _spatial(x, _CONV)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    before, after = window_pads(x, list(w.shape[2:]), strides, dilations, pads, auto_pad)
    bias = None if b is None else as_tensor(b)
    if same_at_both_ends(before, after) and min(before) >= 0:
        return _CONV[rank](x, w, bias, strides, before, dilations, group)
    return _CONV[rank](padded(x, before, after, 0), w, bias, strides, 0, dilations, group)


@operator("ConvInteger")
def conv_integer(
    x: Any,
    w: Any,
    x_zero: Any = None,
    w_zero: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> torch.Tensor:
    """Of 8-bit integers less their zero points, summed in int32; what is padded counts as zero points.

    Computed in float64, which holds every sum of fewer than 2**37 such products exactly.
    """
    values, weights = (as_tensor(each).to(torch.float64) for each in (x, w))
    values = values if x_zero is None else values - as_tensor(x_zero).to(torch.float64)
    if w_zero is not None:
        zero = as_tensor(w_zero).to(torch.float64)
        weights = weights - (zero.reshape(-1, *[1] * (weights.dim() - 1)) if zero.dim() else zero)
    result = conv(
        values,
        weights,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        pads=pads,
        strides=strides,
    )
    return result.to(torch.int32)


@operator("ConvTranspose")
def conv_transpose(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> torch.Tensor:
    x, w = as_tensor(x), as_tensor(w)
    rank = _spatial(x, _TRANSPOSED)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    kernel = list(w.shape[2:])
    bias = None if b is None else as_tensor(b)
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        reaches = [(width - 1) * d + 1 for width, d in zip(kernel, dilations, strict=True)]
        wanted = output_shape or [size * s for size, s in zip(x.shape[2:], strides, strict=True)]
        before, after = [], []
        for size, stride, reach, more, length in zip(
            x.shape[2:], strides, reaches, extra, wanted[-rank:], strict=True
        ):
            cut = (size - 1) * stride + more + reach - length
            if cut < 0:  # a longer result than there is: nothing comes at its end
                before.append(0)
                after.append(cut)
                continue
            # The specification puts the smaller half first for SAME_UPPER only.
            small = cut // 2
            before.append(small if auto_pad == "SAME_UPPER" else cut - small)
            after.append(cut - before[-1])
    else:
        before, after = window_pads(x, kernel, strides, dilations, pads, auto_pad)
    run = _TRANSPOSED[rank]
    if same_at_both_ends(before, after) and min(before) >= 0:
        return run(x, w, bias, strides, before, extra, group, dilations)
    # Pads of a transposed convolution take away from its result; the bias is added to what is left.
    whole = run(x, w, None, strides, 0, extra, group, dilations)
    for axis, (first, last) in enumerate(zip(before, after, strict=True), start=2):
        if last < 0:
            shape = [-last if at == axis else size for at, size in enumerate(whole.shape)]
            whole, last = torch.cat([whole, whole.new_zeros(shape)], axis), 0
        whole = whole.narrow(axis, first, whole.shape[axis] - first - last)
    return whole if bias is None else whole + bias.reshape([-1] + [1] * rank)


@operator("Col2Im", since=18)
def col2im(
    x: Any,
    image_shape: Any,
    block_shape: Any,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> torch.Tensor:
    size = list(integers(image_shape, "an image's shape"))
    block = list(integers(block_shape, "a block's shape"))
    pads = pads or [0] * 4
    require(len(size) == 2, "is not read over other than 2 spatial axes")
    require(pads[:2] == pads[2:], "is not read with other pads at both ends")
    return F.fold(as_tensor(x), size, block, dilations or 1, pads[:2], strides or 1)
