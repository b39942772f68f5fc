"""Normalizations and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tvm import te, tirx

from ..broadcasting import axis_of
from ..context import Context, Unsupported
from ..kernels import norm
from ..kernels.group_norm import emit_statistics
from ..symbols import product
from ..tensor import HALVES, Tensor
from . import on_gpu
from .elementwise import dtype_of_result, pointwise
from .reduce import mean, reduce, variance
from .registry import converter


def normalize(
    ctx: Context,
    x: Tensor,
    center: Tensor,
    spread: Tensor,
    eps: float,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """(x - center) / sqrt(spread + eps) * weight + bias, all broadcast to ``x``."""
    extra = [t for t in (weight, bias) if t is not None]

    def element(value: Any, middle: Any, square: Any, *affine: Any) -> Any:
        scale = tirx.const(1, x.dtype) / tirx.sqrt(square + tirx.const(eps, x.dtype))
        result = (value - middle) * scale
        rest = list(affine)
        if weight is not None:
            result = result * rest.pop(0)
        if bias is not None:
            result = result + rest.pop(0)
        return result

    return pointwise(ctx, "normalize", element, x, center, spread, *extra, dtype=x.dtype)


def _wide(ctx: Context, x: Tensor) -> Tensor:
    return ctx.cast(x, "float32") if x.dtype in HALVES else x


def _has_kernel(ctx: Context, x: Tensor) -> bool:
    """Whether the kernels over rows of float32 take it; those for the CPU widen halves as they read."""
    return x.dtype == "float32" or (x.dtype in HALVES and not ctx.on_gpu)


@converter("aten.layer_norm.default", takes_halves=True)
def convert_layer_norm(
    ctx: Context,
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    cudnn_enable: Any,
) -> Tensor:
    return layer_norm(ctx, input, len(normalized_shape), weight, bias, eps)


@converter("aten.native_layer_norm.default", takes_halves=True)
def convert_native_layer_norm(
    ctx: Context,
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> list[Tensor | None]:
    return [layer_norm(ctx, input, len(normalized_shape), weight, bias, eps), None, None]


def layer_norm(
    ctx: Context,
    x: Tensor,
    axes: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """The norm of x + residual over its last ``axes`` axes. Weight and bias are taken as float32."""
    width = product(x.shape[x.rank - axes :])
    if width == 0:  # there is nothing, and no mean of it
        return ctx.zeros(x.shape, x.dtype)
    weight, bias = (None if t is None else _wide(ctx, t) for t in (weight, bias))
    if _has_kernel(ctx, x) and isinstance(width, int):
        rows = (product(x.shape[: x.rank - axes]), width)
        added, scale, offset = (
            None if t is None else ctx.reshape(t, shape)
            for t, shape in ((residual, rows), (weight, (width,)), (bias, (width,)))
        )
        flat = ctx.reshape(x, rows)
        if ctx.on_gpu:
            made = on_gpu.layer_norm(ctx, flat, added, scale, offset, eps)
            return ctx.reshape(made, x.shape)
        function = norm.layer_norm(
            width,
            eps,
            weight=weight is not None,
            bias=bias is not None,
            residual=residual is not None,
            target=ctx.cpu,
            dtype=x.dtype,
        )
        inputs = [t for t in (flat, added, scale, offset) if t is not None]
        return ctx.reshape(ctx.call("layer_norm", function, inputs, rows, x.dtype), x.shape)
    if residual is not None:
        x = pointwise(ctx, "add", lambda a, b: a + b, x, residual, dtype=x.dtype)
    if x.dtype in HALVES:
        made = layer_norm(ctx, _wide(ctx, x), axes, weight, bias, eps)
        return ctx.cast(made, x.dtype)
    over = list(range(x.rank - axes, x.rank))
    center = mean(ctx, x, over, True, x.dtype)
    spread = variance(ctx, x, over, 0, True, center)
    return normalize(ctx, x, center, spread, eps, weight, bias)


@converter("aten.rms_norm.default", takes_halves=True)
def convert_rms_norm(
    ctx: Context,
    input: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    eps: float | None,
) -> Tensor:
    dtype, axes = input.dtype, len(normalized_shape)
    offset = torch.finfo(ctx.expected().dtype).eps if eps is None else eps
    width = product(input.shape[input.rank - axes :])
    weight = None if weight is None else _wide(ctx, weight)
    if _has_kernel(ctx, input) and isinstance(width, int):
        rows = (product(input.shape[: input.rank - axes]), width)
        inputs = [ctx.reshape(input, rows)]
        inputs += [] if weight is None else [ctx.reshape(weight, (width,))]
        if ctx.on_gpu:
            return ctx.reshape(on_gpu.rms_norm(ctx, offset, *inputs), input.shape)
        function = norm.rms_norm(
            width, offset, weight=weight is not None, target=ctx.cpu, dtype=dtype
        )
        return ctx.reshape(ctx.call("rms_norm", function, inputs, rows, dtype), input.shape)
    if dtype in HALVES:
        made = convert_rms_norm(ctx, _wide(ctx, input), normalized_shape, weight, offset)
        return ctx.cast(made, dtype)
    squares = pointwise(ctx, "squares", lambda a: a * a, input, dtype=dtype)
    spread = mean(ctx, squares, list(range(input.rank - axes, input.rank)), True, dtype)

    def element(value: Any, square: Any, *scale: Any) -> Any:
        result = value / tirx.sqrt(square + tirx.const(offset, dtype))
        return result * scale[0] if scale else result

    extra = [] if weight is None else [weight]
    return pointwise(ctx, "rms_norm", element, input, spread, *extra, dtype=dtype)


@converter("aten.group_norm.default")
def convert_group_norm(
    ctx: Context,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    cudnn_enabled: Any,
) -> Tensor:
    batch, channels, *inner = input.shape
    if not isinstance(channels, int):
        raise Unsupported("with a number of channels that varies")
    if input.last is not None and input.dtype == "float32" and not ctx.on_gpu:
        return _of_image(ctx, input, num_groups, weight, bias, eps)
    per_group = channels // num_groups
    grouped = ctx.reshape(input, (batch, num_groups, product((per_group, *inner))))
    center = mean(ctx, grouped, [2], True, input.dtype)
    spread = variance(ctx, grouped, [2], 0, True, center)
    plain = ctx.reshape(normalize(ctx, grouped, center, spread, eps, None, None), input.shape)
    column = (channels, *(1 for _ in inner))
    scale = [ctx.reshape(t, column) for t in (weight, bias) if t is not None]
    if not scale:
        return plain

    def element(value: Any, *affine: Any) -> Any:
        rest = list(affine)
        if weight is not None:
            value = value * rest.pop(0)
        return value + rest.pop(0) if bias is not None else value

    return pointwise(ctx, "affine", element, plain, *scale, dtype=input.dtype)


def _of_image(
    ctx: Context, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """The same with the channels last: a kernel for the statistics, and arithmetic that is fused with
    what comes after it."""
    image = ctx.with_channels_last(x)
    items, pixels, channels = image.shape[0], product(image.shape[1:-1]), image.shape[-1]

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        emit_statistics(
            inputs[0],
            *results,
            items=scope.size(items),
            pixels=scope.size(pixels),
            groups=groups,
            eps=eps,
            target=ctx.cpu,
        )

    flat = ctx.reshape(image, (items, pixels, channels))
    made = [((items, channels), "float32")] * 2
    statistics = ctx.procedure("group_statistics", [flat], made, emit, (items, pixels))
    ctx.templates += 1
    ones = (1,) * (x.rank - 2)
    of_item = [ctx.reshape(t, (items, channels, *ones)) for t in statistics]
    of_channel = [ctx.reshape(t, (channels, *ones)) for t in (weight, bias) if t is not None]

    def element(value: Any, center: Any, scale: Any, *affine: Any) -> Any:
        value, rest = (value - center) * scale, list(affine)
        if weight is not None:
            value = value * rest.pop(0)
        return value + rest.pop(0) if bias is not None else value

    return pointwise(ctx, "group_norm", element, x, *of_item, *of_channel, dtype=x.dtype)


@converter("aten.native_group_norm.default")
def convert_native_group_norm(
    ctx: Context,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> list[Tensor | None]:
    return [convert_group_norm(ctx, input, group, weight, bias, eps, None), None, None]


@converter("aten._native_batch_norm_legit_no_training.default")
def convert_batch_norm(
    ctx: Context,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: Any,
    eps: float,
) -> list[Tensor | None]:
    channels = input.shape[1]
    column = (channels, *(1 for _ in input.shape[2:]))
    operands = [
        None if t is None else ctx.reshape(t, column)
        for t in (running_mean, running_var, weight, bias)
    ]
    center, spread, scale, offset = operands
    assert center is not None and spread is not None
    return [normalize(ctx, input, center, spread, eps, scale, offset), None, None]


@converter("aten._native_batch_norm_legit.no_stats")
def convert_instance_norm(
    ctx: Context,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> list[Tensor | None]:
    """By the statistics of the batch itself: torch's instance norm, which counts instances as
    channels of a batch of one."""
    over = [0, *range(2, input.rank)]
    center = mean(ctx, input, over, True, input.dtype)
    spread = variance(ctx, input, over, 0, True, center)
    column = (input.shape[1], *(1 for _ in input.shape[2:]))
    scale, offset = (None if t is None else ctx.reshape(t, column) for t in (weight, bias))
    return [normalize(ctx, input, center, spread, eps, scale, offset), None, None]


def softmax(ctx: Context, x: Tensor, axis: int, *, log: bool = False) -> Tensor:
    if x.rank == 0:
        return ctx.reshape(softmax(ctx, ctx.reshape(x, (1,)), 0, log=log), ())
    if _has_kernel(ctx, x) and axis == x.rank - 1:
        flat = ctx.rows(x)
        if ctx.on_gpu:
            return ctx.reshape(on_gpu.softmax(ctx, flat, log=log), x.shape)
        width = flat.shape[1] if isinstance(flat.shape[1], int) else None
        function = norm.softmax(width, log=log, target=ctx.cpu, dtype=x.dtype)
        return ctx.reshape(ctx.call("softmax", function, [flat], flat.shape, x.dtype), x.shape)
    if x.dtype in HALVES:
        return ctx.cast(softmax(ctx, _wide(ctx, x), axis, log=log), x.dtype)
    highest = reduce(ctx, "max", te.max, x, [axis], True, x.dtype)
    shifted = pointwise(ctx, "subtract", lambda a, b: a - b, x, highest, dtype=x.dtype)
    powers = pointwise(ctx, "exp", tirx.exp, shifted, dtype=x.dtype)
    total = reduce(ctx, "sum", te.sum, powers, [axis], True, x.dtype)
    if log:
        return pointwise(
            ctx, "log_softmax", lambda a, b: a - tirx.log(b), shifted, total, dtype=x.dtype
        )
    return pointwise(ctx, "softmax", lambda a, b: a / b, powers, total, dtype=x.dtype)


@converter("aten.softmax.int", "aten._softmax.default", takes_halves=True)
def convert_softmax(ctx: Context, x: Tensor, dim: int, half_to_float: Any = None) -> Tensor:
    return softmax(ctx, ctx.cast(x, dtype_of_result(ctx)), axis_of(dim, x.rank))


@converter("aten.log_softmax.int", "aten._log_softmax.default", takes_halves=True)
def convert_log_softmax(ctx: Context, x: Tensor, dim: int, half_to_float: Any = None) -> Tensor:
    return softmax(ctx, ctx.cast(x, dtype_of_result(ctx)), axis_of(dim, x.rank), log=True)
