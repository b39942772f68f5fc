"""Matrix products with a weight that was packed at export: C = act(A Wᵀ + bias) + residual.

The weight lies in panels of 32 columns, ``[ceil(n/32)][k][32]``, one layout for every CPU level. A
tile runs over the whole of k, with neither packing of A nor blocks of k: a panel stays in the
level-two cache while the rows of a chunk pass over it, and the next one is brought there meanwhile.
Few rows get tiles that are wider, and so read more panels at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import DataType, tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .half import load_wide, narrow, rounded
from .panels import LINE_BYTES, ask_ahead, ask_near, ask_next, asking_steps, is_narrow, turn
from .prim_func import (
    FLOAT,
    Expr,
    ceil_div,
    dim,
    div,
    index,
    let,
    load,
    mod,
    parallel,
    param,
    prefetch,
    prim_func,
    serial,
    store,
    workspace,
)
from .tile import PANEL, accumulate, fewest_rows, finish_tile, numbered_blocks, tile_vectors
from .vector_math import activate

_CHUNK_BYTES = 512 * 1024  # rows of A that pass over one panel before the next is taken
_FITTING = 128 * 1024  # elements of A that stay in the level-two cache, beside panels
_FAR_COLUMNS = 8192  # C of so many columns is not in the cache when a tile is stored
_ENOUGH_TASKS = 64  # chunks are made smaller until there are so many, for the cores to share


def packed_shape(n: int, k: int) -> tuple[int, int, int]:
    return (-(-n // PANEL), k, PANEL)


PACKING = (("panels", PANEL),)
"""A weight ``[n, k]`` (as torch's Linear has it) to panels, padded with zeros: steps of `recipes`."""


@dataclass(frozen=True)
class _Gemm:
    """The operands of one product, and what is done to a finished tile."""

    n: int
    k: int
    a: tirx.Buffer
    b: tirx.Buffer
    scale: tirx.Buffer | None
    bias: tirx.Buffer | None
    residual: tirx.Buffer | None
    c: tirx.Buffer
    activation: str | None
    lanes: int
    dtype: str

    def finish(self, value: Expr, row: Expr, column: Expr, lanes: int) -> Expr:
        """Rounded after each op of the three, as torch rounds the result of each."""
        if self.scale is not None:
            value = value * load(self.scale, column, lanes=lanes)
        if self.bias is not None:
            value = value + load_wide(self.bias, column, lanes=lanes)
        if self.activation is not None:
            if self.activation != "relu":  # for which rounding may come after as well
                value = rounded(value, self.dtype, lanes)
            value = activate(self.activation, value, lanes)
        if self.residual is not None:
            value = rounded(value, self.dtype, lanes)
            value = value + load_wide(self.residual, row, column, lanes=lanes)
        return narrow(value, self.dtype, lanes)


def gemm(
    n: int,
    k: int,
    *,
    bias: bool,
    activation: str | None,
    residual: bool,
    target: CpuTarget,
    dtype: str = FLOAT,
    weight_dtype: str | None = None,
    scale: bool = False,
) -> tirx.PrimFunc:
    """C = act(A Wᵀ * scale + bias) + residual, for any number of rows, in float32; all but A and the
    scale are stored as ``dtype``, the weight as ``weight_dtype`` where that is another.

    Parameters of the PrimFunc, in this order: A ``[m, k]``, the packed weight, scale ``[n]``, bias
    ``[n]`` and residual ``[m, n]`` where asked for, C ``[m, n]``. ``activation`` is a name in
    ``vector_math.ACTIVATIONS`` or None.
    """

    def declare() -> Callable[[], None]:
        m = dim(None, "m")
        operands = _Gemm(
            n=n,
            k=k,
            a=param("A", (m, k)),
            b=param("B", packed_shape(n, k), weight_dtype or dtype),
            scale=param("scale", (n,)) if scale else None,
            bias=param("bias", (n,), dtype) if bias else None,
            residual=param("residual", (m, n), dtype) if residual else None,
            c=param("C", (m, n), dtype),
            activation=activation,
            lanes=target.lanes,
            dtype=dtype,
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
            if 2 * target.lanes < PANEL:
                _many_rows(gemm, m, few, target.tile_rows)
                return
            # A single block reads a panel as it lies in memory, and has nothing to do meanwhile.
            with T.If(m <= index(target.tile_rows)):
                with T.Then():
                    _many_rows(gemm, m, few, target.tile_rows, alone=True)
                with T.Else():
                    _many_rows(gemm, m, target.tile_rows, target.tile_rows)


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


def _many_rows(gemm: _Gemm, m: Expr, few: int, tile_rows: int, *, alone: bool = False) -> None:
    """Chunks of rows by panels in parallel; in each, strips of two vectors by blocks of rows, of which
    the only one asks for its own panel where it is ``alone``."""
    panels = packed_shape(gemm.n, gemm.k)[0]
    width = 2 * gemm.lanes
    chunk_rows = max(4 * tile_rows, _CHUNK_BYTES // (4 * max(gemm.k, 1)))
    chunks = T.max(
        ceil_div(m, chunk_rows),
        T.min(ceil_div(m, 4 * tile_rows), index(-(-_ENOUGH_TASKS // panels))),
    )
    chunks = let(chunks, "chunks")
    fits = m * index(gemm.k) <= index(_FITTING)
    with parallel(chunks * index(panels)) as task:
        place = turn(task, panels, chunks, fits)
        chunk, panel = place.part, place.panel
        first_row = let(div(m * chunk, chunks), "first_row")
        rows = let(div(m * (chunk + 1), chunks) - first_row, "rows")
        strips = T.min(index(PANEL // width), ceil_div(index(gemm.n) - panel * index(PANEL), width))
        strips = let(strips)
        with serial(strips) as strip:
            column = let(panel * index(PANEL) + strip * index(width), "column")
            fewest = fewest_rows(few, tile_rows)

            def blocks(first: Expr, rows: Expr, wide: tirx.Buffer | None) -> None:
                def tile_of(block: Expr, blocks: Expr) -> Callable[[Expr, int], None]:
                    ask = None
                    if not alone:
                        of_task = strip * blocks + block, strips * blocks
                        ask = ask_next(gemm.b, gemm.k, gemm.lanes, place, *of_task)
                    return lambda row, count: _tile(gemm, count, 2, row, column, wide, ask=ask)

                numbered_blocks(first, rows, fewest, tile_rows, tile_of)

            if not is_narrow(gemm.b):
                blocks(first_row, rows, None)
                return
            # The first tile widens the columns for itself, and leaves them to the others.
            wide = workspace((max(gemm.k, 1), width))
            in_first = let(div(rows, ceil_div(rows, tile_rows)), "in_first")
            for count in range(fewest, tile_rows + 1):
                with T.If(in_first == index(count)), T.Then():
                    _tile(gemm, count, 2, first_row, column, wide, widens=True)
            blocks(let(first_row + in_first), let(rows - in_first), wide)


def _tile(
    gemm: _Gemm,
    rows: int,
    vectors: int,
    row: Expr,
    column: Expr,
    wide: tirx.Buffer | None = None,
    *,
    widens: bool = False,
    ask: Callable[[Expr], None] | None = None,
) -> None:
    """Rows by vectors of C, from ``row`` and ``column`` on, over the whole of k. ``wide`` is where the
    tile finds these columns of the weight in float32 ``[k, width]``, or where it ``widens`` them to.
    ``ask`` asks for columns to come; without it the tile asks for its own, some steps ahead."""
    lanes = gemm.lanes
    width = vectors * lanes

    def stored_at(first: int) -> tuple[Expr, Expr]:
        """Which panel, and where in it: a tile is a part of a panel, or some whole panels."""
        at = column + index(first)
        return div(at, PANEL), mod(at, PANEL)

    def weight(j: int, k: Expr) -> Expr:
        if wide is not None and not widens:
            return load(wide, k, j * lanes, lanes=lanes)
        panel, at = stored_at(j * lanes)
        value = load_wide(gemm.b, panel, k, at, lanes=lanes)
        if wide is not None:
            value = let(value)
            store(wide, value, k, j * lanes, lanes=lanes)
        return value

    def write(value: Expr, i: Expr, j: Expr, lanes: int) -> None:
        value = gemm.finish(value, row + i, column + j, lanes)
        store(gemm.c, value, row + i, column + j, lanes=lanes)

    def near(k: Expr) -> None:
        if wide is not None:
            ask_near(wide, k, index(0), width=width)
        else:
            panel, at = stored_at(0)
            ask_near(gemm.b, panel, k, at, width=width)

    def steps(step: Callable[[Expr], None]) -> None:
        if ask is None:
            with serial(gemm.k) as k:
                if wide is None or widens:
                    for first in range(0, width, PANEL):
                        panel, at = stored_at(first)
                        ask_ahead(gemm.b, panel, k, at, min(width, PANEL))
                step(k)
            return
        asking_steps(gemm.k, lanes, ask, near, step)

    if ask is not None and gemm.n >= _FAR_COLUMNS:
        for i in range(rows):
            for j in range(0, width, LINE_BYTES // DataType(gemm.dtype).itemsize):
                prefetch(gemm.c, row + index(i), column + index(j))
    sums = accumulate(rows, vectors, lanes, steps, lambda i, k: gemm.a[row + index(i), k], weight)
    edge = None if gemm.n % width == 0 else index(gemm.n) - column
    light = gemm.activation in (None, "relu")
    finish_tile(sums, rows, vectors, lanes, edge, write, unroll=light)
