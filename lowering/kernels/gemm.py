"""Matrix products with a weight that was packed at export: C = act(A Wᵀ + bias) + residual.

The weight lies in panels of 32 columns, ``[ceil(n/32)][k][32]``, one layout for every CPU level. A
register tile is some rows by some vectors of columns and runs over the whole of k, with neither
packing of A nor blocks of k: a panel stays in the level-two cache while the rows of a chunk pass
over it. Rows are split evenly between tiles, and each row count has its own code, so that no row
is computed twice and none is masked. Few rows get tiles that are wider instead, which read more
panels at once. This is the outer-product scheme of Goto and van de Geijn (Anatomy of
High-Performance Matrix Multiplication, 2008) for operands that fit the caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .prim_func import (
    Expr,
    ceil_div,
    dim,
    index,
    let,
    load,
    local,
    parallel,
    param,
    prim_func,
    serial,
    store,
    vector,
)
from .vector_math import activate

PANEL = 32

_WIDEST_TILE = 8  # vectors
_CHUNK_BYTES = 1536 * 1024  # rows of A that pass over one panel before the next is taken
_ENOUGH_TASKS = 64  # chunks are made smaller until there are so many, for the cores to share


def packed_shape(n: int, k: int) -> tuple[int, int, int]:
    return (-(-n // PANEL), k, PANEL)


def pack(weight: np.ndarray) -> np.ndarray:
    """Pack a weight ``[n, k]`` (as torch's Linear has it) to panels, padded with zeros."""
    n, k = weight.shape
    panels = -(-n // PANEL)
    padded = np.zeros((panels * PANEL, k), weight.dtype)
    padded[:n] = weight
    return np.ascontiguousarray(padded.reshape(panels, PANEL, k).transpose(0, 2, 1))


def tile_vectors(rows: int, target: CpuTarget) -> int:
    """How many vectors wide a tile of so many rows is: what fills the register file."""
    vectors = 2
    while rows * vectors * 2 <= 2 * target.tile_rows and vectors < _WIDEST_TILE:
        vectors *= 2
    return vectors


@dataclass(frozen=True)
class _Gemm:
    """The operands of one product, and what is done to a finished tile."""

    n: int
    k: int
    a: tirx.Buffer
    b: tirx.Buffer
    bias: tirx.Buffer | None
    residual: tirx.Buffer | None
    c: tirx.Buffer
    activation: str | None
    lanes: int

    def finish(self, value: Expr, row: Expr, column: Expr, lanes: int) -> Expr:
        if self.bias is not None:
            value = value + load(self.bias, column, lanes=lanes)
        value = activate(self.activation, value, lanes)
        if self.residual is not None:
            value = value + load(self.residual, row, column, lanes=lanes)
        return value


def gemm(
    n: int,
    k: int,
    *,
    bias: bool,
    activation: str | None,
    residual: bool,
    target: CpuTarget,
) -> tirx.PrimFunc:
    """C = act(A Wᵀ + bias) + residual in float32, for any number of rows.

    Parameters of the PrimFunc, in this order: A ``[m, k]``, the packed weight, bias ``[n]`` and
    residual ``[m, n]`` where asked for, C ``[m, n]``. ``activation`` is a name in
    ``vector_math.ACTIVATIONS`` or None.
    """

    def declare():
        m = dim(None, "m")
        operands = _Gemm(
            n=n,
            k=k,
            a=param("A", (m, k)),
            b=param("B", packed_shape(n, k)),
            bias=param("bias", (n,)) if bias else None,
            residual=param("residual", (m, n)) if residual else None,
            c=param("C", (m, n)),
            activation=activation,
            lanes=target.lanes,
        )
        return lambda: _emit(operands, m, target)

    return prim_func(f"gemm_{n}_{k}", declare)


def _emit(gemm: _Gemm, m: Expr, target: CpuTarget) -> None:
    few = max(rows for rows in range(1, target.tile_rows + 1) if tile_vectors(rows, target) > 2)
    with T.If(m <= index(few)):
        with T.Then():
            for rows in range(1, few + 1):
                with T.If(m == index(rows)), T.Then():
                    _few_rows(gemm, rows, tile_vectors(rows, target))
        with T.Else():
            _many_rows(gemm, m, few, target.tile_rows)


def _few_rows(gemm: _Gemm, rows: int, vectors: int) -> None:
    """One row of tiles: the parallel loop goes over groups of columns."""
    width = vectors * gemm.lanes
    whole = gemm.n // width
    with parallel(-(-gemm.n // width)) as group:
        if whole * width == gemm.n:
            _tile(gemm, rows, vectors, T.int64(0), group * index(width))
            return
        with T.If(group < index(whole)):
            with T.Then():
                _tile(gemm, rows, vectors, T.int64(0), group * index(width))
            with T.Else():
                narrow = 2 * gemm.lanes
                with serial(-(-(gemm.n - whole * width) // narrow)) as strip:
                    column = let(index(whole * width) + strip * index(narrow))
                    _tile(gemm, rows, 2, T.int64(0), column)


def _many_rows(gemm: _Gemm, m: Expr, few: int, tile_rows: int) -> None:
    """Chunks of rows by panels in parallel; in each, strips of two vectors by blocks of rows."""
    panels = packed_shape(gemm.n, gemm.k)[0]
    width = 2 * gemm.lanes
    chunk_rows = max(4 * tile_rows, _CHUNK_BYTES // (4 * max(gemm.k, 1)))
    chunks = T.max(
        ceil_div(m, chunk_rows),
        T.min(ceil_div(m, 4 * tile_rows), index(-(-_ENOUGH_TASKS // panels))),
    )
    chunks = let(chunks, "chunks")
    with parallel(chunks * index(panels)) as task:
        chunk = let(task // index(panels), "chunk")
        panel = let(task % index(panels), "panel")
        first_row = let(m * chunk // chunks, "first_row")
        rows = let(m * (chunk + 1) // chunks - first_row, "rows")
        blocks = let(ceil_div(rows, tile_rows), "blocks")
        strips = T.min(index(PANEL // width), ceil_div(index(gemm.n) - panel * index(PANEL), width))
        with serial(strips) as strip:
            column = let(panel * index(PANEL) + strip * index(width), "column")
            with serial(blocks) as block:
                row = let(first_row + rows * block // blocks, "row")
                block_rows = let(rows * (block + 1) // blocks - rows * block // blocks)
                for count in range(_fewest_rows(few, tile_rows), tile_rows + 1):
                    with T.If(block_rows == index(count)), T.Then():
                        _tile(gemm, count, 2, row, column)


def _fewest_rows(few: int, tile_rows: int) -> int:
    """The smallest block that an even split of more than ``few`` rows can give."""
    return min(rows // -(-rows // tile_rows) for rows in range(few + 1, 2 * tile_rows + 1))


def _tile(gemm: _Gemm, rows: int, vectors: int, row: Expr, column: Expr) -> None:
    """Rows by vectors of C, from ``row`` and ``column`` on, in registers over the whole of k."""
    lanes = gemm.lanes
    width = vectors * lanes
    edge = gemm.n % width
    sums = local((rows * width,))
    for i in range(rows * vectors):
        store(sums, vector(0.0, lanes), i * lanes, lanes=lanes)
    with serial(gemm.k) as k:
        # Which panel, and where in it: a tile is a part of a panel, or some whole panels.
        weights = [
            let(
                load(
                    gemm.b,
                    (column + index(j * lanes)) // index(PANEL),
                    k,
                    (column + index(j * lanes)) % index(PANEL),
                    lanes=lanes,
                )
            )
            for j in range(vectors)
        ]
        for i in range(rows):
            value = let(vector(gemm.a[row + index(i), k], lanes))
            for j in range(vectors):
                at = (i * vectors + j) * lanes
                store(sums, load(sums, at, lanes=lanes) + value * weights[j], at, lanes=lanes)
    if edge == 0:
        _finish_tile(gemm, sums, rows, vectors, row, column)
        return
    with T.If(column + index(width) <= index(gemm.n)):
        with T.Then():
            _finish_tile(gemm, sums, rows, vectors, row, column)
        with T.Else():
            spilled = _spill(sums, rows, vectors, lanes)
            with serial(rows) as i, serial(edge) as j:
                value = gemm.finish(spilled[i, j], row + i, column + j, 1)
                store(gemm.c, value, row + i, column + j, lanes=1)


def _finish_tile(
    gemm: _Gemm, sums: tirx.Buffer, rows: int, vectors: int, row: Expr, column: Expr
) -> None:
    lanes = gemm.lanes
    if gemm.activation in (None, "relu"):
        for i in range(rows):
            for j in range(vectors):
                at = column + index(j * lanes)
                value = load(sums, (i * vectors + j) * lanes, lanes=lanes)
                value = gemm.finish(value, row + index(i), at, lanes)
                store(gemm.c, value, row + index(i), at, lanes=lanes)
        return
    # A long activation, unrolled over the tile, would be much code and spill its registers.
    spilled = _spill(sums, rows, vectors, lanes)
    with serial(rows) as i, serial(vectors) as j:
        at = let(column + j * index(lanes))
        value = gemm.finish(load(spilled, i, j * index(lanes), lanes=lanes), row + i, at, lanes)
        store(gemm.c, value, row + i, at, lanes=lanes)


def _spill(sums: tirx.Buffer, rows: int, vectors: int, lanes: int) -> tirx.Buffer:
    """The sums in memory, where a loop may index them: indexed as they are, they would not stay in
    registers."""
    spilled = local((rows, vectors * lanes))
    for i in range(rows):
        for j in range(vectors):
            value = load(sums, (i * vectors + j) * lanes, lanes=lanes)
            store(spilled, value, i, j * lanes, lanes=lanes)
    return spilled
