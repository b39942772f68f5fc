"""Bits for random numbers: see `lowering.draws`, whose Philox this is, element by element."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..context import Context
from ..draws import HOLDS, LOW, MOST_DRAWS, MULTIPLIERS, NEXT_CALL, ROUNDS, WEYL, WORDS
from ..kernels.prim_func import ceil_div, index, let, parallel_tasks, serial, store
from ..symbols import Size
from ..tensor import Tensor
from .check import required
from .registry import converter

_TASK = 4096  # elements


@converter(str(WORDS))
def convert_words(ctx: Context, generator: Tensor, count: Size, draw: int) -> Tensor:
    def numbered(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        of_generator = tensors[0](tirx.min(position[0], index(1)))
        return tirx.Select(position[0] < index(2), of_generator, index(draw))

    # A kernel of its own: fused, each use of a word would compute it again. It reads which draw it
    # is, so that there is one for all draws.
    def emit(scope: Any, inputs: Any, results: Any) -> None:
        total = scope.size(count)
        seed, call, draw = (let(inputs[0][index(at)].astype("uint64")) for at in (0, 1, 2))

        def task(number: Any) -> None:
            start = let(number * index(_TASK))
            with serial(tirx.min(index(_TASK), total - start)) as place:
                element = let(start + place)
                words = _words(element.astype("uint64"), draw, call, seed)
                store(results[0], words, element, lanes=1)

        parallel_tasks(ceil_div(total, _TASK), total, task)

    place = ctx.compute("draw", [generator], (3,), "int64", numbered)
    return ctx.procedure("words", [place], [((count,), "int64")], emit)[0]


def _words(element: Any, draw: Any, call: Any, seed: Any) -> Any:
    element = let(element)
    a, b = element & _word(LOW), (element >> _word(32)) * _word(MOST_DRAWS) + draw
    c, d = call & _word(LOW), call >> _word(32)
    low, high = seed & _word(LOW), seed >> _word(32)
    for _ in range(ROUNDS):
        first, second = let(a * _word(MULTIPLIERS[0])), let(c * _word(MULTIPLIERS[1]))
        a, b, c, d = (
            let((second >> _word(32)) ^ b ^ low),
            second & _word(LOW),
            let((first >> _word(32)) ^ d ^ high),
            first & _word(LOW),
        )
        low, high = (
            let((k + _word(w)) & _word(LOW)) for k, w in zip((low, high), WEYL, strict=True)
        )
    return (a | (b << _word(32))).astype("int64")


def _word(value: int) -> Any:
    return tirx.const(value, "uint64")


@converter(str(NEXT_CALL))
def convert_next_call(ctx: Context, generator: Tensor) -> Tensor:
    def element(_: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        return tensors[0](*position) + position[0].astype("int64")  # [seed, call] + [0, 1]

    return ctx.compute("next_call", [generator], generator.shape, generator.dtype, element)


@converter(str(HOLDS))
def convert_holds(ctx: Context, values: Tensor, holds: Tensor, what: str) -> Tensor:
    return required(ctx, values, holds, ctx.asserts(what))
