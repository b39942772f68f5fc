"""Panels of a weight that is stored in few bits, made float32 once for many rows.

A tile that widens what it multiplies does so for its own rows alone. Where several tiles read the same
columns, these are written out as float32 for all of them, by the first tile or before it: into memory
of the thread that lies in its cache, as a panel of float32 would.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import DataType, tirx
from tvm.tirx.script.builder import ir as T

from .half import load_wide
from .prim_func import (
    FLOAT,
    Expr,
    div,
    hidden,
    index,
    let,
    mod,
    prefetch,
    select,
    serial,
    store,
    workspace,
)
from .tile import PANEL

LINE_BYTES = 64
AHEAD = 256  # steps of k that a weight is asked for before it is used: it comes from far away
NEAR = 12  # the same, where it lies in the level-two cache
SHORT = 192  # steps of k for which a panel of float32 takes half of the level-one cache
STEPS = 2  # of k in a round of the innermost loop, which pays for the requests
_FRACTION = 16  # bits of a number of lines behind the point


def is_narrow(packed: tirx.Buffer) -> bool:
    return str(packed.dtype) != FLOAT


def ask_ahead(packed: tirx.Buffer, panel: Expr, k: Expr, first: Expr, width: int) -> None:
    """Ask for ``width`` columns of a panel ``[panels, k, columns]``, from ``first`` on, some steps of k
    before they are used; at the end of a panel that is the beginning of the next."""
    per_line = LINE_BYTES // DataType(packed.dtype).itemsize
    for column in range(0, width, per_line):
        prefetch(packed, panel, k + index(AHEAD), first + index(column))


def ask_near(columns: tirx.Buffer, *position: Expr, width: int) -> None:
    """Have ``width`` elements of a row, from the last of ``position`` on, in the level-one cache: they
    are `NEAR` rows ahead of what is multiplied, and in the level-two cache already."""
    *outer, row, first = position
    for column in range(0, width, LINE_BYTES // DataType(columns.dtype).itemsize):
        prefetch(columns, *outer, row + index(NEAR), first + index(column), cache=1)


def ask_next(
    packed: tirx.Buffer, depth: int, column: Expr, width: int, block: Expr, blocks: Expr
) -> Callable[[Expr, int], None]:
    """Ask for the ``width`` columns after those at ``column``, while ``blocks`` blocks of rows pass
    over these: each asks for its share of lines, so that they come from far away while the core
    multiplies. A block that is alone has its own columns to wait for, and asks for them some steps
    ahead, as `ask_ahead` does.

    Returns what emits the requests of some steps of k, given the first and their number, an even one.
    """
    per_line = LINE_BYTES // DataType(packed.dtype).itemsize
    per_step = max(1, width // per_line)
    stride = per_line if width >= PANEL else PANEL  # from one line of the columns to the next
    alone = blocks == index(1)
    share = div(block * index(depth * per_step), blocks)
    first = let(select(alone, index(AHEAD * per_step), share))
    at = let(select(alone, column, column + index(width)))
    place = hidden(div(at, PANEL) * index(depth * PANEL) + mod(at, PANEL) + first * index(stride))
    step = hidden(div(index(per_step << _FRACTION), blocks))

    def request(line: Expr) -> None:
        prefetch(packed, index(0), index(0), place + line * index(stride))

    def ask(k: Expr, steps: int) -> None:
        lines = steps * per_step
        for i in range(0, lines, 2):  # of two blocks each needs half of the lines
            request((k + index(i // per_step)) * step >> index(_FRACTION))
        with T.If(alone), T.Then():
            for i in range(1, lines, 2):
                request(k * index(per_step) + index(i))

    return ask


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
