"""Where values would stand in a sorted row."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context, Unsupported
from ..dtypes import result_dtype
from ..kernels.prim_func import let, local, parallel, serial, store
from ..symbols import Scalar, Size, product
from ..tensor import Tensor
from .elementwise import dtype_of_result
from .registry import converter


def search(ctx: Context, rows: Tensor, values: Tensor, right: bool) -> Tensor:
    """For each value the number of elements of its row ``[rows, n]`` before it (or, ``right``, not
    after it), by bisection. ``values`` is ``[rows, m]``."""
    dtype = dtype_of_result(ctx)
    common = result_dtype(rows, values)
    rows, values = ctx.cast(rows, common), ctx.cast(values, common)
    count, length = rows.shape

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        with parallel(scope.size(count)) as i, serial(scope.size(values.shape[1])) as j:
            low, high = local((1,), "int64"), local((1,), "int64")
            store(low, tirx.IntImm("int64", 0), 0, lanes=1)
            store(high, scope.size(length), 0, lanes=1)
            value = let(inputs[1][i, j])
            with T.While(low[0] < high[0]):
                middle = let(tirx.truncdiv(low[0] + high[0], tirx.IntImm("int64", 2)))
                element = let(inputs[0][i, middle])
                beyond = element > value if right else element >= value
                # Not the opposite comparison: what is no number is passed by, as in torch.
                with T.If(tirx.EQ(beyond.astype("int8"), tirx.const(0, "int8"))):
                    with T.Then():
                        store(low, middle + tirx.IntImm("int64", 1), 0, lanes=1)
                    with T.Else():
                        store(high, middle, 0, lanes=1)
            store(results[0], low[0].astype(dtype), i, j, lanes=1)

    return ctx.procedure("search", [rows, values], [(values.shape, dtype)], emit)[0]


def _side(right: bool, side: str | None) -> bool:
    return side == "right" if side is not None else right


@converter("aten.bucketize.Tensor")
def convert_bucketize(
    ctx: Context, x: Tensor, boundaries: Tensor, out_int32: Any, right: bool
) -> Tensor:
    row = ctx.reshape(boundaries, (1, boundaries.shape[0]))
    flat = ctx.reshape(x, (1, product(x.shape)))
    return ctx.reshape(search(ctx, row, flat, right), x.shape)


@converter("aten.searchsorted.Tensor")
def convert_searchsorted(
    ctx: Context,
    sorted_sequence: Tensor,
    x: Tensor,
    out_int32: Any,
    right: bool,
    side: str | None,
    sorter: Tensor | None,
) -> Tensor:
    if sorter is not None:
        raise Unsupported("with a sorter", "searchsorted(sequence.gather(-1, sorter), values)")
    if sorted_sequence.rank == 1:
        return ctx.reshape(
            convert_bucketize(ctx, x, sorted_sequence, out_int32, _side(right, side)), x.shape
        )
    rows: Size = product(x.shape[:-1])
    sequence = ctx.reshape(sorted_sequence, (rows, sorted_sequence.shape[-1]))
    values = ctx.reshape(x, (rows, x.shape[-1]))
    return ctx.reshape(search(ctx, sequence, values, _side(right, side)), x.shape)


@converter("aten.searchsorted.Scalar", "aten.bucketize.Scalar")
def convert_search_number(
    ctx: Context,
    x: Scalar,
    out_int32: Any,
    right: bool,
    sorted_sequence: Tensor | None = None,
    boundaries: Tensor | None = None,
    side: str | None = None,
) -> Tensor:
    row = sorted_sequence if sorted_sequence is not None else boundaries
    assert row is not None
    dtype = result_dtype(row, x)  # a fraction among integers stays one
    value = ctx.compute("value", [], (1, 1), dtype, lambda s, *_: s.number(x, dtype))
    found = search(ctx, ctx.reshape(row, (1, row.shape[0])), value, _side(right, side))
    return ctx.reshape(found, ())
