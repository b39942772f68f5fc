"""Convolutions of groups that make few output channels each, which lie side by side in a vector.

A vector of outputs is that of several groups; what its lanes multiply is picked of one of inputs,
each lane's from its own group. Some pixels go together, which share the vectors of the weight.
"""

from __future__ import annotations

from tvm import tirx

from ..targets import CpuTarget
from .conv_weights import Convolution, Write
from .half import load_wide
from .prim_func import (
    FLOAT,
    Expr,
    div,
    index,
    let,
    load,
    local,
    mod,
    parallel,
    serial,
    store,
    vector,
)
from .row import over

_PIXELS = 4  # that use a vector of a weight together
_UNROLLED = 64  # multiply-adds of one pixel and vector


def emit_by_vectors(
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
    """Lines in parallel; in each, some pixels at a time, and of those vectors of output channels."""
    (sy, sx), (dy, dx), c = conv.stride, conv.dilation, conv.channels
    height, width = conv.kernel
    each, inputs = conv.group_filters, conv.group_channels

    def pixels_at(task: Expr, source: Expr, pixel: Expr, count: int) -> None:
        result = let((task * wo + pixel) * index(conv.filters))
        start = let(source + pixel * index(sx * c))

        def some(channel: Expr, lanes: int) -> None:
            sums = local((count * lanes,), FLOAT)
            for i in range(count):
                store(sums, vector(0.0, lanes), i * lanes, lanes=lanes)
            first = let(start + div(channel, each) * index(inputs))

            def add(i: int, value: Expr, factor: Expr) -> None:
                at = i * lanes
                store(sums, load(sums, at, lanes=lanes) + value * factor, at, lanes=lanes)

            def line(ky: Expr) -> None:
                begin = let(first + ky * index(dy) * row)
                for kx in range(width):
                    factors = [
                        let(load_wide(weight, ky, kx, i, channel, lanes=lanes))
                        for i in range(inputs)
                    ]
                    for i in range(count):
                        at = begin + index((kx * dx + i * sx) * c)
                        values = _spread(x, at, each, inputs, lanes)
                        for value, factor in zip(values, factors, strict=True):
                            add(i, value, factor)

            if height * width * inputs <= _UNROLLED:
                for ky in range(height):
                    line(index(ky))
            else:
                with serial(height) as ky:
                    line(ky)
            for i in range(count):
                at = let(result + index(i * conv.filters) + channel)
                write(load(sums, i * lanes, lanes=lanes), channel, at, lanes)

        over(conv.filters, max(target.lanes, each), some, rest=each)

    with parallel(n * ho) as task:
        item, line = let(div(task, ho), "item"), let(mod(task, ho), "line")
        source = let((item * h + line * index(sy)) * row, "source")
        blocks = let(div(wo, _PIXELS), "blocks")
        with serial(blocks) as block:
            pixels_at(task, source, let(block * index(_PIXELS)), _PIXELS)
        with serial(wo - blocks * index(_PIXELS)) as pixel:
            pixels_at(task, source, let(blocks * index(_PIXELS) + pixel), 1)


def _spread(x: tirx.Buffer, at: Expr, each: int, inputs: int, lanes: int) -> list[Expr]:
    """For each input channel of a group, a vector of it: in each lane, that of the lane's own group."""
    if each == inputs == 1:
        return [load_wide(x, at, lanes=lanes)]
    if lanes == each:  # one group
        return [vector(load_wide(x, at + index(i), lanes=1), lanes) for i in range(inputs)]
    read = let(load_wide(x, at, lanes=lanes // each * inputs))
    copies = -(-each // inputs)  # TVM takes no more indices than there are elements
    return [
        tirx.Shuffle(
            [read] * copies, [tirx.IntImm("int32", j // each * inputs + i) for j in range(lanes)]
        )
        for i in range(inputs)
    ]
