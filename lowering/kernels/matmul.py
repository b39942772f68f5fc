"""Batched products of two matrices that are both computed at run time: C = A B or A Bᵀ.

B is first packed to panels, as a weight is at export (``gemm.py``), into a workspace; then the same
tiles run over it.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .half import load_wide, narrow, widen
from .prim_func import (
    FLOAT,
    Expr,
    Size,
    ceil_div,
    dim,
    div,
    index,
    let,
    load,
    mod,
    parallel,
    param,
    prim_func,
    serial,
    store,
    vector,
    workspace,
)
from .tile import PANEL, accumulate, along, finish_tile, row_blocks

_CHUNK_ROWS = 96  # rows of C that make one task with a panel


def batched_matmul(
    *,
    b: Size,
    m: Size,
    k: Size,
    n: Size,
    transpose_b: bool,
    target: CpuTarget,
    broadcast_a: bool = False,
    broadcast_b: bool = False,
    dtype: str = FLOAT,
) -> tirx.PrimFunc:
    """C[i] = A[i] B[i] in float32, for each i of a batch; B and C are stored as ``dtype``.

    Parameters: A ``[b, m, k]``, B ``[b, k, n]``, or ``[b, n, k]`` with ``transpose_b``, C
    ``[b, m, n]``. An operand that is broadcast has a batch of 1.
    """

    def declare() -> Callable[[], None]:
        batch, rows = dim(b, "b"), dim(m, "m")
        depth, columns = dim(k, "k"), dim(n, "n")
        a = param("A", (1 if broadcast_a else batch, rows, depth))
        b_batch = index(1) if broadcast_b else batch
        b_shape = (columns, depth) if transpose_b else (depth, columns)
        second = param("B", (b_batch, *b_shape), dtype)
        c = param("C", (batch, rows, columns), dtype)

        def body() -> None:
            panels = let(ceil_div(columns, PANEL), "panels")
            packed = workspace((b_batch, panels, depth, PANEL))
            _pack(second, packed, b_batch, panels, depth, columns, transpose_b, target.lanes)
            chunks = let(ceil_div(rows, _CHUNK_ROWS), "chunks")
            with parallel(batch * panels * chunks) as task:
                item = let(div(task, panels * chunks), "item")
                panel = let(mod(div(task, chunks), panels), "panel")
                chunk = let(mod(task, chunks), "chunk")
                first = let(div(rows * chunk, chunks), "first")
                count = let(div(rows * (chunk + 1), chunks) - first, "count")
                a_item = index(0) if broadcast_a else item
                b_item = index(0) if broadcast_b else item
                width = 2 * target.lanes
                strips = T.min(
                    index(PANEL // width), ceil_div(columns - panel * index(PANEL), width)
                )
                with serial(strips) as strip:
                    offset = let(strip * index(width), "offset")
                    column = let(panel * index(PANEL) + offset, "column")

                    def tile(row: Expr, rows_here: int) -> None:
                        sums = accumulate(
                            rows_here,
                            2,
                            target.lanes,
                            along(depth),
                            lambda i, p: a[a_item, row + index(i), p],
                            lambda j, p: load(
                                packed,
                                b_item,
                                panel,
                                p,
                                offset + index(j * target.lanes),
                                lanes=target.lanes,
                            ),
                        )

                        def write(value: Expr, i: Expr, j: Expr, lanes: int) -> None:
                            value = narrow(value, dtype, lanes)
                            store(c, value, item, row + i, column + j, lanes=lanes)

                        edge = None if n is not None and n % width == 0 else columns - column
                        finish_tile(sums, rows_here, 2, target.lanes, edge, write, unroll=True)

                    row_blocks(first, count, 1, target.tile_rows, tile)

        return body

    return prim_func("batched_matmul", declare)


def _pack(
    source: tirx.Buffer,
    packed: tirx.Buffer,
    batch: Expr,
    panels: Expr,
    depth: Expr,
    columns: Expr,
    transposed: bool,
    lanes: int,
) -> None:
    """Lay B in panels, padded with zeros."""
    with parallel(batch * panels) as task:
        item = let(div(task, panels), "item")
        panel = let(mod(task, panels), "panel")
        first = let(panel * index(PANEL), "first")
        present = let(T.min(columns - first, index(PANEL)), "present")
        if transposed:
            with serial(present) as j, serial(depth) as p:
                value = widen(source[item, first + j, p], 1)
                store(packed, value, item, panel, p, j, lanes=1)
            with serial(index(PANEL) - present) as j, serial(depth) as p:
                store(packed, T.float32(0.0), item, panel, p, present + j, lanes=1)
            return
        with serial(depth) as p, T.If(present == index(PANEL)):
            with T.Then():
                for j in range(0, PANEL, lanes):
                    value = load_wide(source, item, p, first + index(j), lanes=lanes)
                    store(packed, value, item, panel, p, j, lanes=lanes)
            with T.Else():
                for j in range(0, PANEL, lanes):
                    store(packed, vector(0.0, lanes), item, panel, p, j, lanes=lanes)
                with serial(present) as j:
                    value = widen(source[item, p, first + j], 1)
                    store(packed, value, item, panel, p, j, lanes=1)
