"""The register tile of matrix products: some rows by some vectors of columns.

Whatever multiplies matrices (GEMM, batched products, attention, convolution) adds up outer products
in a tile that fills the register file, and only says where its operands come from. This is the
micro-kernel of Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .prim_func import FLOAT, Expr, ceil_div, div, index, let, load, local, serial, store, vector

PANEL = 32  # columns side by side in packed operands, a multiple of two vectors of any CPU

_WIDEST_TILE = 8  # vectors


def tile_vectors(rows: int, target: CpuTarget) -> int:
    """How many vectors wide a tile of so many rows is, two at least. A wide one multiplies more
    columns at a time, so that its sums fill three quarters of the registers at most."""
    vectors = 2
    while rows * vectors * 2 <= 3 * target.registers // 4 and vectors < _WIDEST_TILE:
        vectors *= 2
    return vectors


def accumulate(
    rows: int,
    vectors: int,
    lanes: int,
    along: Callable[[Callable[..., None]], None],
    a: Callable[..., Expr],
    b: Callable[..., Expr],
    dtype: str = FLOAT,
) -> tirx.Buffer:
    """Sums of ``a(i, *k) * b(j, *k)`` for each row i and vector j, in registers.

    ``along`` emits the loops of the reduction around the step that it is given, and calls that with
    the loop variables, here called k. ``a`` gives a scalar, ``b`` a vector. The sums lie as
    ``[rows][vectors][lanes]``; index them with constants only, or they would not stay in registers.
    """
    sums = local((rows * vectors * lanes,), dtype)
    for i in range(rows * vectors):
        store(sums, vector(0.0, lanes, dtype), i * lanes, lanes=lanes)

    def add(i: int, j: int, value: Expr, column: Expr) -> None:
        at = (i * vectors + j) * lanes
        store(sums, load(sums, at, lanes=lanes) + value * column, at, lanes=lanes)

    # The fewer of the two are kept in registers, the others come one by one: beside the sums of a wide
    # tile there is no room for as many vectors as it is wide.
    def step(*k: Expr) -> None:
        if rows < vectors:
            values = [let(vector(a(i, *k), lanes)) for i in range(rows)]
            for j in range(vectors):
                column = let(b(j, *k))
                for i in range(rows):
                    add(i, j, values[i], column)
            return
        columns = [let(b(j, *k)) for j in range(vectors)]
        for i in range(rows):
            value = let(vector(a(i, *k), lanes))
            for j in range(vectors):
                add(i, j, value, columns[j])

    along(step)
    return sums


def along(extent: Expr) -> Callable[[Callable[[Expr], None]], None]:
    """A reduction that is one loop."""

    def emit(step: Callable[[Expr], None]) -> None:
        with serial(extent) as k:
            step(k)

    return emit


def finish_tile(
    sums: tirx.Buffer,
    rows: int,
    vectors: int,
    lanes: int,
    columns: Expr | None,
    write: Callable[[Expr, Expr, Expr, int], None],
    *,
    unroll: bool,
) -> None:
    """Hand the sums over: ``write(value, row, column, lanes)``, both counted from the tile's own.

    ``columns`` is how many of the tile's columns there are, where it may reach over the edge; None
    says that it never does. With ``unroll`` the sums go from the registers; a long ``write`` is
    better in a loop, over a copy in memory.
    """
    width = vectors * lanes

    def whole() -> None:
        if unroll:
            for i in range(rows):
                for j in range(vectors):
                    value = load(sums, (i * vectors + j) * lanes, lanes=lanes)
                    write(value, index(i), index(j * lanes), lanes)
            return
        spilled = spill(sums, rows, vectors, lanes)
        with serial(rows) as i, serial(vectors) as j:
            column = let(j * index(lanes))
            write(load(spilled, i, column, lanes=lanes), i, column, lanes)

    if columns is None:
        whole()
        return
    with T.If(columns >= index(width)):
        with T.Then():
            whole()
        with T.Else():
            spilled = spill(sums, rows, vectors, lanes)
            with serial(rows) as i, serial(columns) as j:
                write(spilled[i, j], i, j, 1)


def spill(sums: tirx.Buffer, rows: int, vectors: int, lanes: int) -> tirx.Buffer:
    """The sums in memory, where loops may index them."""
    spilled = local((rows, vectors * lanes), str(sums.dtype))
    for i in range(rows):
        for j in range(vectors):
            value = load(sums, (i * vectors + j) * lanes, lanes=lanes)
            store(spilled, value, i, j * lanes, lanes=lanes)
    return spilled


def fewest_rows(more_than: int, tile_rows: int) -> int:
    """The smallest tile that an even split of more than so many rows can give."""
    return min(rows // -(-rows // tile_rows) for rows in range(more_than + 1, 2 * tile_rows + 1))


def row_blocks(
    first: Expr,
    rows: Expr,
    fewest: int,
    tile_rows: int,
    tile: Callable[[Expr, int], None],
) -> None:
    """Split ``rows`` rows from ``first`` evenly to tiles: ``tile(row, count)``, each count as code
    of its own, so that no row is computed twice and none is masked."""
    numbered_blocks(first, rows, fewest, tile_rows, lambda _block, _blocks: tile)


def numbered_blocks(
    first: Expr,
    rows: Expr,
    fewest: int,
    tile_rows: int,
    tile_of: Callable[[Expr, Expr], Callable[[Expr, int], None]],
) -> None:
    """As `row_blocks`, for tiles that know which block they are and of how many: ``tile_of(block,
    blocks)`` gives the tile of a block, whatever its count."""
    blocks = let(ceil_div(rows, tile_rows), "blocks")
    with serial(blocks) as block:
        begin = let(div(rows * block, blocks))
        row = let(first + begin, "row")
        count = let(div(rows * (block + 1), blocks) - begin)
        tile = tile_of(block, blocks)
        for rows_here in range(fewest, tile_rows + 1):
            with T.If(count == index(rows_here)), T.Then():
                tile(row, rows_here)
