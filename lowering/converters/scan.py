"""Running sums along an axis."""

from __future__ import annotations

from tvm import tirx

from ..context import Context, axis_of
from ..kernels.prim_func import dim, local, parallel, param, prim_func, serial, store
from ..symbols import Size, product
from ..tensor import Tensor
from .elementwise import dtype_of_result
from .registry import converter


def _cumulative_sum(length: Size, dtype: str) -> tirx.PrimFunc:
    """``[outer, length, inner]`` → the same shape, summed along the middle."""

    def declare():  # type: ignore[no-untyped-def]
        outer, inner = dim(None, "outer"), dim(None, "inner")
        middle = dim(length if isinstance(length, int) else None, "length")
        source = param("A", (outer, middle, inner), dtype)
        result = param("C", (outer, middle, inner), dtype)

        def body() -> None:
            with parallel(outer) as i, serial(inner) as j:
                total = local((1,), dtype)
                store(total, tirx.const(0, dtype), 0, lanes=1)
                with serial(middle) as k:
                    store(total, total[0] + source[i, k, j], 0, lanes=1)
                    store(result, total[0], i, k, j, lanes=1)

        return body

    return prim_func("cumulative_sum", declare)


@converter("aten.cumsum.default")
def convert_cumsum(ctx: Context, x: Tensor, dim: int) -> Tensor:
    dtype = dtype_of_result(ctx)
    source = ctx.cast(x, dtype)
    if x.rank == 0:
        return source
    axis = axis_of(dim, x.rank)
    length = x.shape[axis]
    cube = (product(x.shape[:axis]), length, product(x.shape[axis + 1 :]))
    function = _cumulative_sum(length, dtype)
    return ctx.reshape(
        ctx.call("cumsum", function, [ctx.reshape(source, cube)], cube, dtype), x.shape
    )
