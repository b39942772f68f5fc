"""Layer norm, RMS norm and softmax over the last axis, a row at a time."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from . import vector_math
from .half import load_wide, narrow
from .prim_func import (
    FLOAT,
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

_CHAINS = 4  # vectors of a row that are summed side by side


def layer_norm(
    d: int,
    eps: float,
    *,
    weight: bool,
    bias: bool,
    residual: bool,
    target: CpuTarget,
    dtype: str = FLOAT,
) -> tirx.PrimFunc:
    """Y = (X - mean) / sqrt(variance + eps) * weight + bias, for any number of rows.

    Parameters: X ``[m, d]``, residual ``[m, d]`` (X + residual is what is normalized), weight
    ``[d]``, bias ``[d]`` where asked for, Y ``[m, d]``. Weight and bias are float32, the rest is stored
    as ``dtype``. The variance is taken about the mean, in a second pass, so that nothing cancels.
    """

    def declare() -> Callable[[], None]:
        m = dim(None, "m")
        x = param("X", (m, d), dtype)
        r = param("residual", (m, d), dtype) if residual else None
        w = param("weight", (d,)) if weight else None
        b = param("bias", (d,)) if bias else None
        y = param("Y", (m, d), dtype)

        def row(i: Expr) -> None:
            source = x
            if r is not None:
                over(d, target.lanes, lambda j, lanes: _store_sum(x, r, y, i, j, lanes))
                source = y
            total = reduce(
                d,
                target.lanes,
                0.0,
                add,
                lambda j, lanes: load_wide(source, i, j, lanes=lanes),
                chains=_CHAINS,
            )
            mean = let(total * T.float32(1.0 / d), "mean")

            def deviation(j: Expr, lanes: int) -> Expr:
                return let(load_wide(source, i, j, lanes=lanes) - vector(mean, lanes))

            def square(j: Expr, lanes: int) -> Expr:
                value = deviation(j, lanes)
                return value * value

            squares = reduce(d, target.lanes, 0.0, add, square, chains=_CHAINS)
            scale = let(T.float32(1.0) / T.sqrt(squares * T.float32(1.0 / d) + T.float32(eps)))

            def write(j: Expr, lanes: int) -> None:
                value = _affine(deviation(j, lanes) * vector(scale, lanes), w, b, j, lanes)
                store(y, narrow(value, dtype, lanes), i, j, lanes=lanes)

            over(d, target.lanes, write)

        return lambda: parallel_tasks(m, m * index(d), row)

    return prim_func(f"layer_norm_{d}", declare)


def rms_norm(
    d: int, eps: float, *, weight: bool, target: CpuTarget, dtype: str = FLOAT
) -> tirx.PrimFunc:
    """Y = X / sqrt(mean of squares + eps) * weight, for any number of rows.

    Parameters: X ``[m, d]``, weight ``[d]`` in float32 where asked for, Y ``[m, d]``; X and Y are
    stored as ``dtype``.
    """

    def declare() -> Callable[[], None]:
        m = dim(None, "m")
        x = param("X", (m, d), dtype)
        w = param("weight", (d,)) if weight else None
        y = param("Y", (m, d), dtype)

        def row(i: Expr) -> None:
            def square(j: Expr, lanes: int) -> Expr:
                value = let(load_wide(x, i, j, lanes=lanes))
                return value * value

            squares = reduce(d, target.lanes, 0.0, add, square, chains=_CHAINS)
            scale = let(T.float32(1.0) / T.sqrt(squares * T.float32(1.0 / d) + T.float32(eps)))

            def write(j: Expr, lanes: int) -> None:
                value = load_wide(x, i, j, lanes=lanes) * vector(scale, lanes)
                value = _affine(value, w, None, j, lanes)
                store(y, narrow(value, dtype, lanes), i, j, lanes=lanes)

            over(d, target.lanes, write)

        return lambda: parallel_tasks(m, m * index(d), row)

    return prim_func(f"rms_norm_{d}", declare)


def softmax(n: Size, *, log: bool, target: CpuTarget, dtype: str = FLOAT) -> tirx.PrimFunc:
    """The softmax of each row, or its logarithm.

    Parameters: X ``[m, n]``, Y ``[m, n]``, both stored as ``dtype``. A row that is all -inf, or has a
    NaN or +inf in it, becomes NaN, as in torch.
    """

    def declare() -> Callable[[], None]:
        m, width = dim(None, "m"), dim(n, "n")
        x, y = param("X", (m, width), dtype), param("Y", (m, width), dtype)
        # Where Y holds what is computed as it is, the exponentials stand there meanwhile.
        kept = not log and dtype == FLOAT

        def row(i: Expr) -> None:
            highest = let(
                reduce(
                    width,
                    target.lanes,
                    float("-inf"),
                    maximum,
                    lambda j, lanes: load_wide(x, i, j, lanes=lanes),
                    chains=_CHAINS,
                ),
                "highest",
            )

            def below(j: Expr, lanes: int) -> Expr:
                return load_wide(x, i, j, lanes=lanes) - vector(highest, lanes)

            def weight(j: Expr, lanes: int) -> Expr:
                value = exp(below(j, lanes), lanes, never_positive=True)
                if kept:
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
                    value = below(j, lanes) - vector(log_total, lanes)
                elif kept:
                    value = load(y, i, j, lanes=lanes) * vector(scale, lanes)
                else:
                    value = exp(below(j, lanes), lanes, never_positive=True) * vector(scale, lanes)
                store(y, narrow(value, dtype, lanes), i, j, lanes=lanes)

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
    value = load_wide(x, i, j, lanes=lanes) + load_wide(residual, i, j, lanes=lanes)
    store(y, narrow(value, str(y.dtype), lanes), i, j, lanes=lanes)
