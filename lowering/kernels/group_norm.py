"""The statistics of a group norm over images with their channels last."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .prim_func import (
    Expr,
    ceil_div,
    div,
    index,
    let,
    load,
    local,
    mod,
    parallel_tasks,
    serial,
    store,
    vector,
)
from .row import over
from .vector_math import add, reduce_lanes

_BLOCK = 64  # pixels that are summed to partial results before those are added up


def emit_statistics(
    x: tirx.Buffer,
    center: tirx.Buffer,
    scale: tirx.Buffer,
    *,
    items: Expr,
    pixels: Expr,
    groups: int,
    eps: float,
    target: CpuTarget,
) -> None:
    """The mean of each group and 1 / sqrt(variance + eps), in float32, once for each of its channels.

    ``x`` is ``[items, pixels, channels]``, ``center`` and ``scale`` are ``[items, channels]``. The
    variance is taken about the mean, in a second pass, so that nothing cancels.
    """
    of_group = int(x.shape[2]) // groups
    lanes = min(target.lanes, 1 << (of_group.bit_length() - 1))

    def group(task: Expr) -> None:
        item, first = let(div(task, groups)), let(mod(task, groups) * index(of_group))
        count = let(T.Cast("float32", pixels * index(of_group)))

        def total(value: Callable[[Expr, int], Expr]) -> Expr:
            whole = local((1,))
            store(whole, T.float32(0.0), 0, lanes=1)
            with serial(ceil_div(pixels, _BLOCK)) as block:
                begin = let(block * index(_BLOCK))
                partial = {width: local((width,)) for width in {lanes, 1}}
                for width, buffer in partial.items():
                    store(buffer, vector(0.0, width), 0, lanes=width)
                with serial(T.min(pixels - begin, index(_BLOCK))) as step:
                    pixel = let(begin + step)

                    def more(j: Expr, width: int) -> None:
                        read = load(x, item, pixel, first + j, lanes=width)
                        summed = load(partial[width], 0, lanes=width) + value(read, width)
                        store(partial[width], summed, 0, lanes=width)

                    over(of_group, lanes, more)
                for width, buffer in partial.items():
                    summed = reduce_lanes(load(buffer, 0, lanes=width), add, width)
                    store(whole, whole[0] + summed, 0, lanes=1)
            return let(whole[0])

        mean = let(total(lambda read, _: read) / count)

        def square(read: Expr, width: int) -> Expr:
            away = let(read - vector(mean, width))
            return away * away

        spread = total(square) / count
        factor = let(T.float32(1.0) / T.sqrt(spread + T.float32(eps)))
        with serial(of_group) as channel:
            store(center, mean, item, first + channel, lanes=1)
            store(scale, factor, item, first + channel, lanes=1)

    parallel_tasks(items * index(groups), items * pixels * index(groups * of_group), group)
