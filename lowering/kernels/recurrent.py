"""One direction of one recurrent layer: LSTM, GRU or RNN over any number of steps.

What the input adds to the gates is a matrix product over all steps at once, and is done before; here
is the loop over the steps. In each, the hidden state is multiplied by a weight that was packed at
export so that a panel of 32 columns holds all gates of some hidden units: the tile of a panel is all
that these units' cells need, and they are computed from it before it leaves the cache (as in Appleyard
et al., Optimizing Performance of Recurrent Neural Networks on GPUs, 2016).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ...artifacts.recipes import Steps
from ..targets import CpuTarget
from . import vector_math
from .half import load_wide
from .prim_func import (
    FLOAT,
    Expr,
    index,
    let,
    load,
    mod,
    parallel_tasks,
    serial,
    store,
    vector,
    workspace,
)
from .tile import PANEL, accumulate, along, row_blocks, spill

_MULTIPLY_ADDS = 16  # that cost as much as an element of `parallel_tasks`
_LANES = 8  # hidden units whose cells are computed together
_MOST_ROWS = 6


@dataclass(frozen=True)
class Cell:
    """What kind of layer it is: how many gates, and how many columns of a panel each of them gets."""

    name: str
    gates: int

    @property
    def units(self) -> int:
        """The hidden units of one panel."""
        return PANEL // (1 if self.gates == 1 else 4)


CELLS = {
    "lstm": Cell("lstm", 4),
    "gru": Cell("gru", 3),
    "rnn_tanh": Cell("rnn_tanh", 1),
    "rnn_relu": Cell("rnn_relu", 1),
}


def packing(cell: Cell) -> Steps:
    """How ``W_hh`` ``[gates * hidden, k]`` becomes ``[panels, k, 32]``, padded with zeros: a panel
    holds all gates of some hidden units."""
    return (("gate_panels", cell.gates, cell.units, PANEL),)


@dataclass(frozen=True)
class Operands:
    """The buffers of one layer. ``gates`` ``[steps, batch, gates * hidden]`` is what the input adds
    (with the batch first if ``batch_first``), ``weight`` the packed ``W_hh``, ``bias`` that of a GRU's
    hidden state, ``projection`` an LSTM's ``W_hr`` ``[panels, hidden, 32]``; ``first`` and ``last`` are
    the hidden state, ``first_cell`` and ``last_cell`` an LSTM's cells. The weights may be halves."""

    gates: tirx.Buffer
    weight: tirx.Buffer
    bias: tirx.Buffer | None
    projection: tirx.Buffer | None
    first: tirx.Buffer
    first_cell: tirx.Buffer | None
    output: tirx.Buffer
    last: tirx.Buffer
    last_cell: tirx.Buffer | None


def emit_layer(
    cell: Cell,
    operands: Operands,
    *,
    steps: Expr,
    batch: Expr,
    hidden: int,
    width: int,
    batch_first: bool,
    reverse: bool,
    target: CpuTarget,
    dtype: str = FLOAT,
) -> None:
    """Write the loop. ``width`` is that of the hidden state: ``hidden``, or what it is projected to."""
    o = operands
    states = workspace((2, batch, width), dtype)  # the hidden state before a step, and after it
    open_cells = workspace((batch, hidden), dtype) if o.projection is not None else None
    lanes = target.lanes if dtype == FLOAT else target.lanes // 2
    vectors = PANEL // lanes
    tile_rows = max(1, min(_MOST_ROWS, 3 * target.registers // 4 // vectors))
    panels = -(-hidden // cell.units)

    def at(step: Expr, row: Expr) -> tuple[Expr, Expr]:
        return (row, step) if batch_first else (step, row)

    def put(value: Expr, step: Expr, after: Expr, row: Expr, unit: Expr, lanes: int) -> None:
        """One piece of the new hidden state."""
        store(states, value, after, row, unit, lanes=lanes)
        store(o.output, value, *at(step, row), unit, lanes=lanes)

    def product(
        source: tirx.Buffer,
        where: tuple[Expr, ...],
        depth: int,
        weight: tirx.Buffer,
        panel: Expr,
        row: Expr,
        rows: int,
    ) -> tirx.Buffer:
        sums = accumulate(
            rows,
            vectors,
            lanes,
            along(index(depth)),
            lambda i, k: source[(*where, row + index(i), k)],
            lambda j, k: load_wide(weight, panel, k, index(j * lanes), lanes=lanes),
            dtype,
        )
        return spill(sums, rows, vectors, lanes)

    def cells(step: Expr, before: Expr, after: Expr, panel: Expr) -> None:
        first_unit = let(panel * index(cell.units))

        def one(sums: tirx.Buffer, i: Expr, row: Expr, unit: Expr, lanes: int) -> None:
            """The cells of ``lanes`` hidden units, from the ``unit``-th of the panel on."""
            where = let(first_unit + unit)

            def given(gate: int) -> Expr:
                return load(o.gates, *at(step, row), where + index(gate * hidden), lanes=lanes)

            def added(gate: int) -> Expr:
                value = load(sums, i, unit + index(gate * cell.units), lanes=lanes)
                if o.bias is None:
                    return value
                return value + load(o.bias, where + index(gate * hidden), lanes=lanes)

            if cell.name == "lstm":
                assert o.last_cell is not None
                enter, forget, new, out = (let(given(g) + added(g)) for g in range(4))
                old = load(o.last_cell, row, where, lanes=lanes)
                state = let(
                    _sigmoid(forget, lanes) * old + _sigmoid(enter, lanes) * _tanh(new, lanes)
                )
                store(o.last_cell, state, row, where, lanes=lanes)
                value = let(_sigmoid(out, lanes) * _tanh(state, lanes))
            elif cell.name == "gru":
                reset = _sigmoid(let(given(0) + added(0)), lanes)
                update = let(_sigmoid(let(given(1) + added(1)), lanes))
                new = let(_tanh(let(given(2) + reset * added(2)), lanes))
                old = load(states, before, row, where, lanes=lanes)
                value = let((old - new) * update + new)
            else:
                total = let(given(0) + added(0))
                zero = vector(0.0, lanes, dtype)
                is_relu = cell.name == "rnn_relu"
                value = let(T.max(zero, total) if is_relu else _tanh(total, lanes))
            if open_cells is not None:
                store(open_cells, value, row, where, lanes=lanes)
            else:
                put(value, step, after, row, where, lanes)

        def tile(row: Expr, rows: int) -> None:
            sums = product(states, (before,), width, o.weight, panel, row, rows)
            left = let(index(hidden) - first_unit)

            def singly() -> None:
                count = let(T.min(left, index(cell.units)))
                with serial(rows) as i, serial(count) as unit:
                    one(sums, i, row + i, unit, 1)

            if dtype != FLOAT:
                singly()
                return
            with T.If(left >= index(cell.units)):
                with T.Then(), serial(rows) as i, serial(cell.units // _LANES) as piece:
                    one(sums, i, row + i, let(piece * index(_LANES)), _LANES)
                with T.Else():
                    singly()

        row_blocks(index(0), batch, 1, tile_rows, tile)

    def project(step: Expr, after: Expr, panel: Expr) -> None:
        assert open_cells is not None and o.projection is not None
        source, weight = open_cells, o.projection
        first = let(panel * index(PANEL))

        def tile(row: Expr, rows: int) -> None:
            sums = product(source, (), hidden, weight, panel, row, rows)
            with serial(rows) as i, serial(T.min(index(width) - first, index(PANEL))) as j:
                put(sums[i, j], step, after, row + i, first + j, 1)

        row_blocks(index(0), batch, 1, tile_rows, tile)

    def copy(
        target: tirx.Buffer,
        to: tuple[Expr, ...],
        source: tirx.Buffer,
        where: tuple[Expr, ...],
        size: int,
    ) -> None:
        with serial(batch) as row, serial(size) as unit:
            store(target, source[(*where, row, unit)], *to, row, unit, lanes=1)

    copy(states, (index(0),), o.first, (), width)
    if o.last_cell is not None:
        assert o.first_cell is not None
        copy(o.last_cell, (), o.first_cell, (), hidden)
    with serial(steps) as turn:
        step = let(steps - index(1) - turn) if reverse else turn
        before = let(mod(turn, 2))
        after = let(index(1) - before)
        cost = batch * index(panels * PANEL * width // _MULTIPLY_ADDS)
        parallel_tasks(panels, cost, lambda panel: cells(step, before, after, panel))
        if o.projection is not None:
            groups = -(-width // PANEL)
            cost = batch * index(groups * PANEL * hidden // _MULTIPLY_ADDS)
            parallel_tasks(groups, cost, lambda panel: project(step, after, panel))
    copy(o.last, (), states, (mod(steps, 2),), width)


def _sigmoid(x: Expr, lanes: int) -> Expr:
    if _is_double(x):
        one = tirx.const(1, "float64")
        return one / (one + tirx.exp(tirx.const(0, "float64") - x))
    return vector_math.sigmoid(x, lanes)


def _tanh(x: Expr, lanes: int) -> Expr:
    if _is_double(x):
        return tirx.call_pure_extern("float64", "tanh", x)
    return vector_math.tanh(x, lanes)


def _is_double(x: Expr) -> bool:
    return str(x.ty.dtype) == "float64"
