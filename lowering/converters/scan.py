"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..broadcasting import axis_of
from ..context import Context
from ..cuda import scan as on_gpu
from ..cuda.launch import TYPES
from ..dtypes import convert
from ..kernels.prim_func import let, local, parallel, serial, store
from ..symbols import around
from ..tensor import Tensor
from .elementwise import dtype_of_result, is_float
from .registry import converter


def _cumulative(
    ctx: Context,
    name: str,
    x: Tensor,
    dim: int,
    start: float,
    combine: Callable[[Any, Any], Any],
) -> Tensor:
    """``combine`` of all elements up to each, from ``start`` on, in the order of the axis."""
    dtype = dtype_of_result(ctx)
    source = ctx.cast(x, dtype)
    if x.rank == 0:
        return source
    cube = around(x.shape, axis_of(dim, x.rank))
    if ctx.on_gpu and dtype in TYPES:
        return _on_gpu(ctx, name, source, axis_of(dim, x.rank))[0]
    # A float sum is kept in double, as eager's is.
    wide = "float64" if dtype == "float32" else dtype

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        outer, length, inner = scope.shape(cube)
        with parallel(outer) as i, serial(inner) as j:
            total = local((1,), wide)
            store(total, tirx.const(start, wide), 0, lanes=1)
            with serial(length) as k:
                element = convert(inputs[0][i, k, j], wide)
                store(total, combine(total[0], element), 0, lanes=1)
                store(results[0], convert(total[0], dtype), i, k, j, lanes=1)

    made = ctx.procedure(name, [ctx.reshape(source, cube)], [(cube, dtype)], emit)
    return ctx.reshape(made[0], x.shape)


def _on_gpu(
    ctx: Context, operation: str, x: Tensor, axis: int, *, places: bool = False
) -> list[Tensor]:
    cube = around(x.shape, axis)
    results = [(cube, x.dtype), (cube, "int64")][: 2 if places else 1]
    function = on_gpu.scan(operation, x.dtype, places=places)
    made = ctx.launch_all(operation, function, [ctx.reshape(x, cube)], results)
    return [ctx.reshape(each, x.shape) for each in made]


@converter("aten.cumsum.default")
def convert_cumsum(ctx: Context, x: Tensor, dim: int) -> Tensor:
    return _cumulative(ctx, "cumsum", x, dim, 0, lambda total, value: total + value)


@converter("aten.cumprod.default")
def convert_cumprod(ctx: Context, x: Tensor, dim: int) -> Tensor:
    return _cumulative(ctx, "cumprod", x, dim, 1, lambda total, value: total * value)


@converter("aten.logcumsumexp.default")
def convert_logcumsumexp(ctx: Context, x: Tensor, dim: int) -> Tensor:
    if x.rank == 0:
        return x
    axis = axis_of(dim, x.rank)
    if ctx.on_gpu and x.dtype in TYPES:
        return _on_gpu(ctx, "logcumsumexp", x, axis)[0]
    highest, _ = _extreme(ctx, x, axis, largest=True)
    return _shifted(ctx, x, highest, axis)


def _shifted(ctx: Context, x: Tensor, highest: Tensor, axis: int) -> Tensor:
    """log of the sum of exp(x) up to each element: the sum is scaled by the largest so far."""
    cube = around(x.shape, axis)
    wide = "float64"

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        outer, length, inner = scope.shape(cube)
        with parallel(outer) as i, serial(inner) as j:
            total, before = local((1,), wide), local((1,), wide)
            store(total, tirx.const(0, wide), 0, lanes=1)
            store(before, tirx.const(float("-inf"), wide), 0, lanes=1)
            with serial(length) as k:
                top = let(inputs[1][i, k, j].astype(wide))
                value = let(inputs[0][i, k, j].astype(wide))
                zero = tirx.const(0, wide)
                # exp(-inf - -inf) is 0 here.
                old = tirx.if_then_else(tirx.EQ(before[0], top), zero, before[0] - top)
                new = tirx.if_then_else(tirx.EQ(value, top), zero, value - top)
                scaled = let(total[0] * tirx.exp(old) + tirx.exp(new))
                store(total, scaled, 0, lanes=1)
                store(before, top, 0, lanes=1)
                infinite = tirx.EQ(tirx.abs(top), tirx.infinity(wide))
                sum_so_far = tirx.if_then_else(infinite, top, top + tirx.log(scaled))
                store(results[0], sum_so_far.astype(x.dtype), i, k, j, lanes=1)

    inputs = [ctx.reshape(t, cube) for t in (x, highest)]
    made = ctx.procedure("logcumsumexp", inputs, [(cube, x.dtype)], emit)
    return ctx.reshape(made[0], x.shape)


def _extreme(ctx: Context, x: Tensor, axis: int, *, largest: bool) -> list[Tensor]:
    """The largest (or smallest) up to each element, and where the last of those stands; a NaN stays."""
    if x.rank == 0:
        zero = ctx.compute("zero", [], (), "int64", lambda *_: tirx.IntImm("int64", 0))
        return [x, zero]
    if ctx.on_gpu and x.dtype in TYPES:
        return _on_gpu(ctx, "cummax" if largest else "cummin", x, axis, places=True)
    cube = around(x.shape, axis)

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        outer, length, inner = scope.shape(cube)
        with parallel(outer) as i, serial(inner) as j:
            best, place = local((1,), x.dtype), local((1,), "int64")
            store(place, tirx.IntImm("int64", 0), 0, lanes=1)
            with serial(length) as k:
                value = let(inputs[0][i, k, j])
                a, b = value, best[0]
                if x.dtype == "bool":
                    a, b = a.astype("int8"), b.astype("int8")
                takes = a >= b if largest else a <= b
                if is_float(x.dtype):
                    is_number = tirx.EQ(tirx.isnan(best[0]).astype("int8"), tirx.const(0, "int8"))
                    takes = tirx.any(tirx.isnan(value), tirx.all(is_number, takes))
                with T.If(tirx.any(tirx.EQ(k, tirx.IntImm("int64", 0)), takes)), T.Then():
                    store(best, value, 0, lanes=1)
                    store(place, k, 0, lanes=1)
                store(results[0], best[0], i, k, j, lanes=1)
                store(results[1], place[0], i, k, j, lanes=1)

    outputs = [(cube, x.dtype), (cube, "int64")]
    made = ctx.procedure("cumulative_extreme", [ctx.reshape(x, cube)], outputs, emit)
    return [ctx.reshape(each, x.shape) for each in made]


@converter("aten.cummax.default")
def convert_cummax(ctx: Context, x: Tensor, dim: int) -> list[Tensor]:
    return _extreme(ctx, x, axis_of(dim, x.rank), largest=True)


@converter("aten.cummin.default")
def convert_cummin(ctx: Context, x: Tensor, dim: int) -> list[Tensor]:
    return _extreme(ctx, x, axis_of(dim, x.rank), largest=False)
