"""Panels of a weight that is stored in few bits, made float32 once for many rows.

A tile that widens what it multiplies does so for its own rows alone. Where several tiles read the same
columns, these are written out as float32 for all of them, by the first tile or before it: into memory
of the thread that lies in its cache, as a panel of float32 would.
"""

from __future__ import annotations

from tvm import DataType, tirx

from .half import load_wide
from .prim_func import FLOAT, Expr, index, prefetch, serial, store, workspace

LINE_BYTES = 64
AHEAD = 256  # steps of k that a weight is asked for before it is used: it comes from far away


def is_narrow(packed: tirx.Buffer) -> bool:
    return str(packed.dtype) != FLOAT


def ask_ahead(packed: tirx.Buffer, panel: Expr, k: Expr, first: Expr, width: int) -> None:
    """Ask for ``width`` columns of a panel ``[panels, k, columns]``, from ``first`` on, some steps of k
    before they are used; at the end of a panel that is the beginning of the next."""
    per_line = LINE_BYTES // DataType(packed.dtype).itemsize
    for column in range(0, width, per_line):
        prefetch(packed, panel, k + index(AHEAD), first + index(column))


def widened(
    packed: tirx.Buffer, panel: Expr, depth: int, first: Expr, width: int, lanes: int
) -> tirx.Buffer:
    """``width`` columns of a panel, from ``first`` on, as float32 ``[depth, width]``."""
    wide = workspace((depth, width))
    with serial(depth) as k:
        ask_ahead(packed, panel, k, first, width)
        for column in range(0, width, lanes):
            value = load_wide(packed, panel, k, first + index(column), lanes=lanes)
            store(wide, value, k, column, lanes=lanes)
    return wide
