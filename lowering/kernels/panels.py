"""Panels of a weight that is stored in few bits, made float32 once for many rows.

A tile that widens what it multiplies does so for its own rows alone. Where several tiles read the same
columns, these are written out as float32 for all of them, by the first tile or before it: into memory
of the thread that lies in its cache, as a panel of float32 would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import DataType, tirx

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
_SHORT = 192  # steps of k for which a panel of float32 takes half of the level-one cache
_HELD_BYTES = 640 * 1024  # a panel of more leaves the level-two cache no room for the next
_FRACTION = 16  # bits of a number of lines behind the point


def is_narrow(packed: tirx.Buffer) -> bool:
    return str(packed.dtype) != FLOAT


@dataclass(frozen=True)
class Turn:
    """Which panel a task multiplies with which part of the rows, and what of the rows the same thread
    takes with that panel: it is part ``begin`` of ``of`` parts."""

    panel: Expr
    part: Expr
    begin: Expr
    of: Expr


def turn(task: Expr, panels: int, parts: Expr, by_panel: Expr) -> Turn:
    """The order of ``panels`` times ``parts`` tasks, which threads take in pieces that hang together.

    ``by_panel``, all parts come before the next panel: then threads read different panels, each of
    them once, but all of the rows for each. Else all panels come before the next part.
    """
    return Turn(
        panel=hidden(select(by_panel, div(task, parts), mod(task, panels))),
        part=hidden(select(by_panel, mod(task, parts), div(task, panels))),
        begin=hidden(select(by_panel, mod(task, parts), index(0))),
        of=hidden(select(by_panel, parts, index(1))),
    )


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


def _together(lanes: int) -> int:
    """How many steps of k a round of the innermost loop takes. Where a step is short, two: requests and
    the counting of a round would be too much beside one."""
    return 1 if 2 * lanes >= PANEL else 2


def asking_steps(
    length: int,
    lanes: int,
    ask: Callable[[Expr], None],
    near: Callable[[Expr], None],
    step: Callable[[Expr], None],
) -> None:
    """The innermost loop, over ``length`` steps: ``ask`` once in a round, given the first of its steps
    (as `ask_next` gives it), ``near`` and ``step`` at each."""
    together = _together(lanes)
    with serial(length // together) as group:
        begin = let(group * index(together))
        ask(begin)
        for i in range(together):
            near(begin + index(i))
            step(begin + index(i))
    for k in range(length // together * together, length):
        step(index(k))


def ask_next(
    packed: tirx.Buffer, depth: int, lanes: int, turn: Turn, block: Expr, blocks: Expr
) -> Callable[[Expr], None] | None:
    """Ask for the panel after this one, while ``blocks`` blocks of a task (two at least) pass over
    this: each asks for its share of lines, so that they come from far away while the core multiplies.

    Returns what emits the requests of a round of `asking_steps`; None where the level-two cache has no
    room for two panels, or where the level-one cache holds one.
    """
    if depth <= _SHORT or depth * PANEL * DataType(packed.dtype).itemsize > _HELD_BYTES:
        return None
    steps = _together(lanes)
    stride = LINE_BYTES // DataType(packed.dtype).itemsize
    lines = max(1, steps * PANEL // stride)  # of the panel, in so many steps
    block, blocks = turn.begin * blocks + block, let(turn.of * blocks)
    share = div(block * index(depth * lines // steps), blocks)
    place = hidden((turn.panel + index(1)) * index(depth * PANEL) + share * index(stride))
    step = hidden(div(index((lines << _FRACTION) // steps), blocks))

    def ask(k: Expr) -> None:
        line = let(place + (k * step >> index(_FRACTION)) * index(stride))
        for i in range(max(1, lines // 2)):  # what each of two blocks asks for meanwhile
            prefetch(packed, index(0), index(0), line + index(i * stride))

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
