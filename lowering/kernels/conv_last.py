"""Convolution in two dimensions with the channels last, NHWC.

A tile of the result is a run of pixels of one line by some vectors of output channels, and adds up
products of input elements and panels of the weight: GEMM's own tile, with the pixels as its rows.
What a kernel line meets of an input line lies side by side there (the columns of the kernel, each
with all its channels), so that the sum runs over contiguous pieces of both. The panels are those of
GEMM, with the kernel's lines, columns and input channels as its k.

Where there is padding, the input is copied with its borders first. A depthwise convolution has no
product to share; it runs over vectors of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ...artifacts.recipes import Steps
from ..targets import CpuTarget
from . import gemm
from .prim_func import (
    FLOAT,
    Expr,
    ceil_div,
    dim,
    div,
    index,
    let,
    load,
    local,
    mod,
    parallel,
    param,
    prefetch,
    prim_func,
    serial,
    store,
    vector,
    workspace,
)
from .row import over
from .tile import PANEL, accumulate, finish_tile, row_blocks
from .vector_math import activate

_ENOUGH_TASKS = 32  # there are so many, for the cores to share, if the lines allow
_LINE_FLOATS = 16  # of one cache line


@dataclass(frozen=True)
class Convolution:
    """What is fixed at export. ``activation`` comes after the sum with the residual."""

    channels: int
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    depthwise: bool = False
    bias: bool = False
    residual: bool = False
    activation: str | None = None

    @property
    def runs(self) -> tuple[int, int]:
        """How many contiguous pieces a kernel line has, and of how many elements."""
        if self.dilation[1] == 1:
            return 1, self.kernel[1] * self.channels
        return self.kernel[1], self.channels


def packing(shape: Sequence[int], *, depthwise: bool) -> Steps:
    """How the weight ``[o, i, kh, kw]`` becomes what the kernel reads, on every CPU level: GEMM's
    panels, or ``[kh, kw, o]`` where it is depthwise."""
    filters, channels, height, width = shape
    if depthwise:
        return (("reshape", (filters, height, width)), ("transpose", (1, 2, 0)))
    flat = (filters, height * width * channels)
    return (("transpose", (0, 2, 3, 1)), ("reshape", flat), *gemm.PACKING)


def packed_shape(conv: Convolution) -> tuple[int, ...]:
    if conv.depthwise:
        return (*conv.kernel, conv.filters)
    return gemm.packed_shape(conv.filters, conv.kernel[0] * conv.kernel[1] * conv.channels)


def conv2d(conv: Convolution, target: CpuTarget) -> tirx.PrimFunc:
    """Y = act(conv(X, W) + bias + residual) in float32, for any batch, height and width.

    Parameters: X ``[n, h, w * channels]``, the weight as ``pack`` gives it, bias ``[filters]`` and
    residual (as Y) where asked for, Y ``[n, ho, wo, filters]``. Padding is of zeros, the same on
    both sides.
    """

    def declare() -> Callable[[], None]:
        n, h, row, ho, wo = (dim(None, name) for name in ("n", "h", "row", "ho", "wo"))
        x = param("X", (n, h, row))
        weight = param("W", packed_shape(conv))
        bias = param("bias", (conv.filters,)) if conv.bias else None
        residual = param("residual", (n, ho, wo, conv.filters)) if conv.residual else None
        y = param("Y", (n, ho, wo, conv.filters))

        def write_to(results: list[tirx.Buffer]) -> Write:
            def write(value: Expr, channel: Expr, at: Expr, lanes: int) -> None:
                if bias is not None:
                    value = value + load(bias, channel, lanes=lanes)
                if residual is not None:
                    value = value + load(results[1], at, lanes=lanes)
                value = activate(conv.activation, value, lanes)
                store(results[0], value, at, lanes=lanes)

            return write

        def body() -> None:
            write = write_to([_flat(each) for each in (y, residual) if each is not None])
            lines, wide = h, row
            source = _flat(x)
            if any(conv.padding):
                lines = let(h + index(2 * conv.padding[0]), "lines")
                wide = let(row + index(2 * conv.padding[1] * conv.channels), "wide")
                source = _padded(conv, source, n, h, row, lines, wide, target)
            emit = _depthwise if conv.depthwise else _dense
            emit(conv, source, weight, n, lines, wide, ho, wo, target, write)

        return body

    return prim_func(f"conv_last_{conv.channels}_{conv.filters}", declare)


Write = Callable[[Expr, Expr, Expr, int], None]  # value, channel, place in Y, lanes


def _flat(buffer: tirx.Buffer) -> tirx.Buffer:
    """The same memory along one axis. TVM takes exponential time over the indices of a buffer with
    several dynamic sizes; there the kernel counts by itself."""
    size = T.int64(1)
    for extent in buffer.shape:
        size = size * extent
    return T.decl_buffer((size,), buffer.dtype, data=buffer.data)


def _hidden(value: Expr) -> Expr:
    """A number that TVM does not look into: it takes exponential time over what is made of several
    dynamic sizes."""
    slot = local((1,), "int64")
    store(slot, value, 0, lanes=1)
    return let(slot[0])


def _padded(
    conv: Convolution,
    x: tirx.Buffer,
    n: Expr,
    h: Expr,
    row: Expr,
    lines: Expr,
    wide: Expr,
    target: CpuTarget,
) -> tirx.Buffer:
    """The input with its borders, ``[n, lines, wide]``, along one axis."""
    (py, px), c = conv.padding, conv.channels
    padded = workspace((n * lines * wide,))
    with parallel(n * lines) as task:
        item, line = let(div(task, lines)), let(mod(task, lines))
        start = let(task * wide)

        def zeros(first: Expr, count: Expr) -> None:
            over(
                count,
                target.lanes,
                lambda j, lanes: store(padded, vector(0.0, lanes), first + j, lanes=lanes),
            )

        with T.If(tirx.all(line >= index(py), line < h + index(py))):
            with T.Then():
                source = let((item * h + line - index(py)) * row)
                inner = let(start + index(px * c))
                if px:
                    zeros(start, index(px * c))
                    zeros(let(inner + row), index(px * c))
                over(
                    row,
                    target.lanes,
                    lambda j, lanes: store(
                        padded, load(x, source + j, lanes=lanes), inner + j, lanes=lanes
                    ),
                )
            with T.Else():
                zeros(start, wide)
    return padded


def _dense(
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
    """Chunks of lines by panels in parallel; in each, strips of two vectors by lines.

    Short lines go two at a time, or a tile would be too small for what it reads of the weight.
    """
    panels = packed_shape(conv)[0]
    chunks = T.min(ho, div(index(-(-_ENOUGH_TASKS // panels)) + n - index(1), n))
    chunks = let(T.max(chunks, index(1)), "chunks")
    width = 2 * target.lanes
    short = target.tile_rows // 2
    with parallel(n * chunks * index(panels)) as task:
        panel = _hidden(mod(task, panels))
        chunk = _hidden(mod(div(task, panels), chunks))
        item = _hidden(div(task, index(panels) * chunks))
        begin = _hidden(div(ho * chunk, chunks))
        lines = _hidden(div(ho * (chunk + 1), chunks) - begin)
        left = index(conv.filters) - panel * index(PANEL)
        strips = T.min(index(PANEL // width), ceil_div(left, width))

        def tile(line: Expr, pixel: Expr, strip: Expr, count: tuple[int, int]) -> None:
            first = let(strip * index(width), "first")
            sources = [
                _hidden((item * h + (line + index(i)) * index(conv.stride[0])) * row)
                for i in range(count[0])
            ]
            results = [
                _hidden(((item * ho + line + index(i)) * wo + pixel) * index(conv.filters))
                for i in range(count[0])
            ]
            place = (sources, results, row, pixel, panel, first)
            _tile(conv, x, weight, place, count, target, write)

        pairs = _hidden(T.Select(wo <= index(short), div(lines, 2), index(0)))
        with serial(pairs) as pair, serial(strips) as strip:
            line = let(begin + pair * index(2), "line")
            for count in range(1, short + 1):
                with T.If(wo == index(count)), T.Then():
                    tile(line, index(0), strip, (2, count))
        with serial(lines - pairs * index(2)) as i, serial(strips) as strip:
            line = let(begin + pairs * index(2) + i, "line")
            row_blocks(
                index(0),
                wo,
                1,
                target.tile_rows,
                lambda pixel, count: tile(line, pixel, strip, (1, count)),
            )


def _tile(
    conv: Convolution,
    x: tirx.Buffer,
    weight: tirx.Buffer,
    place: tuple[list[Expr], list[Expr], Expr, Expr, Expr, Expr],
    count: tuple[int, int],
    target: CpuTarget,
    write: Write,
) -> None:
    """Some lines by some pixels of each, by two vectors of a panel.

    ``place``: where the lines begin in the input and in the result, the length of an input line,
    the first pixel, the panel, and the column in it.
    """
    lines_in, lines_out, row, pixel, panel, first = place
    sx, (dy, dx), c = conv.stride[1], conv.dilation, conv.channels
    lanes = target.lanes
    runs, length = conv.runs
    lines, pixels = count

    def along(step: Callable[..., None]) -> None:
        with serial(conv.kernel[0]) as ky, serial(runs) as run:
            start = let(ky * index(dy) * row + pixel * index(sx * c) + run * index(dx * c), "start")
            sources = [let(line + start) for line in lines_in]
            k0 = let((ky * index(runs) + run) * index(length), "k0")
            with serial(length) as j:
                k = k0 + j
                for column in range(0, 2 * lanes, _LINE_FLOATS):
                    prefetch(weight, panel, k + index(gemm.AHEAD), first + index(column))
                step(sources, j, k)

    def pixel_at(i: int, sources: list[Expr], at: Expr, k: Expr) -> Expr:
        down, right = divmod(i, pixels)
        return x[sources[down] + index(right * sx * c) + at]

    def panel_at(j: int, sources: list[Expr], at: Expr, k: Expr) -> Expr:
        return load(weight, panel, k, first + index(j * lanes), lanes=lanes)

    sums = accumulate(lines * pixels, 2, lanes, along, pixel_at, panel_at)
    channel = let(panel * index(PANEL) + first, "channel")

    def finished(value: Expr, i: Expr, j: Expr, lanes: int) -> None:
        if lines == 1:
            line, right = lines_out[0], i
        else:
            line, right = T.Select(i < index(pixels), *lines_out), mod(i, pixels)
        at = let(line + right * index(conv.filters) + channel + j)
        write(value, channel + j, at, lanes)

    edge = None if conv.filters % (2 * lanes) == 0 else index(conv.filters) - channel
    light = conv.activation in (None, "relu")
    finish_tile(sums, lines * pixels, 2, lanes, edge, finished, unroll=light)


def _depthwise(
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
    """Lines in parallel; in each, the pixels, and in each of those vectors of channels."""
    (sy, sx), (dy, dx), c = conv.stride, conv.dilation, conv.channels
    with parallel(n * ho) as task:
        item, line = let(div(task, ho), "item"), let(mod(task, ho), "line")
        source = let((item * h + line * index(sy)) * row, "source")
        with serial(wo) as pixel:
            result = let((task * wo + pixel) * index(conv.filters))
            starts = [
                let(source + index(ky * dy) * row + pixel * index(sx * c))
                for ky in range(conv.kernel[0])
            ]

            def some(channel: Expr, lanes: int) -> None:
                total = local((lanes,), FLOAT)
                store(total, vector(0.0, lanes), 0, lanes=lanes)
                for ky in range(conv.kernel[0]):
                    for kx in range(conv.kernel[1]):
                        value = load(x, starts[ky] + index(kx * dx * c) + channel, lanes=lanes)
                        value = value * load(weight, ky, kx, channel, lanes=lanes)
                        store(total, load(total, 0, lanes=lanes) + value, 0, lanes=lanes)
                write(load(total, 0, lanes=lanes), channel, let(result + channel), lanes)

            over(conv.filters, target.lanes, some)
