"""Results whose size hangs on the data: where a mask holds, and what lies there.

A first kernel counts; its result becomes the size of the result of a second one.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.symbol import SymT, symbol_is_type
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..broadcasting import broadcast
from ..context import Context, Unsupported
from ..kernels.prim_func import local, serial, store
from ..symbols import as_size, product
from ..tensor import Tensor
from .elementwise import dtype_of_result
from .registry import converter
from .shape import permute


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


def pick_masked(ctx: Context, x: Tensor, mask: Tensor, axis: int = 0) -> Tensor:
    """``x[..., mask]`` for a mask over axes of ``x`` from ``axis`` on."""
    if axis:
        inner = [*range(axis, axis + mask.rank)]
        order = [*inner, *range(axis), *range(axis + mask.rank, x.rank)]
        picked = pick_masked(ctx, permute(ctx, x, order), mask)
        back = [*range(1, axis + 1), 0, *range(axis + 1, picked.rank)]
        return permute(ctx, picked, back)
    assert ctx.node is not None
    places_of = ctx.expected().shape
    count = next((as_size(n) for n in places_of if is_computed(as_size(n))), None)
    if count is None:
        raise Unsupported("with a mask whose number of hits is no size of its own")
    rest = x.shape[mask.rank :]
    lines = ctx.reshape(x, (product(mask.shape), *rest))
    flat = places(ctx, mask, count)

    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](tensors[1](position[0]), *position[1:])

    return ctx.compute("pick", [lines, flat], (count, *rest), x.dtype, element)


def is_computed(size: Any) -> bool:
    """Whether a size is one that the trace could not know."""
    return symbol_is_type(size, (SymT.UNBACKED_INT,)) if isinstance(size, sympy.Symbol) else False


def put_masked(
    ctx: Context, x: Tensor, mask: Tensor, source: Tensor, *, exactly: bool = False
) -> Tensor:
    """The lines of ``x``, ``[n, …]``, at which ``mask``, ``[n]``, holds, replaced by those of
    ``source`` in order.

    The call fails where there are too few of those, and ``exactly``: too many, as in eager mode.
    """
    length, own = x.shape[0], source.shape[0]
    rest = product(x.shape[1:])
    flat = ctx.reshape(x, (length, rest))
    values = ctx.reshape(source, (own, rest))
    picks = "as many as" if exactly else "no more than"
    asserts = ctx.asserts(f"the mask picks {picks} there are values")

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        taken = local((1,), "int64")
        store(taken, tirx.IntImm("int64", 0), 0, lanes=1)
        with serial(scope.size(length)) as i, T.If(inputs[1][i]):
            with T.Then():
                enough = taken[0] < scope.size(own)
                with T.Assert(enough, asserts, "ValueError"):
                    T.evaluate(tirx.IntImm("int32", 0))
                with serial(scope.size(rest)) as j:
                    store(results[0], inputs[2][taken[0], j], i, j, lanes=1)
                store(taken, taken[0] + tirx.IntImm("int64", 1), 0, lanes=1)
            with T.Else(), serial(scope.size(rest)) as j:
                store(results[0], inputs[0][i, j], i, j, lanes=1)
        if exactly:
            with T.Assert(tirx.EQ(taken[0], scope.size(own)), asserts, "ValueError"):
                T.evaluate(tirx.IntImm("int32", 0))

    operands = [flat, mask, values]
    (made,) = ctx.procedure("put_masked", operands, [((length, rest), x.dtype)], emit)
    return ctx.reshape(made, x.shape)


@converter("aten.masked_scatter.default", takes_halves=True)
def convert_masked_scatter(ctx: Context, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = broadcast(x.shape, mask.shape)
    count = product(shape)
    flat = ctx.reshape(ctx.stretch(x, shape), (count,))
    where = ctx.reshape(ctx.stretch(mask, shape), (count,))
    values = ctx.reshape(ctx.cast(source, x.dtype), (product(source.shape),))
    return ctx.reshape(put_masked(ctx, flat, where, values), shape)


@converter("aten.masked_select.default", takes_halves=True)
def convert_masked_select(ctx: Context, x: Tensor, mask: Tensor) -> Tensor:
    shape = broadcast(x.shape, mask.shape)
    return pick_masked(ctx, ctx.stretch(x, shape), ctx.stretch(mask, shape))


@converter("aten.repeat_interleave.Tensor")
def convert_repeat_interleave(ctx: Context, repeats: Tensor, output_size: Any) -> Tensor:
    """Each position as often as ``repeats`` says: ``[0, 0, 1, 3, …]``."""
    count = as_size(ctx.expected().shape[0])
    if not is_computed(count):
        raise Unsupported("with output_size", "no output_size")
    (length,) = repeats.shape
    asserts = ctx.asserts("no number of repeats is negative")

    def total(scope: Any, inputs: Any, results: Any) -> None:
        found = local((1,), "int64")
        store(found, tirx.IntImm("int64", 0), 0, lanes=1)
        with serial(scope.size(length)) as i:
            value = inputs[0][i].astype("int64")
            positive = value >= tirx.IntImm("int64", 0)
            with T.Assert(positive, asserts, "ValueError"):
                store(found, found[0] + value, 0, lanes=1)
        store(results[0], found[0], 0, lanes=1)

    ctx.bind_size(count, ctx.procedure("repeats", [repeats], [((1,), "int64")], total)[0])

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        at = local((1,), "int64")
        store(at, tirx.IntImm("int64", 0), 0, lanes=1)
        with serial(scope.size(length)) as i, serial(inputs[0][i].astype("int64")):
            store(results[0], i.astype(dtype), at[0], lanes=1)
            store(at, at[0] + tirx.IntImm("int64", 1), 0, lanes=1)

    dtype = dtype_of_result(ctx)
    return ctx.procedure("repeat_interleave", [repeats], [((count,), dtype)], emit)[0]
