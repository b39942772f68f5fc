"""Loops along one row: vectors, and the elements that are left over."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from .prim_func import Expr, div, index, let, load, local, serial, store, vector
from .vector_math import reduce_lanes


def over(n: int | Expr, lanes: int, body: Callable[[Expr, int], None]) -> None:
    """Run ``body`` at each vector of a row, and at each element that is left over."""
    whole, left = _split(n, lanes)
    with serial(whole) as j:
        body(j * index(lanes), lanes)
    if left is not None:
        with serial(left) as j:
            body(whole * index(lanes) + j, 1)


def _split(n: int | Expr, lanes: int) -> tuple[Expr, Expr | None]:
    """The whole vectors of a row, and the elements left over (None if there never are any)."""
    size = n if isinstance(n, int) else None
    if isinstance(n, tirx.IntImm):
        size = int(n)
    if size is not None:
        return index(size // lanes), index(size % lanes) if size % lanes else None
    whole = let(div(n, lanes))
    return whole, n - whole * index(lanes)


def reduce(
    n: int | Expr,
    lanes: int,
    identity: float,
    combine: Callable[[Expr, Expr], Expr],
    value: Callable[[Expr, int], Expr],
) -> Expr:
    """Combine ``value`` over a row to a scalar: a vector of partial results, then those."""
    partial = {lanes: local((lanes,)), 1: local((1,))} if lanes > 1 else {1: local((1,))}
    for width, buffer in partial.items():
        store(buffer, vector(identity, width), 0, lanes=width)

    def step(j: Expr, width: int) -> None:
        buffer = partial[width]
        store(
            buffer,
            combine(load(buffer, 0, lanes=width), value(j, width)),
            0,
            lanes=width,
        )

    over(n, lanes, step)
    across = reduce_lanes(load(partial[lanes], 0, lanes=lanes), combine, lanes)
    return combine(across, load(partial[1], 0, lanes=1))
