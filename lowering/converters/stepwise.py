"""Elements of two operands that take a loop each, such as one by squaring or by Euclid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..kernels.prim_func import let, parallel, store
from ..symbols import product
from ..tensor import Tensor
from .elementwise import Operand, pointwise


def stepwise(
    ctx: Context,
    name: str,
    element: Callable[[Any, Any], Any],
    x: Operand,
    other: Operand,
    dtype: str,
) -> Tensor:
    """As `elementwise.pointwise`, where ``element`` may emit statements before it gives its value."""
    first = pointwise(ctx, "first", lambda a, _: a, x, other, dtype=dtype)
    second = pointwise(ctx, "second", lambda _, b: b, x, other, dtype=dtype)
    length = product(first.shape)

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        with parallel(scope.size(length)) as i:
            store(results[0], element(let(inputs[0][i]), let(inputs[1][i])), i, lanes=1)

    flat = [ctx.reshape(each, (length,)) for each in (first, second)]
    (result,) = ctx.procedure(name, flat, [((length,), dtype)], emit)
    return ctx.reshape(result, first.shape)
