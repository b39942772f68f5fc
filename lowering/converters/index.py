"""Reads at positions that are themselves data.

A position outside of the table is an error in eager mode, and one that the contract keeps from
happening: each node that indexes is reported in ``Lowered``, and the exporter refuses those whose
positions it did not bound. Positions that the graph computes are clamped besides, so that no mistake
of the contract's makes a kernel read other memory; those that are an input as it came are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..broadcasting import axis_of, broadcast, broadcast_index
from ..context import Context, Unsupported
from ..kernels.prim_func import let, local, parallel, serial, store
from ..symbols import Shape, Size, as_shape
from ..tensor import Tensor
from .nonzero import pick_masked
from .registry import converter


def position_in(ctx: Context, index: Tensor, size: Size, *, wraps: bool) -> Any:
    """A function ``(scope, value)`` that makes a safe position of an element of ``index``.

    ``wraps``: negative positions count from the end, as in ``x[index]``.
    """
    guarded = index.source is not None and not wraps
    if index.dtype not in ("int64", "int32", "int16", "int8", "uint8"):
        raise Unsupported(f"with indices of dtype {index.dtype}", "integer indices")
    assert ctx.node is not None
    ctx.indexing.append(ctx.node.name)

    def position(scope: Any, value: Any) -> Any:
        value = value.astype("int64")
        if guarded:
            return value
        zero, extent = tirx.IntImm("int64", 0), scope.size(size)
        if wraps:
            value = tirx.Select(value < zero, value + extent, value)
        return tirx.max(tirx.min(value, extent - tirx.IntImm("int64", 1)), zero)

    return position


@converter("aten.embedding.default", takes_halves=True)
def convert_embedding(
    ctx: Context,
    weight: Tensor,
    indices: Tensor,
    padding_idx: Any,
    scale_grad_by_freq: Any,
    sparse: Any,
) -> Tensor:
    shape = (*indices.shape, *weight.shape[1:])
    safe = position_in(ctx, indices, weight.shape[0], wraps=False)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        table, ids = tensors
        row = safe(scope, ids(*position[: indices.rank]))
        return table(row, *position[indices.rank :])

    return ctx.compute("embedding", [weight, indices], shape, weight.dtype, element)


@converter("aten.index_select.default", takes_halves=True)
def convert_index_select(ctx: Context, x: Tensor, dim: int, index: Tensor) -> Tensor:
    axis = axis_of(dim, x.rank)
    flat = index if index.rank else ctx.reshape(index, (1,))
    safe = position_in(ctx, index, x.shape[axis], wraps=False)
    shape = (*x.shape[:axis], flat.shape[0], *x.shape[axis + 1 :])

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        source, ids = tensors
        at = safe(scope, ids(position[axis]))
        return source(*position[:axis], at, *position[axis + 1 :])

    return ctx.compute("index_select", [x, flat], shape, x.dtype, element)


@converter("aten.gather.default", takes_halves=True)
def convert_gather(ctx: Context, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.rank or not index.rank:
        raise Unsupported("of a tensor without axes")
    if x.rank != index.rank:  # which torch takes where there is nothing to gather
        raise Unsupported("with an index of another number of axes")
    axis = axis_of(dim, x.rank)
    safe = position_in(ctx, index, x.shape[axis], wraps=False)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        source, ids = tensors
        at = safe(scope, ids(*position))
        return source(*position[:axis], at, *position[axis + 1 :])

    return ctx.compute("gather", [x, index], index.shape, x.dtype, element)


@dataclass(frozen=True)
class Picked:
    """What ``x[indices]`` speaks of: ``indices`` by the axis that they pick from, and the axes of ``x``
    that stand before and after their common shape in ``shape``."""

    indices: dict[int, Tensor]
    common: Shape
    before: tuple[int, ...]
    after: tuple[int, ...]
    shape: Shape

    def place(self, point: Sequence[Any], at: Callable[[int, Sequence[Any]], Any]) -> list[Any]:
        """Where in ``x`` an element of ``shape`` lies; ``at(axis, point of the common shape)`` is the
        position that the indices give."""
        first, last = len(self.before), len(self.before) + len(self.common)
        where = dict(zip(self.before, point[:first], strict=True))
        # A scalar is written at a point of one axis.
        where |= dict(zip(self.after, point[last:], strict=False))
        where |= {axis: at(axis, point[first:last]) for axis in self.indices}
        return [where[axis] for axis in sorted(where)]


def picked_by(x: Tensor, indices: Sequence[Tensor | None]) -> Picked:
    """The common shape of the indices stands where they stood, or in front if they stood apart."""
    picked = {axis: index for axis, index in enumerate(indices) if index is not None}
    common = broadcast(*(index.shape for index in picked.values()))
    axes = sorted(picked)
    front = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    others = [axis for axis in range(x.rank) if axis not in picked]
    before = tuple(axis for axis in others if axis < front)
    after = tuple(axis for axis in others if axis >= front)
    shape = (*(x.shape[a] for a in before), *common, *(x.shape[a] for a in after))
    return Picked(picked, common, before, after, shape)


@converter("aten.index.Tensor", takes_halves=True)
def convert_index(ctx: Context, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    picked = picked_by(x, indices)
    if any(index.dtype == "bool" for index in picked.indices.values()):
        if len(picked.indices) != 1:
            raise Unsupported("with a boolean mask among other indices", "x[mask][:, index]")
        ((axis, mask),) = picked.indices.items()
        return pick_masked(ctx, x, mask, axis)
    safe = {
        axis: position_in(ctx, index, x.shape[axis], wraps=True)
        for axis, index in picked.indices.items()
    }

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        source, *ids = tensors
        of_axis = dict(zip(picked.indices, ids, strict=True))

        def at(axis: int, middle: Sequence[Any]) -> Any:
            where = broadcast_index(picked.indices[axis].shape, middle)
            return safe[axis](scope, of_axis[axis](*where))

        return source(*picked.place(position, at))

    operands = [x, *picked.indices.values()]
    return ctx.compute("index", operands, picked.shape, x.dtype, element)


@converter("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def convert_embedding_bag(
    ctx: Context,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: Any,
    mode: int,
    sparse: Any,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
) -> list[Tensor | None]:
    """Sum, mean or maximum (modes 0, 1, 2) of the rows of each bag; the bags begin at ``offsets``.

    Rows that are ``padding_idx`` do not count. An empty bag gives 0.
    """
    shape = as_shape(ctx.expected(0).shape)
    bags, width = shape
    safe = position_in(ctx, indices, weight.shape[0], wraps=False)
    padding = padding_idx + weight.shape[0] if padding_idx < -1 else padding_idx
    inputs = [weight, indices, offsets]
    inputs += [] if per_sample_weights is None else [per_sample_weights]
    total = indices.shape[0]
    asserts = ctx.asserts("offsets begin at 0 and end within the indices")

    def emit(scope: Any, buffers: Any, results: Any) -> None:
        table, ids, begins, *factors = buffers
        zero, one = tirx.IntImm("int64", 0), tirx.IntImm("int64", 1)
        limit = scope.size(total)
        last = begins[tirx.max(scope.size(offsets.shape[0]) - one, zero)].astype("int64")
        within = tirx.any(
            tirx.EQ(scope.size(offsets.shape[0]), zero),
            tirx.all(tirx.EQ(begins[0].astype("int64"), zero), last <= limit),
        )
        with T.Assert(within, asserts, "ValueError"):
            T.evaluate(tirx.IntImm("int32", 0))
        with parallel(scope.size(bags)) as bag:
            count = local((1,), "int64")
            store(count, zero, 0, lanes=1)
            start = let(tirx.max(tirx.min(begins[bag].astype("int64"), limit), zero))
            if include_last_offset:
                end = begins[bag + one].astype("int64")
            else:
                following = begins[tirx.min(bag + one, scope.size(bags) - one)].astype("int64")
                end = tirx.Select(bag + one < scope.size(bags), following, limit)
            end = let(tirx.max(tirx.min(end, limit), start))
            with serial(scope.size(width)) as column:
                store(results[0], tirx.const(0, weight.dtype), bag, column, lanes=1)
            with serial(end - start) as offset:
                at = let(start + offset)
                row = let(safe(scope, ids[at]))
                counts = tirx.NE(ids[at].astype("int64"), tirx.IntImm("int64", padding))
                with T.If(counts), T.Then():
                    with serial(scope.size(width)) as column:
                        value = let(table[row, column])
                        if factors:
                            value = value * factors[0][at]
                        old = results[0][bag, column]
                        if mode == 2:
                            first = tirx.EQ(count[0], zero)
                            new = tirx.Select(tirx.any(first, value > old), value, old)
                        else:
                            new = old + value
                        store(results[0], new, bag, column, lanes=1)
                    store(count, count[0] + one, 0, lanes=1)
            if mode == 1:
                number = tirx.max(count[0], one).astype(weight.dtype)
                with serial(scope.size(width)) as column:
                    value = results[0][bag, column] / number
                    store(results[0], value, bag, column, lanes=1)

    sizes = (bags, width, total, weight.shape[0])
    made = ctx.procedure("embedding_bag", inputs, [(shape, weight.dtype)], emit, sizes)
    return [*made, None, None, None]
