"""Results whose size hangs on the data: where a mask holds, and what lies there.

A first kernel counts; its result becomes the size of the result of a second one.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context, Unsupported, broadcast
from ..kernels.prim_func import local, serial, store
from ..symbols import as_size, product
from ..tensor import Tensor
from .registry import converter


def _count(ctx: Context, mask: Tensor) -> Tensor:
    """How many elements of a flat mask hold, as ``[1]`` of int64."""
    (length,) = mask.shape

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        total = local((1,), "int64")
        store(total, tirx.IntImm("int64", 0), 0, lanes=1)
        with serial(scope.size(length)) as i:
            store(total, total[0] + inputs[0][i].astype("int64"), 0, lanes=1)
        store(results[0], total[0], 0, lanes=1)

    return ctx.procedure("count", [mask], [((1,), "int64")], emit)[0]


def places(ctx: Context, mask: Tensor, count: Any) -> Tensor:
    """The flat positions, ``[count]``, at which a mask holds, in order.

    Args:
        count: the trace's symbol for how many there are; it is bound here.
    """
    flat = ctx.reshape(mask, (product(mask.shape),))
    ctx.bind_size(count, _count(ctx, flat))
    (length,) = flat.shape

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        total = local((1,), "int64")
        store(total, tirx.IntImm("int64", 0), 0, lanes=1)
        with serial(scope.size(length)) as i, T.If(inputs[0][i]), T.Then():
            store(results[0], i, total[0], lanes=1)
            store(total, total[0] + tirx.IntImm("int64", 1), 0, lanes=1)

    return ctx.procedure("places", [flat], [((count,), "int64")], emit, (length,))[0]


@converter("aten.nonzero.default", takes_halves=True)
def convert_nonzero(ctx: Context, x: Tensor) -> Tensor:
    count = as_size(ctx.expected().shape[0])
    flat = places(ctx, ctx.cast(x, "bool"), count)
    strides = [product(x.shape[axis + 1 :]) for axis in range(x.rank)]
    if not x.rank:
        raise Unsupported("of a tensor without axes")

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        at, column = tensors[0](position[0]), position[1]
        value = tirx.IntImm("int64", 0)
        for axis in range(x.rank):
            along = tirx.truncmod(
                tirx.truncdiv(at, tirx.max(scope.size(strides[axis]), tirx.IntImm("int64", 1))),
                tirx.max(scope.size(x.shape[axis]), tirx.IntImm("int64", 1)),
            )
            value = tirx.Select(tirx.EQ(column, tirx.IntImm("int64", axis)), along, value)
        return value

    return ctx.compute("nonzero", [flat], (count, x.rank), "int64", element)


def pick_masked(ctx: Context, x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask]`` for a mask over the first axes of ``x``."""
    count = as_size(ctx.expected().shape[0])
    rest = x.shape[mask.rank :]
    lines = ctx.reshape(x, (product(mask.shape), *rest))
    flat = places(ctx, mask, count)

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](tensors[1](position[0]), *position[1:])

    return ctx.compute("pick", [lines, flat], (count, *rest), x.dtype, element)


@converter("aten.masked_select.default", takes_halves=True)
def convert_masked_select(ctx: Context, x: Tensor, mask: Tensor) -> Tensor:
    shape = broadcast(x.shape, mask.shape)
    return pick_masked(ctx, ctx.stretch(x, shape), ctx.stretch(mask, shape))
