"""Convolutions as products: a run of pixels of one line by some vectors of output channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .conv_weights import Convolution, Write, packed_shape
from .panels import ask_ahead, ask_near, ask_next, asking_steps, is_narrow, turn, widened
from .prim_func import (
    Expr,
    ceil_div,
    div,
    hidden,
    index,
    let,
    load,
    mod,
    parallel,
    serial,
)
from .tile import PANEL, accumulate, finish_tile, numbered_blocks

_ENOUGH_TASKS = 32  # there are so many, for the cores to share, if the lines allow
_ENOUGH_WIDENING = 16  # fewer, where each of them makes a panel of float32 first


def emit_dense(
    conv: Convolution,
    x: tirx.Buffer,
    weight: tirx.Buffer,
    n: Expr,
    h: Expr,
    row: Expr,
    ho: Expr,
    wo: Expr,
    target: CpuTarget,
    write: Write,
) -> None:
    """Chunks of lines by panels in parallel; in each, strips of two vectors by lines. Of the weight and
    the input, threads share out the one that is larger.

    Short lines go two at a time, or a tile would be too small for what it reads of the weight.
    """
    panels, depth, _ = packed_shape(conv)
    of_group = panels // conv.groups
    enough = _ENOUGH_WIDENING if is_narrow(weight) else _ENOUGH_TASKS
    chunks = T.min(ho, div(index(-(-enough // panels)) + n - index(1), n))
    chunks = let(T.max(chunks, index(1)), "chunks")
    width = 2 * target.lanes
    short = target.tile_rows // 2
    heavy = n * h * row < index(panels * depth * PANEL)
    with parallel(n * chunks * index(panels)) as task:
        place = turn(task, panels, n * chunks, heavy)
        panel = place.panel
        chunk, item = hidden(mod(place.part, chunks)), hidden(div(place.part, chunks))
        begin = hidden(div(ho * chunk, chunks))
        lines = hidden(div(ho * (chunk + 1), chunks) - begin)
        group = hidden(div(panel, of_group)) if conv.groups > 1 else index(0)
        in_group = panel - group * index(of_group)
        left = let(index(conv.group_filters) - in_group * index(PANEL), "left")
        strips = T.min(index(PANEL // width), ceil_div(left, width))
        before = let(group * index(conv.group_filters) + in_group * index(PANEL), "before")
        wide = None
        if is_narrow(weight):
            wide = widened(weight, panel, depth, index(0), PANEL, target.lanes)

        def asking(block: Expr, blocks: Expr) -> Callable[[Expr], None] | None:
            return ask_next(weight, depth, target.lanes, place, block, blocks)

        def tile(
            line: Expr,
            pixel: Expr,
            strip: Expr,
            count: tuple[int, int],
            ask: Callable[[Expr], None] | None,
        ) -> None:
            first = let(strip * index(width), "first")
            columns = let(left - first, "columns")
            sources = [
                hidden(
                    (item * h + (line + index(i)) * index(conv.stride[0])) * row
                    + group * index(conv.group_channels)
                )
                for i in range(count[0])
            ]
            results = [
                hidden(((item * ho + line + index(i)) * wo + pixel) * index(conv.filters))
                for i in range(count[0])
            ]
            channel = let(before + first)
            at = _Place(sources, results, row, pixel, panel, wide, first, channel, columns, ask)
            rest = conv.group_filters % width
            if not 0 < rest <= target.lanes:
                _tile(conv, x, weight, at, (*count, 2), target, write)
                return
            with T.If(columns > index(target.lanes)):
                with T.Then():
                    _tile(conv, x, weight, at, (*count, 2), target, write)
                with T.Else():
                    _tile(conv, x, weight, at, (*count, 1), target, write)

        pairs = hidden(T.Select(wo <= index(short), div(lines, 2), index(0)))
        with serial(pairs) as pair, serial(strips) as strip:
            line = let(begin + pair * index(2), "line")
            ask = asking(pair * strips + strip, pairs * strips)
            for count in range(1, short + 1):
                with T.If(wo == index(count)), T.Then():
                    tile(line, index(0), strip, (2, count), ask)
        rest = let(lines - pairs * index(2))
        with serial(rest) as i, serial(strips) as strip:
            line = let(begin + pairs * index(2) + i, "line")

            def tile_of(block: Expr, blocks: Expr) -> Callable[[Expr, int], None]:
                before = (i * strips + strip) * blocks + block
                ask = asking(before, rest * strips * blocks)
                return lambda pixel, count: tile(line, pixel, strip, (1, count), ask)

            numbered_blocks(index(0), wo, 1, target.tile_rows, tile_of)


@dataclass(frozen=True)
class _Place:
    """Where a tile lies: where its lines begin in the input and in the result, the length of an input
    line, the first pixel; the panel, as it is stored and maybe ``widened``, the column in it, the
    output channel, how many columns of the group there are from there on, and what asks for the
    panel to come, where that is far away."""

    sources: list[Expr]
    results: list[Expr]
    row: Expr
    pixel: Expr
    panel: Expr
    wide: tirx.Buffer | None
    first: Expr
    channel: Expr
    columns: Expr
    ask: Callable[[Expr], None] | None


def _tile(
    conv: Convolution,
    x: tirx.Buffer,
    weight: tirx.Buffer,
    place: _Place,
    count: tuple[int, int, int],
    target: CpuTarget,
    write: Write,
) -> None:
    """Some lines by some pixels of each, by one or two vectors of a panel."""
    sx, (dy, dx), c = conv.stride[1], conv.dilation, conv.channels
    lanes = target.lanes
    runs, length = conv.runs
    lines, pixels, vectors = count

    def along(step: Callable[..., None]) -> None:
        with serial(conv.kernel[0]) as ky, serial(runs) as run:
            start = ky * index(dy) * place.row + place.pixel * index(sx * c) + run * index(dx * c)
            start = let(start, "start")
            sources = [let(line + start) for line in place.sources]
            k0 = let((ky * index(runs) + run) * index(length), "k0")

            if place.ask is None:
                with serial(length) as j:
                    if place.wide is None:
                        ask_ahead(weight, place.panel, k0 + j, place.first, vectors * lanes)
                    step(sources, j, k0 + j)
                return

            def near(j: Expr) -> None:
                if place.wide is not None:
                    ask_near(place.wide, k0 + j, place.first, width=vectors * lanes)
                else:
                    ask_near(weight, place.panel, k0 + j, place.first, width=vectors * lanes)

            ask = place.ask
            asking_steps(
                length,
                lanes,
                lambda j: ask(k0 + j),
                near,
                lambda j: step(sources, j, k0 + j),
            )

    def pixel_at(i: int, sources: list[Expr], at: Expr, k: Expr) -> Expr:
        down, right = divmod(i, pixels)
        return x[sources[down] + index(right * sx * c) + at]

    def panel_at(j: int, sources: list[Expr], at: Expr, k: Expr) -> Expr:
        column = place.first + index(j * lanes)
        if place.wide is not None:
            return load(place.wide, k, column, lanes=lanes)
        return load(weight, place.panel, k, column, lanes=lanes)

    sums = accumulate(lines * pixels, vectors, lanes, along, pixel_at, panel_at)

    def finished(value: Expr, i: Expr, j: Expr, lanes: int) -> None:
        if lines == 1:
            line, right = place.results[0], i
        else:
            line, right = T.Select(i < index(pixels), *place.results), mod(i, pixels)
        at = let(line + right * index(conv.filters) + place.channel + j)
        write(value, place.channel + j, at, lanes)

    rest = conv.group_filters % (2 * lanes)
    whole = rest == 0 or (rest == lanes if vectors == 1 else rest <= lanes)
    light = conv.activation in (None, "relu")
    edge = None if whole else place.columns
    finish_tile(sums, lines * pixels, vectors, lanes, edge, finished, unroll=light)
