"""Convolutions over one, two or three axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tvm import te, tirx

from ..context import Context, Unsupported, constant_tensor
from ..kernels import conv_last, conv_weights
from ..kernels.conv import conv2d
from ..layout import to_last
from ..symbols import Shape, Size, Symbols, as_shape, product
from ..tensor import HALVES, Constant, Tensor
from . import on_gpu
from .elementwise import pointwise
from .linear import ACTIVATIONS, product_of, scale_of_each
from .registry import converter
from .shape import part, permute


@converter("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", takes_halves=True)
def convert_conv(
    ctx: Context,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    axes = weight.rank - 2
    batched = input if input.rank == weight.rank else ctx.reshape(input, (1, *input.shape))
    expected = as_shape(ctx.expected().shape)
    result = convolve(
        ctx,
        batched,
        weight,
        bias,
        expected if len(expected) == weight.rank else (1, *expected),
        stride=_each(stride, axes),
        padding=_each(padding, axes),
        dilation=_each(dilation, axes),
        groups=groups,
        last=ctx.node in ctx.channels_last,
    )
    return result if result.shape == expected else ctx.reshape(result, expected)


@converter("aten.convolution.default", takes_halves=True)
def convert_convolution(
    ctx: Context,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    if transposed:
        return _transposed(ctx, input, weight, bias, stride, padding, dilation, groups)
    return convert_conv(ctx, input, weight, bias, stride, padding, dilation, groups)


def _transposed(
    ctx: Context,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The weight is ``[c, o / groups, …]``: each input pixel adds its product with the whole of it
    to the result. One matrix product makes the terms, ``[n, pixels, o, …]``, and a second kernel
    adds up those that meet at each pixel of the result."""
    dtype = input.dtype
    axes = weight.rank - 2
    shape = as_shape(ctx.expected().shape)
    x = input if input.rank == weight.rank else ctx.reshape(input, (1, *input.shape))
    batch, channels, *own = x.shape
    _, group_filters, *window = weight.shape
    if not all(isinstance(size, int) for size in weight.shape):
        raise Unsupported("with a weight whose shape varies")
    steps, borders, spread = (_each(v, axes) for v in (stride, padding, dilation))
    pixels, taps = product(own), product(window)
    wide = "float64" if dtype == "float64" else "float32"
    per_group = channels // groups
    columns = product((group_filters, taps))
    terms = []
    for group in range(groups):
        first = group * per_group
        rows = part(ctx, x, 1, first, 1, per_group)
        rows = permute(ctx, ctx.reshape(rows, (batch, per_group, pixels)), (0, 2, 1))
        matrix = _group_matrix(ctx, weight, first, per_group, columns, group)
        made = product_of(ctx, rows, matrix)
        terms.append(ctx.cast(ctx.reshape(made, (batch, *own, group_filters, *window)), wide))
    full = shape if len(shape) == weight.rank else (1, *shape)
    zero = tirx.IntImm("int64", 0)

    def build(scope: Symbols, *sources: te.Tensor) -> te.Tensor:
        offsets = [te.reduce_axis((zero, scope.size(size)), name="rk") for size in window]

        def element(*position: Any) -> Any:
            number, output, *at = position
            where, inside = [], []
            for p, k, step, border, apart, size in zip(
                at, offsets, steps, borders, spread, own, strict=True
            ):
                away = p + tirx.IntImm("int64", border) - k.var * tirx.IntImm("int64", apart)
                source = tirx.floordiv(away, tirx.IntImm("int64", step))
                where.append(source)
                inside += [
                    tirx.EQ(source * tirx.IntImm("int64", step), away),
                    source >= zero,
                    source < scope.size(size),
                ]
            filters = tirx.IntImm("int64", group_filters)
            taps = [k.var for k in offsets]
            inner = tirx.floormod(output, filters)
            value = sources[-1](number, *where, inner, *taps)
            for group in reversed(range(groups - 1)):
                here = output < tirx.IntImm("int64", (group + 1) * group_filters)
                value = tirx.if_then_else(here, sources[group](number, *where, inner, *taps), value)
            return te.sum(
                tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, wide)), axis=offsets
            )

        return te.compute(scope.shape(full), element, name="gather_terms")

    result = ctx.kernel("gather_terms", build, terms, full, wide)
    if bias is not None:
        column = ctx.cast(ctx.reshape(bias, (full[1], *(1 for _ in window))), wide)
        result = pointwise(ctx, "add", lambda a, b: a + b, result, column, dtype=wide)
    return ctx.cast(ctx.reshape(result, shape), dtype)


def _group_matrix(
    ctx: Context, weight: Tensor, first: int, count: int, columns: Size, group: int
) -> Tensor:
    """The weight of one group as ``[c / groups, o / groups * taps]``."""
    if weight.constant is None:
        return ctx.reshape(part(ctx, weight, 0, first, 1, count), (count, columns))
    name = f"{weight.constant.name}:group{group}"
    value = weight.constant.value[first : first + count]
    rows = weight.constant.stepped(name, value, "rows", first, count)
    matrix = value.reshape(count, columns)
    return constant_tensor(rows.stepped(name, matrix, "reshape", tuple(matrix.shape)))


def _each(value: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def convolve(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: Shape,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    residual: Tensor | None = None,
    activation: str | None = None,
    last: bool = False,
) -> Tensor:
    """``[n, c, …]`` by ``[o, c/groups, …]`` → ``shape``: correlation, zeros outside; then bias, sum
    with the residual, and activation. With ``last`` the result has its channels last."""
    if 0 in shape:  # torch makes no channels of none
        return ctx.zeros(shape, x.dtype)
    if last:
        return _with_channels_last(
            ctx, x, weight, bias, shape, stride, padding, dilation, groups, residual, activation
        )
    if residual is not None or (activation is not None and x.dtype in HALVES):
        # Halves are rounded after each of the three.
        result = convolve(
            ctx,
            x,
            weight,
            bias,
            shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        if residual is not None:
            result = pointwise(ctx, "add", lambda a, b: a + b, result, residual, dtype=x.dtype)
        if activation is not None:
            function = ACTIVATIONS[activation]
            result = pointwise(ctx, activation, function, result, dtype=x.dtype)
        return result
    if x.dtype in HALVES:
        result = convolve(
            ctx,
            ctx.cast(x, "float32"),
            _widened(ctx, weight),
            None if bias is None else ctx.cast(bias, "float32"),
            shape,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        return ctx.cast(result, x.dtype)
    fixed = all(isinstance(size, int) for size in weight.shape)
    if x.dtype == "float32" and fixed and weight.rank in (3, 4) and not ctx.on_gpu:
        return _in_a_kernel(
            ctx, x, weight, bias, shape, stride, padding, dilation, groups, activation
        )
    outputs, inputs, *window = weight.shape
    if not fixed:
        raise Unsupported("with a weight whose shape varies")
    per_group = outputs // groups
    zero = tirx.IntImm("int64", 0)

    def build(scope: Symbols, source: te.Tensor, kernel: te.Tensor) -> te.Tensor:
        def padded(*position: Any) -> Any:
            where = [
                p - tirx.IntImm("int64", b) for p, b in zip(position[2:], padding, strict=True)
            ]
            inside = [
                condition
                for at, size in zip(where, x.shape[2:], strict=True)
                for condition in (at >= zero, at < scope.size(size))
            ]
            value = source(*position[:2], *where)
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, x.dtype))

        wide = [size + 2 * border for size, border in zip(x.shape[2:], padding, strict=True)]
        filled = te.compute(scope.shape((*x.shape[:2], *wide)), padded, name="padded")
        image = filled if any(padding) else source
        channel = te.reduce_axis((zero, scope.size(inputs)), name="rc")
        offsets = [te.reduce_axis((zero, scope.size(size)), name="rk") for size in window]

        def element(*position: Any) -> Any:
            number, output, *at = position
            group = tirx.floordiv(output, tirx.IntImm("int64", per_group))
            where = [
                p * tirx.IntImm("int64", s) + o.var * tirx.IntImm("int64", d)
                for p, s, o, d in zip(at, stride, offsets, dilation, strict=True)
            ]
            value = image(number, group * scope.size(inputs) + channel.var, *where)
            factor = kernel(output, channel.var, *(o.var for o in offsets))
            return te.sum(value * factor, axis=[channel, *offsets])

        return te.compute(scope.shape(shape), element, name="conv")

    result = ctx.kernel("conv", build, [x, weight], shape, x.dtype)
    if bias is not None:
        column = ctx.reshape(bias, (outputs, *(1 for _ in window)))
        result = pointwise(ctx, "add", lambda a, b: a + b, result, column, dtype=x.dtype)
    if activation is not None:
        result = pointwise(ctx, activation, ACTIVATIONS[activation], result, dtype=x.dtype)
    return result


def _widened(ctx: Context, weight: Tensor) -> Tensor:
    """A weight of halves for the kernels that have none for halves: for a CPU at export, at twice its
    size, for at each call it would take longer than a convolution of few pixels."""
    if weight.constant is None or ctx.on_gpu:
        return ctx.cast(weight, "float32")
    wide = weight.constant.value.float()
    name = f"{weight.constant.name}:float32"
    return constant_tensor(weight.constant.stepped(name, wide, "cast", "float32"))


def _in_a_kernel(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str | None,
) -> Tensor:
    """Over two axes; a convolution over one is one over a plane of one line."""
    line = weight.rank == 3
    constant, scale = _stored(weight)
    if constant is not None:
        filters, channels, *window = (int(size) for size in weight.shape)
        plane_of = (filters, channels, 1, *window) if line else (filters, channels, *window)
        packed = ctx.derived(constant, "conv", (("reshape", plane_of),))
    else:  # row-major, as the kernel reads it
        packed = ctx.reshape(weight, (*weight.shape[:2], 1, weight.shape[2])) if line else weight
    filters, group_channels, *window = (int(size) for size in packed.shape)

    def pair(values: Sequence[int], first: int) -> tuple[int, int]:
        return (first, values[0]) if line else (values[0], values[1])

    def plane(sizes: Shape) -> Shape:
        return (*sizes[:2], 1, sizes[2]) if line else sizes

    function = conv2d(
        group_channels * groups,
        filters,
        (window[0], window[1]),
        stride=pair(stride, 1),
        padding=pair(padding, 0),
        dilation=pair(dilation, 1),
        groups=groups,
        bias=bias is not None,
        activation=activation,
        residual=False,
        target=ctx.cpu,
        weight_dtype=packed.dtype,
        scale=scale is not None,
    )
    inputs = [ctx.reshape(x, plane(x.shape)), packed]
    inputs += [] if scale is None else [scale_of_each(ctx, scale, filters)]
    inputs += [] if bias is None else [bias]
    return ctx.reshape(ctx.call("conv", function, inputs, plane(shape)), shape)


def _stored(weight: Tensor) -> tuple[Constant | None, Tensor | float | None]:
    """The constant that a weight is, or that its codes are, with their scale."""
    if weight.codes is not None:
        return weight.codes.constant, weight.codes.scale
    return weight.constant, None


def _with_channels_last(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    residual: Tensor | None,
    activation: str | None,
) -> Tensor:
    constant, scale = _stored(weight)
    assert constant is not None
    filters, group_channels, *window = (int(size) for size in weight.shape)
    steps = conv_weights.packing((filters, group_channels, *window), groups)
    packed = ctx.derived(constant, "conv-last", steps)
    image = ctx.with_channels_last(x)
    if ctx.on_gpu:
        made = on_gpu.conv_last(
            ctx,
            image,
            packed,
            tuple(shape[axis] for axis in to_last(4)),
            window=window,
            stride=stride,
            padding=padding,
            dilation=dilation,
            depthwise=groups > 1,
        )
        return _finished(ctx, made, bias, residual, activation)
    options = conv_weights.Convolution(
        channels=int(x.shape[1]),
        filters=filters,
        kernel=(window[0], window[1]),
        stride=(stride[0], stride[1]),
        padding=(padding[0], padding[1]),
        dilation=(dilation[0], dilation[1]),
        groups=groups,
        bias=bias is not None,
        residual=residual is not None,
        activation=activation,
        dtype=x.dtype,
        weight_dtype=packed.dtype,
        scaled=scale is not None,
    )
    n, h, w, channels = image.shape
    image = ctx.cast(image, options.input_dtype)
    inputs = [ctx.reshape(image, (n, h, w * channels)), packed]
    inputs += [] if scale is None else [scale_of_each(ctx, scale, filters)]
    inputs += [] if bias is None else [bias]
    inputs += [] if residual is None else [ctx.with_channels_last(residual)]
    function = conv_last.conv2d(options, ctx.cpu)
    wanted = tuple(shape[axis] for axis in to_last(4))
    result = ctx.call("conv", function, inputs, wanted, x.dtype)
    return ctx.as_image(result)


def _finished(
    ctx: Context,
    made: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
) -> Tensor:
    """act(made + bias + residual), of ``[n, h, w, c]`` in float32, as an image."""
    terms = [] if bias is None else [bias]
    terms += [] if residual is None else [ctx.with_channels_last(residual)]
    for term in terms:
        made = pointwise(ctx, "add", lambda a, b: a + b, made, term, dtype="float32")
    if activation is not None:
        made = pointwise(ctx, activation, ACTIVATIONS[activation], made, dtype="float32")
    return ctx.as_image(made)


def with_epilogue(
    ctx: Context,
    arguments: Mapping[str, Any],
    norm: Mapping[str, Any] | None,
    shape: Shape,
    *,
    residual: Tensor | None,
    activation: str | None,
    last: bool,
) -> Tensor:
    """A convolution by a constant and what comes after it: a batch norm, which goes into the
    weight, the sum with a residual, an activation.

    Args:
        arguments: of conv2d, ``norm``: of _native_batch_norm_legit_no_training, by name.
    """
    weight, bias = arguments["weight"], arguments["bias"]
    if norm is not None:
        weight, bias = _with_norm(ctx, weight, bias, norm)
    return convolve(
        ctx,
        arguments["input"],
        weight,
        bias,
        shape,
        stride=_each(arguments["stride"], 2),
        padding=_each(arguments["padding"], 2),
        dilation=_each(arguments["dilation"], 2),
        groups=arguments["groups"],
        residual=residual,
        activation=activation,
        last=last,
    )


def _with_norm(
    ctx: Context, weight: Tensor, bias: Tensor | None, norm: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    assert ctx.node is not None
    assert weight.constant is not None
    own, name = weight.constant.value, weight.constant.name
    scale = 1 / torch.sqrt(norm["running_var"].constant.value.double() + norm["eps"])
    if norm["weight"] is not None:
        scale = scale * norm["weight"].constant.value.double()
    offset = -norm["running_mean"].constant.value.double() * scale
    if bias is not None:
        assert bias.constant is not None
        offset = offset + bias.constant.value.double() * scale
    if norm["bias"] is not None:
        offset = offset + norm["bias"].constant.value.double()
    # The name of the node tells apart what one weight becomes under two norms.
    suffix = f"norm:{ctx.node.name}"
    folded = own.double() * scale.reshape(-1, *(1 for _ in own.shape[1:]))
    variance, mean = norm["running_var"], norm["running_mean"]
    gamma, beta, eps = norm["weight"], norm["bias"], float(norm["eps"])
    return (
        _made(ctx, f"{name}:{suffix}", folded.float(), "norm_weight",
              (weight, variance, gamma), eps),
        _made(ctx, f"{name}:bias:{suffix}", offset.float(), "norm_bias",
              (bias, mean, variance, gamma, beta), eps),
    )  # fmt: skip


def _made(
    ctx: Context, name: str, value: torch.Tensor, step: str, of: Sequence[Tensor | None], eps: float
) -> Tensor:
    """The constant ``value`` that a step makes of several, some of which may not be there."""
    operands = [None if each is None else each.constant for each in of]
    found = [each for each in operands if each is not None]
    if any(each.sources is None for each in found):
        return constant_tensor(Constant(name, value))
    sources = frozenset(source for each in found for source in each.sources or ())
    recipe = None
    if all(each.recipe is not None for each in found):
        recipe = (step, *(None if each is None else each.recipe for each in operands), eps)
    made = Constant(name, value, recipe, sources)
    if recipe is None:
        ctx.weights.freeze(made, "folded into a convolution with what is no parameter")
    return constant_tensor(made)
