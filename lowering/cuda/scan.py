"""Running sums, products and extremes: PrimFuncs around the kernels in scan.cuh."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..kernels.prim_func import ceil_div, dim, index, param, prim_func
from .launch import TYPES, instance, launch

THREADS = 256
SHARED_BYTES = 2 * THREADS * 16  # two states for each thread
# With so many lines side by side, a warp that takes one each reads neighbours.
_COLUMNS = 32
OPERATIONS = {
    "cumsum": "Sum",
    "cumprod": "Product",
    "cummax": "Largest",
    "cummin": "Smallest",
    "logcumsumexp": "LogSum",
}


def scan(operation: str, dtype: str, *, places: bool) -> tirx.PrimFunc:
    """An operation of `OPERATIONS` over all elements up to each, along the middle axis.

    Parameters: x and y ``[outer, length, inner]`` of ``dtype``; with ``places``, int64 of the same
    sizes: where the element of y stands.
    """

    def declare() -> Callable[[], None]:
        outer, length, inner = (dim(None, name) for name in ("outer", "length", "inner"))
        x = param("x", (outer, length, inner), dtype)
        y = param("y", (outer, length, inner), dtype)
        at = param("places", (outer, length, inner), "int64") if places else None
        options = (TYPES[dtype], f"tcexport::{OPERATIONS[operation]}")
        lines = outer * inner

        def body() -> None:
            with T.If(inner < index(_COLUMNS)):
                with T.Then():
                    name = instance("scan", options)
                    launch(name, (x, y, at), (length, inner), lines, THREADS, SHARED_BYTES)
                with T.Else():
                    name = instance("scan_columns", options)
                    blocks = ceil_div(lines, THREADS)
                    launch(name, (x, y, at), (lines, length, inner), blocks, THREADS, 16)

        return body

    return prim_func(operation, declare)
