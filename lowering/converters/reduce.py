"""Sums, extrema and the like over some axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from ..broadcasting import axis_of
from ..context import Context, Unsupported
from ..dtypes import convert
from ..layout import to_last
from ..symbols import Symbols, product
from ..tensor import Tensor
from .elementwise import divided, dtype_of_result, is_float, libm, pointwise
from .registry import converter

_MOST_ROWS = 256  # float32 that are added in a row
_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")
_ALL = te.comm_reducer(lambda a, b: tirx.all(a, b), lambda dtype: tirx.const(1, dtype), name="all")
_ANY = te.comm_reducer(lambda a, b: tirx.any(a, b), lambda dtype: tirx.const(0, dtype), name="any")


def axes_of(dim: Any, rank: int) -> list[int]:
    """The axes that ``dim`` names, in order; all of them for None or an empty list."""
    if dim is None or dim == () or rank == 0:
        return list(range(rank))
    names = dim if isinstance(dim, (tuple, list)) else [dim]
    return sorted({axis_of(axis, rank) for axis in names})


def reduce(
    ctx: Context,
    name: str,
    reducer: Callable[..., Any],
    x: Tensor,
    axes: Sequence[int],
    keepdim: bool,
    dtype: str,
) -> Tensor:
    """Emit a reduction of ``x``, converted to ``dtype``, over ``axes``."""
    if not axes:
        return ctx.cast(x, dtype)
    kept = [axis for axis in range(x.rank) if axis not in axes]
    shape = tuple(x.shape[axis] for axis in kept)
    # An image with its channels last is read as it lies.
    order = tuple(range(x.rank)) if x.last is None else to_last(x.rank)
    if reducer is te.sum and dtype == "float32" and order[-1] not in axes:
        count = product(x.shape[axis] for axis in axes)
        if not isinstance(count, int) or count > _MOST_ROWS:
            # Whole rows are added one after the other, with the error of so many roundings.
            total = reduce(ctx, name, reducer, x, axes, keepdim, "float64")
            return ctx.cast(total, dtype)
    lying = x if x.last is None else ctx.with_channels_last(x)

    def build(scope: Symbols, source: te.Tensor) -> te.Tensor:
        over = {
            axis: te.reduce_axis(
                (tirx.IntImm("int64", 0), scope.size(x.shape[axis])), name=f"r{axis}"
            )
            for axis in axes
        }

        def element(*position: Any) -> Any:
            outer = dict(zip(kept, position, strict=True))
            indices = [over[a].var if a in over else outer[a] for a in order]
            return reducer(convert(source(*indices), dtype), axis=list(over.values()))

        return te.compute(scope.shape(shape), element, name=name)

    result = ctx.kernel(name, build, [lying], shape, dtype)
    if keepdim:
        wide = tuple(1 if axis in axes else x.shape[axis] for axis in range(x.rank))
        return ctx.reshape(result, wide)
    return result


@converter("aten.sum.dim_IntList", "aten.sum.default")
def convert_sum(ctx: Context, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduce(ctx, "sum", te.sum, x, axes_of(dim, x.rank), keepdim, dtype_of_result(ctx))


def mean(ctx: Context, x: Tensor, axes: Sequence[int], keepdim: bool, dtype: str) -> Tensor:
    total = reduce(ctx, "sum", te.sum, x, axes, keepdim, dtype)
    count = product(x.shape[axis] for axis in axes)
    return pointwise(ctx, "mean", divided, total, count, dtype=dtype)


@converter("aten.mean.dim", "aten.mean.default")
def convert_mean(ctx: Context, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return mean(ctx, x, axes_of(dim, x.rank), keepdim, dtype_of_result(ctx))


@converter("aten.var.correction", "aten.var.dim")
def convert_var(
    ctx: Context,
    x: Tensor,
    dim: Any,
    correction: Any = None,
    keepdim: bool = False,
    unbiased: Any = None,
) -> Tensor:
    if unbiased is not None:
        correction = int(unbiased)
    return variance(ctx, x, axes_of(dim, x.rank), 1 if correction is None else correction, keepdim)


@converter("aten.var_mean.correction")
def convert_var_mean(
    ctx: Context, x: Tensor, dim: Any, correction: Any, keepdim: bool
) -> list[Tensor]:
    axes = axes_of(dim, x.rank)
    center = mean(ctx, x, axes, True, x.dtype)
    spread = variance(ctx, x, axes, 1 if correction is None else correction, keepdim, center)
    if not keepdim:
        center = ctx.reshape(center, spread.shape)
    return [spread, center]


def variance(
    ctx: Context,
    x: Tensor,
    axes: Sequence[int],
    correction: float,
    keepdim: bool,
    center: Tensor | None = None,
) -> Tensor:
    """In two passes: around the mean (``center``, with the axes kept, where it is there already),
    then divided by the count less ``correction``, 0 at least."""
    if center is None:
        center = mean(ctx, x, axes, True, x.dtype)
    squares = pointwise(ctx, "squares", lambda a, b: (a - b) * (a - b), x, center, dtype=x.dtype)
    total = reduce(ctx, "sum", te.sum, squares, axes, keepdim, x.dtype)
    count = product(x.shape[axis] for axis in axes)

    def element(value: Any, number: Any) -> Any:
        left = number - tirx.const(correction, x.dtype)
        return divided(value, tirx.max(left, tirx.const(0, x.dtype)))

    return pointwise(ctx, "variance", element, total, count, dtype=x.dtype)


def extreme(
    ctx: Context, x: Tensor, axes: Sequence[int], keepdim: bool, *, largest: bool
) -> Tensor:
    """The largest (or smallest) elements along some axes; NaN where there is one."""
    reducers = (te.min, te.max) if x.dtype != "bool" else (_ALL, _ANY)
    name = "max" if largest else "min"
    return reduce(ctx, name, reducers[largest], x, axes, keepdim, x.dtype)


@converter("aten.amax.default")
def convert_amax(ctx: Context, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return extreme(ctx, x, axes_of(dim, x.rank), keepdim, largest=True)


@converter("aten.amin.default")
def convert_amin(ctx: Context, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return extreme(ctx, x, axes_of(dim, x.rank), keepdim, largest=False)


@converter("aten.max.default")
def convert_max(ctx: Context, x: Tensor) -> Tensor:
    return extreme(ctx, x, axes_of(None, x.rank), False, largest=True)


@converter("aten.min.default")
def convert_min(ctx: Context, x: Tensor) -> Tensor:
    return extreme(ctx, x, axes_of(None, x.rank), False, largest=False)


@converter("aten.prod.default", "aten.prod.dim_int")
def convert_prod(ctx: Context, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    dtype = dtype_of_result(ctx)
    return reduce(ctx, "prod", _PRODUCT, x, axes_of(dim, x.rank), keepdim, dtype)


@converter("aten.any.default", "aten.any.dim", "aten.any.dims")
def convert_any(ctx: Context, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduce(ctx, "any", _ANY, x, axes_of(dim, x.rank), keepdim, "bool")


@converter("aten.all.default", "aten.all.dim", "aten.all.dims")
def convert_all(ctx: Context, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return reduce(ctx, "all", _ALL, x, axes_of(dim, x.rank), keepdim, "bool")


def arg_extreme(ctx: Context, x: Tensor, axis: int, keepdim: bool, largest: bool) -> Tensor:
    """The position of the first largest (or smallest) element; of the first NaN if there is one."""

    def better(a: Any, b: Any) -> Any:
        """Whether the pair a = (position, value) is to be kept over b."""
        wins = a[1] > b[1] if largest else a[1] < b[1]
        ties = tirx.EQ(a[1], b[1])
        if is_float(x.dtype):
            nan_a, nan_b = tirx.isnan(a[1]), tirx.isnan(b[1])
            wins = tirx.any(tirx.all(nan_a, tirx.Not(nan_b)), tirx.all(wins, tirx.Not(nan_b)))
            ties = tirx.any(ties, tirx.all(nan_a, nan_b))
        return tirx.any(wins, tirx.all(ties, a[0] < b[0]))

    def combine(a: Any, b: Any) -> Any:
        keep = better(a, b)
        return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, a[1], b[1])

    def identity(position_dtype: str, value_dtype: str) -> Any:
        worst = tirx.min_value(value_dtype) if largest else tirx.max_value(value_dtype)
        if is_float(value_dtype):  # the least finite number would win over -inf
            worst = tirx.const(-math.inf if largest else math.inf, value_dtype)
        return tirx.max_value(position_dtype), worst

    reducer = te.comm_reducer(combine, identity, name="arg_extreme")
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])

    def build(scope: Symbols, source: te.Tensor) -> te.Tensor:
        over = te.reduce_axis((tirx.IntImm("int64", 0), scope.size(x.shape[axis])), name="r")

        def element(*position: Any) -> Any:
            value = source(*position[:axis], over.var, *position[axis:])
            return reducer((over.var, value), axis=over)

        positions, _ = te.compute(scope.shape(shape), element, name="arg_extreme")
        return te.compute(scope.shape(shape), lambda *p: positions(*p), name="position")

    result = ctx.kernel("argmax" if largest else "argmin", build, [x], shape, "int64")
    if keepdim:
        return ctx.reshape(result, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return result


def _argument(ctx: Context, x: Tensor, dim: Any, keepdim: bool, largest: bool) -> Tensor:
    if x.dtype == "bool":
        raise Unsupported("of bool", "convert to int first")
    if x.rank == 0:
        return ctx.compute("zero", [], (), "int64", lambda *_: tirx.IntImm("int64", 0))
    if dim is None:
        flat = ctx.reshape(x, (product(x.shape),))
        result = arg_extreme(ctx, flat, 0, False, largest)
        return ctx.reshape(result, (1,) * x.rank) if keepdim else result
    return arg_extreme(ctx, x, axis_of(dim, x.rank), keepdim, largest)


@converter("aten.argmax.default")
def convert_argmax(ctx: Context, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return _argument(ctx, x, dim, keepdim, largest=True)


@converter("aten.argmin.default")
def convert_argmin(ctx: Context, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    return _argument(ctx, x, dim, keepdim, largest=False)


def _with_argument(
    ctx: Context, x: Tensor, dim: int, keepdim: bool, *, largest: bool
) -> list[Tensor]:
    values = extreme(ctx, x, axes_of(dim, x.rank), keepdim, largest=largest)
    numbers = ctx.cast(x, "int8") if x.dtype == "bool" else x
    return [values, _argument(ctx, numbers, dim, keepdim, largest)]


@converter("aten.max.dim")
def convert_max_dim(ctx: Context, x: Tensor, dim: int, keepdim: bool) -> list[Tensor]:
    return _with_argument(ctx, x, dim, keepdim, largest=True)


@converter("aten.min.dim")
def convert_min_dim(ctx: Context, x: Tensor, dim: int, keepdim: bool) -> list[Tensor]:
    return _with_argument(ctx, x, dim, keepdim, largest=False)


@converter("aten.linalg_vector_norm.default")
def convert_vector_norm(ctx: Context, x: Tensor, ord: Any, dim: Any, keepdim: bool) -> Tensor:
    axes = axes_of(dim, x.rank)
    if not isinstance(ord, (int, float)):
        raise Unsupported(f"with ord={ord}", "a constant")
    dtype = dtype_of_result(ctx)
    x = ctx.cast(x, dtype)

    def total(element: Callable[[Any], Any]) -> Tensor:
        return reduce(
            ctx,
            "sum",
            te.sum,
            pointwise(ctx, "terms", element, x, dtype=dtype),
            axes,
            keepdim,
            dtype,
        )

    if ord in (math.inf, -math.inf):
        sizes = pointwise(ctx, "abs", tirx.abs, x, dtype=dtype)
        return reduce(ctx, "norm", te.max if ord > 0 else te.min, sizes, axes, keepdim, dtype)
    if ord == 0:
        return total(
            lambda a: tirx.Select(
                tirx.any(tirx.abs(a) > tirx.const(0, dtype), tirx.isnan(a)),
                tirx.const(1, dtype),
                tirx.const(0, dtype),
            )
        )
    if ord == 1:
        return total(tirx.abs)
    if ord == 2:
        return pointwise(ctx, "sqrt", tirx.sqrt, total(lambda a: a * a), dtype=dtype)
    power = total(lambda a: libm("pow", tirx.abs(a), tirx.const(ord, dtype)))
    return pointwise(
        ctx, "root", lambda a: libm("pow", a, tirx.const(1 / ord, dtype)), power, dtype=dtype
    )


@converter("aten._cdist_forward.default")
def convert_cdist(ctx: Context, x1: Tensor, x2: Tensor, p: float, compute_mode: Any) -> Tensor:
    """Distances between all rows of ``[..., n, d]`` and ``[..., m, d]``."""
    left = ctx.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    right = ctx.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    apart = pointwise(ctx, "apart", lambda a, b: a - b, left, right, dtype=x1.dtype)
    return convert_vector_norm(ctx, apart, p, [apart.rank - 1], False)
