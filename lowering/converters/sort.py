"""Sorting, and what is taken from a sorted line."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..broadcasting import axis_of
from ..context import Context, Unsupported
from ..cuda import sort as on_gpu
from ..cuda.launch import TYPES
from ..kernels import sort as kernels
from ..symbols import around, as_size, product
from ..tensor import Tensor
from .elementwise import is_float
from .registry import converter
from .shape import part, pick

_FEW = 64  # first elements that are selected, and not sorted for


def sort(ctx: Context, x: Tensor, axis: int, descending: bool) -> list[Tensor]:
    """The values in order, and where each stood. Equal ones keep their order."""
    if x.rank == 0:
        zero = ctx.compute("zero", [], (), "int64", lambda *_: tirx.IntImm("int64", 0))
        return [x, zero]
    cube = around(x.shape, axis)
    if ctx.on_gpu and x.dtype in TYPES:
        return _on_gpu(ctx, x, axis, descending)

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        kernels.merge_sort(inputs[0], *results, *scope.shape(cube), descending=descending)

    outputs = [(cube, x.dtype), (cube, "int64")]
    made = ctx.procedure("sort", [ctx.reshape(x, cube)], outputs, emit)
    return [ctx.reshape(each, x.shape) for each in made]


def _on_gpu(ctx: Context, x: Tensor, axis: int, descending: bool) -> list[Tensor]:
    cube = around(x.shape, axis)
    function = on_gpu.sort(x.dtype, descending=descending)
    # What is merged on the way takes memory as a result does.
    order = (2, product((cube[0], cube[2])), cube[1])
    results = [(order, "int32"), (cube, x.dtype), (cube, "int64")]
    _, *made = ctx.launch_all("sort", function, [ctx.reshape(x, cube)], results)
    return [ctx.reshape(each, x.shape) for each in made]


def _first_on_gpu(ctx: Context, x: Tensor, axis: int, count: int, largest: bool) -> list[Tensor]:
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    few = around(shape, axis)
    length = x.shape[axis]
    kept = on_gpu.kept(count, length if isinstance(length, int) else None)
    function = on_gpu.first(x.dtype, count, kept, descending=largest)
    source = ctx.reshape(x, around(x.shape, axis))
    made = ctx.launch_all("topk", function, [source], [(few, x.dtype), (few, "int64")])
    return [ctx.reshape(each, shape) for each in made]


@converter("aten.sort.default", "aten.sort.stable")
def convert_sort(
    ctx: Context, x: Tensor, dim: int, descending: bool, stable: Any = None
) -> list[Tensor]:
    return sort(ctx, x, axis_of(dim, x.rank), descending)


@converter("aten.topk.default")
def convert_topk(
    ctx: Context, x: Tensor, k: Any, dim: int, largest: bool, sorted: bool
) -> list[Tensor]:
    if x.rank == 0:
        return sort(ctx, x, 0, largest)
    axis = axis_of(dim, x.rank)
    count = as_size(ctx.expected(0).shape[axis])
    if (
        ctx.on_gpu
        and x.dtype in TYPES
        and isinstance(count, int)
        and 0 < count <= on_gpu.MOST_FIRST
    ):
        return _first_on_gpu(ctx, x, axis, count, largest)
    if not isinstance(count, int) or count > _FEW:
        return [part(ctx, each, axis, 0, 1, count) for each in sort(ctx, x, axis, largest)]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    cube, few = around(x.shape, axis), around(shape, axis)

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        sizes = (*scope.shape(cube), scope.size(count))
        kernels.select_first(inputs[0], *results, *sizes, descending=largest)

    outputs = [(few, x.dtype), (few, "int64")]
    made = ctx.procedure("topk", [ctx.reshape(x, cube)], outputs, emit)
    return [ctx.reshape(each, shape) for each in made]


@converter("aten.kthvalue.default")
def convert_kthvalue(ctx: Context, x: Tensor, k: Any, dim: int, keepdim: bool) -> list[Tensor]:
    axis = axis_of(dim, x.rank)
    made = sort(ctx, x, axis, False)
    if x.rank == 0:
        return made
    if keepdim:
        return [part(ctx, each, axis, k - 1, 1, 1) for each in made]
    return [pick(ctx, each, axis, k - 1) for each in made]


@converter("aten.median.dim")
def convert_median_dim(ctx: Context, x: Tensor, dim: int, keepdim: bool) -> list[Tensor]:
    """The lower of the two in the middle; the first NaN if there is one."""
    axis = axis_of(dim, x.rank)
    made = sort(ctx, x, axis, False)
    if x.rank == 0:
        return made
    return [_middle(ctx, each, made[0], axis, keepdim) for each in made]


@converter("aten.median.default")
def convert_median(ctx: Context, x: Tensor) -> Tensor:
    flat = ctx.reshape(x, (product(x.shape),))
    values, _ = sort(ctx, flat, 0, False)
    return _middle(ctx, values, values, 0, False)


def _middle(ctx: Context, x: Tensor, values: Tensor, axis: int, keepdim: bool) -> Tensor:
    """Of sorted lines ``values``, the position of the median in ``x``."""
    length = x.shape[axis]
    if length == 0:
        raise Unsupported("of nothing")
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        def at(tensor: Any, place: Any) -> Any:
            return tensor(*position[:axis], place, *position[axis:])

        one = tirx.IntImm("int64", 1)
        last = scope.size(length) - one
        place = tirx.floordiv(last, tirx.IntImm("int64", 2))
        if is_float(values.dtype):
            nans = tirx.isnan(at(tensors[-1], last))
            place = tirx.Select(nans, last, place)
        return at(tensors[0], place)

    inputs = [x] if x is values else [x, values]
    result = ctx.compute("median", inputs, shape, x.dtype, element)
    return ctx.reshape(result, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if keepdim else result
