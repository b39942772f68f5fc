"""Products of half-precision floats on tensor cores: PrimFuncs around the kernel in gemm.cuh,
which decide its tiles, its grid and what a call of it is made for.

What differs from model to model in numbers alone is an argument of the kernel, so that all products of
a model with one dtype, layout and epilogue share their code. Which tile serves is decided in each
call, by the sizes that it has. The tiles were chosen by the limits of the devices (48 KiB of shared
memory and 255 registers serve all that CUDA 13 knows), and not tuned on one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..kernels.prim_func import Expr, ceil_div, dim, index, param, prim_func
from .launch import TYPES, instance, launch

PANEL = 32

_ACTIVATIONS = {
    None: "NO_ACTIVATION",
    "relu": "RELU",
    "silu": "SILU",
    "gelu": "GELU",
    "gelu_tanh": "GELU_TANH",
}
_WAVES = 2 * 108  # blocks for few rows: two for each of those
_LEAST_PART = 512  # of k
_MOST_PARTS = 8
SUM_THREADS = 256
_ENOUGH_BLOCKS = 108  # multiprocessors of an A100: with fewer large tiles, some of them would idle


@dataclass(frozen=True)
class Tile:
    """What a block computes, ``[m, n]`` of C in steps of k; the warps that share it along each; how
    many steps are held. See ``Tile`` of gemm.cuh."""

    m: int
    n: int
    k: int
    warps: tuple[int, int, int]
    stages: int

    @property
    def threads(self) -> int:
        rows, columns, shares = self.warps
        return 32 * rows * columns * shares

    @property
    def shared_bytes(self) -> int:
        return 2 * self.stages * (self.m + self.n) * self.k

    @property
    def name(self) -> str:
        numbers = (self.m, self.n, self.k, *self.warps, self.stages)
        return f"tcexport::Tile<{', '.join(map(str, numbers))}>"


# For few rows: a weight that is read once, by as many blocks as can be.
FEW_ROWS = Tile(16, 32, 128, (1, 1, 4), 4)
SMALL = Tile(64, 64, 64, (2, 2, 1), 3)
LARGE = Tile(128, 128, 32, (2, 2, 1), 3)


def gemm(
    *,
    dtype: str,
    bias: bool,
    activation: str | None,
    residual: bool,
    even_k: bool,
    even_n: bool,
    parts: int = 1,
) -> tirx.PrimFunc:
    """C = act(A Wᵀ + bias) + residual, all of ``dtype``, rounded after each of the three.

    Parameters: A ``[m, k]``, the weight in panels ``[ceil(n/32), k, 32]``, bias ``[n]`` and residual
    ``[m, n]`` where asked for, C ``[m, n]``; ``even`` are sizes that are known to be multiples of 8.
    With several ``parts``, few rows are computed by that many blocks for each tile, which share k:
    before C there is a workspace ``[parts, min(m, 16), n]`` of float32.
    """

    def declare() -> Callable[[], None]:
        m, n, k, panels = (dim(None, name) for name in ("m", "n", "k", "panels"))
        a = param("A", (m, k), dtype)
        b = param("B", (panels, k, PANEL), dtype)
        offset = param("bias", (n,), dtype) if bias else None
        more = param("residual", (m, n), dtype) if residual else None
        work = param("work", (parts, dim(None, "few"), n)) if parts > 1 else None
        c = param("C", (m, n), dtype)
        options = ("PANELS", _ACTIVATIONS[activation], bias, residual, even_k, even_n)
        pointers = (a, b, offset, more, c)

        def in_parts() -> None:
            tile = FEW_ROWS
            name = instance("gemm_part", (TYPES[dtype], tile.name, "PANELS", even_k, even_n))
            tiles = ceil_div(m, tile.m) * ceil_div(n, tile.n)
            numbers = (m, n, k, index(parts))
            launch(name, (a, b, work), numbers, tiles * parts, tile.threads, tile.shared_bytes)
            name = instance("gemm_sum", (TYPES[dtype], _ACTIVATIONS[activation], bias, residual))
            blocks = ceil_div(m * n, SUM_THREADS)
            pointers = (work, offset, more, c)
            launch(name, pointers, (m, n, index(parts)), blocks, SUM_THREADS, 16)

        def body() -> None:
            few = in_parts if parts > 1 else None
            _by_size(dtype, options, pointers, (index(0), index(0)), (index(1), m, n, k), few)

        return body

    return prim_func("gemm", declare)


def parts_of(n: int, k: int) -> int:
    """How many blocks share k for each tile of few rows, so that a weight with few columns is read by
    all multiprocessors."""
    blocks = -(-n // FEW_ROWS.n)
    return max(1, min(_MOST_PARTS, _WAVES // blocks, k // _LEAST_PART))


def batched_matmul(
    *,
    dtype: str,
    transpose_b: bool,
    broadcast_a: bool,
    broadcast_b: bool,
    even_k: bool,
    even_n: bool,
) -> tirx.PrimFunc:
    """C[i] = A[i] B[i], all of ``dtype``, for each i of a batch.

    Parameters: A ``[b, m, k]``, B ``[b, k, n]``, or ``[b, n, k]`` with ``transpose_b``, C
    ``[b, m, n]``. An operand that is broadcast has a batch of 1. ``even`` as for `gemm`.
    """

    def declare() -> Callable[[], None]:
        batch, m, n, k = (dim(None, name) for name in "bmnk")
        a = param("A", (1 if broadcast_a else batch, m, k), dtype)
        b_shape = (n, k) if transpose_b else (k, n)
        b = param("B", (1 if broadcast_b else batch, *b_shape), dtype)
        c = param("C", (batch, m, n), dtype)
        layout = "COLUMNS" if transpose_b else "ROWS"
        options = (layout, _ACTIVATIONS[None], False, False, even_k, even_n)
        steps = (index(0) if broadcast_a else m * k, index(0) if broadcast_b else k * n)

        def body() -> None:
            _by_size(dtype, options, (a, b, None, None, c), steps, (batch, m, n, k))

        return body

    return prim_func("batched_matmul", declare)


def _by_size(
    dtype: str,
    options: Sequence[Any],
    pointers: Sequence[tirx.Buffer | None],
    steps: Sequence[Expr],
    sizes: Sequence[Expr],
    few: Callable[[], None] | None = None,
) -> None:
    """``few``: what is done for few rows, if not by one tile."""
    batch, m, n, k = sizes

    def tiles(tile: Tile) -> Expr:
        return batch * ceil_div(m, tile.m) * ceil_div(n, tile.n)

    def by(tile: Tile) -> None:
        name = instance("gemm", (TYPES[dtype], tile.name, *options))
        launch(name, pointers, (*steps, m, n, k), tiles(tile), tile.threads, tile.shared_bytes)

    with T.If(m <= index(FEW_ROWS.m)):
        with T.Then():
            if few is None:
                by(FEW_ROWS)
            else:
                few()
        with T.Else(), T.If(tiles(LARGE) < index(_ENOUGH_BLOCKS)):
            with T.Then():
                by(SMALL)
            with T.Else():
                by(LARGE)
