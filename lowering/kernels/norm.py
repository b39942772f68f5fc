"""Layer norm, RMS norm and softmax over the last axis, a row at a time."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from . import vector_math
from .prim_func import (
    Expr,
    Size,
    dim,
    index,
    let,
    load,
    parallel_tasks,
    param,
    prim_func,
    store,
    vector,
)
from .row import over, reduce
from .vector_math import add, exp, maximum


def layer_norm(
    d: int, eps: float, *, weight: bool, bias: bool, residual: bool, target: CpuTarget
) -> tirx.PrimFunc:
    """Y = (X - mean) / sqrt(variance + eps) * weight + bias, for any number of rows.

    Parameters: X ``[m, d]``, residual ``[m, d]`` (X + residual is what is normalized), weight
    ``[d]``, bias ``[d]`` where asked for, Y ``[m, d]``. The variance is taken about the mean, in a
    second pass, so that nothing cancels.
    """

    def declare() -> Callable[[], None]:
        m = dim(None, "m")
        x = param("X", (m, d))
        r = param("residual", (m, d)) if residual else None
        w = param("weight", (d,)) if weight else None
        b = param("bias", (d,)) if bias else None
        y = param("Y", (m, d))

        def row(i: Expr) -> None:
            source = x
            if r is not None:
                over(d, target.lanes, lambda j, lanes: _store_sum(x, r, y, i, j, lanes))
                source = y
            total = reduce(
                d, target.lanes, 0.0, add, lambda j, lanes: load(source, i, j, lanes=lanes)
            )
            mean = let(total * T.float32(1.0 / d), "mean")

            def deviation(j: Expr, lanes: int) -> Expr:
                return let(load(source, i, j, lanes=lanes) - vector(mean, lanes))

            def square(j: Expr, lanes: int) -> Expr:
                value = deviation(j, lanes)
                return value * value

            squares = reduce(d, target.lanes, 0.0, add, square)
            scale = let(T.float32(1.0) / T.sqrt(squares * T.float32(1.0 / d) + T.float32(eps)))

            def write(j: Expr, lanes: int) -> None:
                value = deviation(j, lanes) * vector(scale, lanes)
                store(y, _affine(value, w, b, j, lanes), i, j, lanes=lanes)

            over(d, target.lanes, write)

        return lambda: parallel_tasks(m, m * index(d), row)

    return prim_func(f"layer_norm_{d}", declare)


def rms_norm(d: int, eps: float, *, weight: bool, target: CpuTarget) -> tirx.PrimFunc:
    """Y = X / sqrt(mean of squares + eps) * weight, for any number of rows.

    Parameters: X ``[m, d]``, weight ``[d]`` where asked for, Y ``[m, d]``.
    """

    def declare() -> Callable[[], None]:
        m = dim(None, "m")
        x = param("X", (m, d))
        w = param("weight", (d,)) if weight else None
        y = param("Y", (m, d))

        def row(i: Expr) -> None:
            def square(j: Expr, lanes: int) -> Expr:
                value = let(load(x, i, j, lanes=lanes))
                return value * value

            squares = reduce(d, target.lanes, 0.0, add, square)
            scale = let(T.float32(1.0) / T.sqrt(squares * T.float32(1.0 / d) + T.float32(eps)))

            def write(j: Expr, lanes: int) -> None:
                value = load(x, i, j, lanes=lanes) * vector(scale, lanes)
                store(y, _affine(value, w, None, j, lanes), i, j, lanes=lanes)

            over(d, target.lanes, write)

        return lambda: parallel_tasks(m, m * index(d), row)

    return prim_func(f"rms_norm_{d}", declare)


def softmax(n: Size, *, log: bool, target: CpuTarget) -> tirx.PrimFunc:
    """The softmax of each row, or its logarithm.

    Parameters: X ``[m, n]``, Y ``[m, n]``. A row that is all -inf, or has a NaN or +inf in it,
    becomes NaN, as in torch.
    """

    def declare() -> Callable[[], None]:
        m, width = dim(None, "m"), dim(n, "n")
        x, y = param("X", (m, width)), param("Y", (m, width))

        def row(i: Expr) -> None:
            highest = let(
                reduce(
                    width,
                    target.lanes,
                    float("-inf"),
                    maximum,
                    lambda j, lanes: load(x, i, j, lanes=lanes),
                ),
                "highest",
            )

            def weight(j: Expr, lanes: int) -> Expr:
                below = load(x, i, j, lanes=lanes) - vector(highest, lanes)
                value = exp(below, lanes, never_positive=True)
                if not log:
                    store(y, value, i, j, lanes=lanes)
                return value

            total = let(reduce(width, target.lanes, 0.0, add, weight), "total")
            if log:
                log_total = vector_math.log(total, 1)
            else:
                scale = let(T.float32(1.0) / total)

            def write(j: Expr, lanes: int) -> None:
                if log:
                    # Not less (highest + log_total): a small logarithm would be lost in the sum.
                    below = load(x, i, j, lanes=lanes) - vector(highest, lanes)
                    value = below - vector(log_total, lanes)
                else:
                    value = load(y, i, j, lanes=lanes) * vector(scale, lanes)
                store(y, value, i, j, lanes=lanes)

            over(width, target.lanes, write)

        return lambda: parallel_tasks(m, m * width, row)

    return prim_func("log_softmax" if log else "softmax", declare)


def _affine(
    value: Expr, weight: tirx.Buffer | None, bias: tirx.Buffer | None, j: Expr, lanes: int
) -> Expr:
    if weight is not None:
        value = value * load(weight, j, lanes=lanes)
    if bias is not None:
        value = value + load(bias, j, lanes=lanes)
    return value


def _store_sum(
    x: tirx.Buffer, residual: tirx.Buffer, y: tirx.Buffer, i: Expr, j: Expr, lanes: int
) -> None:
    value = load(x, i, j, lanes=lanes) + load(residual, i, j, lanes=lanes)
    store(y, value, i, j, lanes=lanes)
