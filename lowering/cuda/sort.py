"""Sorting, and the first of a sorted line: PrimFuncs around the kernels in sort.cuh."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..kernels.prim_func import ceil_div, dim, index, let, param, prim_func
from .launch import TYPES, instance, launch

THREADS = 256
TILE = 1024
_OWN = 8  # outputs of a thread that merges
_PASSES = 21  # that may be needed: places are int32
_MOST = (1 << 31) - 1
BYTES = 12  # of a key and a place, at most
MOST_FIRST = 1024


def sort(dtype: str, *, descending: bool) -> tirx.PrimFunc:
    """Every line along the middle axis in order, and where each element stood.

    Parameters: x ``[outer, length, inner]``; a workspace ``[2, outer * inner, length]`` of int32;
    values and places (int64) as x.
    """

    def declare() -> Callable[[], None]:
        outer, length, inner = (dim(None, name) for name in ("outer", "length", "inner"))
        x = param("x", (outer, length, inner), dtype)
        lines = dim(None, "lines")
        order = param("order", (2, lines, length), "int32")
        values = param("values", (outer, length, inner), dtype)
        places = param("places", (outer, length, inner), "int64")
        options = (TYPES[dtype], descending)

        def body() -> None:
            tiles = ceil_div(length, TILE)
            T.Assert(
                length <= index(_MOST), f"a line of more than {_MOST} elements cannot be sorted"
            )
            name = instance("sort_tiles", options)
            numbers = (tiles, length, inner)
            launch(name, (x, order), numbers, lines * tiles, THREADS, TILE * BYTES)
            threads = lines * ceil_div(length, _OWN)
            with T.serial(index(_PASSES)) as number:
                run = let(tirx.shift_left(index(TILE), number), "run")
                with T.If(run < length), T.Then():
                    side = tirx.truncmod(number, index(2))
                    merge = instance("sort_merge", options)
                    blocks = ceil_div(threads, THREADS)
                    launch(
                        merge, (x, order), (lines, length, inner, run, side), blocks, THREADS, 16
                    )
            finish = instance("sort_finish", (TYPES[dtype],))
            blocks = ceil_div(lines * length, THREADS)
            pointers = (x, order, values, places)
            launch(finish, pointers, (lines, length, inner), blocks, THREADS, 16)

        return body

    return prim_func("sort", declare)


def kept(count: int, length: int | None) -> int:
    """How many are held of a line, a power of two, for its first ``count``: the block takes as many
    at a time, or the whole of a short line."""
    held = 16
    while held < count or (held < 512 and (length is None or 2 * held < length)):
        held *= 2
    return held


def first(dtype: str, count: int, held: int, *, descending: bool) -> tirx.PrimFunc:
    """The first ``count`` of every line along the middle axis in order, and where each stood.

    Parameters: x ``[outer, length, inner]``, values and places (int64) ``[outer, count, inner]``.
    """

    def declare() -> Callable[[], None]:
        outer, length, inner = (dim(None, name) for name in ("outer", "length", "inner"))
        x = param("x", (outer, length, inner), dtype)
        values = param("values", (outer, count, inner), dtype)
        places = param("places", (outer, count, inner), "int64")

        def body() -> None:
            name = instance("sort_first", (TYPES[dtype], held, descending))
            numbers = (length, inner, index(count))
            shared = 2 * held * BYTES
            launch(name, (x, values, places), numbers, outer * inner, THREADS, shared)

        return body

    return prim_func("topk", declare)
