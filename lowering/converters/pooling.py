"""Maximum and average over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tvm import te, tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context
from ..kernels.prim_func import let, local, parallel, serial, store
from ..symbols import Size, Symbols, as_shape, product
from ..tensor import Tensor
from .elementwise import divided, is_float
from .reduce import mean
from .registry import converter


def _each(value: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def pool(
    ctx: Context,
    x: Tensor,
    reducer: Any,
    outside: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Reduce windows over the last axes; positions outside count as ``outside``."""
    outer = x.rank - len(kernel)
    shape = as_shape(ctx.expected(*_first(ctx)).shape)
    zero = tirx.IntImm("int64", 0)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        window = [te.reduce_axis((zero, scope.size(size)), name="rk") for size in kernel]
        where = [
            p * _int(s) + k.var * _int(d) - _int(b)
            for p, s, k, d, b in zip(
                position[outer:], stride, window, dilation, padding, strict=True
            )
        ]
        inside = [
            condition
            for index, size in zip(where, x.shape[outer:], strict=True)
            for condition in (index >= zero, index < scope.size(size))
        ]
        value = tensors[0](*position[:outer], *where)
        return reducer(tirx.if_then_else(tirx.all(*inside), value, outside), axis=window)

    return ctx.compute_image("pool", [x], shape, x.dtype, element)


def _first(ctx: Context) -> tuple[int, ...]:
    assert ctx.node is not None
    return (0,) if isinstance(ctx.node.meta["val"], (tuple, list)) else ()


def _max_pool(
    ctx: Context,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    axes: int,
) -> Tensor:
    kernel = _each(kernel_size, axes)
    return pool(
        ctx,
        x,
        te.max,
        _lowest(x.dtype),
        kernel,
        _each(stride, axes) if stride else kernel,
        _each(padding, axes),
        _each(dilation, axes),
    )


@converter("aten.max_pool1d.default")
def convert_max_pool1d(
    ctx: Context,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> Tensor:
    return _max_pool(ctx, x, kernel_size, stride, padding, dilation, 1)


@converter("aten.max_pool2d.default")
def convert_max_pool2d(
    ctx: Context,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> Tensor:
    return _max_pool(ctx, x, kernel_size, stride, padding, dilation, 2)


@converter("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def convert_max_pool_with_indices(
    ctx: Context,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> list[Tensor | None]:
    assert ctx.node is not None
    axes = 3 if "max_pool3d" in str(ctx.node.target) else 2
    if not _is_used(ctx, 1):
        return [_max_pool(ctx, x, kernel_size, stride, padding, dilation, axes), None]
    kernel, borders = _each(kernel_size, axes), _each(padding, axes)
    steps = _each(stride, axes) if stride else kernel
    spread = _each(dilation, axes)

    def window(scope: Any, axis: int, at: Any) -> tuple[Any, Any, Any]:
        begin = at * _int(steps[axis]) - _int(borders[axis])
        return begin, _int(kernel[axis]), _int(spread[axis])

    return list(_largest(ctx, x, axes, window))


def _is_used(ctx: Context, result: int) -> bool:
    assert ctx.node is not None
    return any(user.args[1] == result and user.users for user in ctx.node.users)


def _int(value: int) -> Any:
    return tirx.IntImm("int64", value)


def _largest(
    ctx: Context, x: Tensor, axes: int, window: Callable[[Any, int, Any], tuple[Any, Any, Any]]
) -> list[Tensor]:
    """The largest of each window over the last axes (the first of those; the last NaN), and its
    position in the plane. ``window`` gives its begin, count and step along an axis."""
    own = x.shape[x.rank - axes :]
    out = as_shape(ctx.expected(0).shape)[x.rank - axes :]
    planes = product(x.shape[: x.rank - axes])
    flat = ctx.reshape(x, (planes, *own))

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        with ExitStack() as loops:
            plane = loops.enter_context(parallel(scope.size(planes)))
            at = [loops.enter_context(serial(scope.size(size))) for size in out]
            best, place = local((1,), x.dtype), local((1,), "int64")
            store(place, _int(-1), 0, lanes=1)
            store(best, _lowest(x.dtype), 0, lanes=1)
            with ExitStack() as inner:
                where = []
                for axis in range(axes):
                    begin, count, step = window(scope, axis, at[axis])
                    where.append(begin + inner.enter_context(serial(count)) * step)
                inside = [
                    condition
                    for index, size in zip(where, own, strict=True)
                    for condition in (index >= _int(0), index < scope.size(size))
                ]
                with T.If(tirx.all(*inside)), T.Then():
                    value = let(inputs[0][(plane, *where)])
                    position = where[0]
                    for index, size in zip(where[1:], own[1:], strict=True):
                        position = position * scope.size(size) + index
                    takes = tirx.any(value > best[0], place[0] < _int(0))
                    if is_float(x.dtype):
                        takes = tirx.any(takes, tirx.isnan(value))
                    with T.If(takes), T.Then():
                        store(best, value, 0, lanes=1)
                        store(place, position, 0, lanes=1)
            store(results[0], best[0], plane, *at, lanes=1)
            store(results[1], place[0], plane, *at, lanes=1)

    shape = (planes, *out)
    made = ctx.procedure("largest", [flat], [(shape, x.dtype), (shape, "int64")], emit)
    return [ctx.reshape(each, (*x.shape[: x.rank - axes], *out)) for each in made]


def _lowest(dtype: str) -> Any:
    return tirx.const(-math.inf, dtype) if is_float(dtype) else tirx.min_value(dtype)


@converter("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def convert_avg_pool(
    ctx: Context,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Tensor:
    assert ctx.node is not None
    axes = int(str(ctx.node.target).split("avg_pool")[1][0])
    kernel, borders = _each(kernel_size, axes), _each(padding, axes)
    steps = _each(stride, axes) if stride else kernel
    sums = pool(ctx, x, te.sum, tirx.const(0, x.dtype), kernel, steps, borders, (1,) * axes)
    sizes = x.shape[x.rank - axes :]

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        count: Any = tirx.IntImm("int64", 1)
        at = position[x.rank - axes :]
        for p, step, border, width, size in zip(at, steps, borders, kernel, sizes, strict=True):
            start = p * tirx.IntImm("int64", step) - tirx.IntImm("int64", border)
            # A window never counts beyond the padding, which ceil_mode may reach over.
            end = tirx.min(start + tirx.IntImm("int64", width), scope.size(size + border))
            if not count_include_pad:
                start = tirx.max(start, tirx.IntImm("int64", 0))
                end = tirx.min(end, scope.size(size))
            count = count * (end - start)
        if divisor_override is not None:
            count = tirx.IntImm("int64", divisor_override)
        return divided(tensors[0](*position), count.astype(x.dtype))

    return ctx.compute_image("average", [sums], sums.shape, x.dtype, element)


@converter(
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
)
def convert_adaptive_avg_pool(ctx: Context, x: Tensor, output_size: Sequence[Any]) -> Tensor:
    axes = len(output_size)
    if all(size == 1 for size in output_size):
        return mean(ctx, x, list(range(x.rank - axes, x.rank)), True, x.dtype)
    own = x.shape[x.rank - axes :]
    shape = as_shape(ctx.expected().shape)
    out = shape[x.rank - axes :]

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        over = [
            te.reduce_axis((_int(0), _longest(scope, size, parts)), name="rk")
            for size, parts in zip(own, out, strict=True)
        ]
        outer, at = position[: x.rank - axes], position[x.rank - axes :]
        where, inside, count = [], [], _int(1)
        for p, k, size, parts in zip(at, over, own, out, strict=True):
            begin, length = _share(scope, p, size, parts)
            where.append(tirx.min(begin + k.var, scope.size(size) - _int(1)))
            inside.append(k.var < length)
            count = count * length
        value = tirx.if_then_else(
            tirx.all(*inside), tensors[0](*outer, *where), tirx.const(0, x.dtype)
        )
        return te.sum(value / count.astype(x.dtype), axis=over)

    return ctx.compute_image("adaptive_pool", [x], shape, x.dtype, element)


def _share(scope: Symbols, part: Any, size: Size, parts: Size) -> tuple[Any, Any]:
    """Where one of ``parts`` shares of an axis begins, and how long it is; shares may overlap."""
    whole, count = scope.size(size), scope.size(parts)
    begin = tirx.truncdiv(part * whole, count)
    end = tirx.truncdiv((part + _int(1)) * whole + count - _int(1), count)
    return begin, end - begin


def _longest(scope: Symbols, size: Size, parts: Size) -> Any:
    whole, count = scope.size(size), scope.size(parts)
    return tirx.truncdiv(whole + count - _int(1), count) + _int(1)


@converter("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def convert_adaptive_max_pool(ctx: Context, x: Tensor, output_size: Sequence[Any]) -> list[Tensor]:
    axes = len(output_size)
    own = x.shape[x.rank - axes :]
    out = as_shape(ctx.expected(0).shape)[x.rank - axes :]

    def window(scope: Any, axis: int, at: Any) -> tuple[Any, Any, Any]:
        begin, length = _share(scope, at, own[axis], out[axis])
        return begin, length, _int(1)

    return _largest(ctx, x, axes, window)
