"""Loops along one row: vectors, and the elements that are left over."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from .prim_func import Expr, div, index, let, load, local, serial, store, vector
from .vector_math import reduce_lanes


def over(n: int | Expr, lanes: int, body: Callable[[Expr, int], None], *, rest: int = 1) -> None:
    """Run ``body`` at each vector of a row, and at what is left over: ``rest`` elements at a time, of
    which ``n`` is a multiple."""
    whole, left = _split(n, lanes)
    with serial(whole) as j:
        body(j * index(lanes), lanes)
    if left is not None:
        with serial(div(left, rest)) as j:
            body(whole * index(lanes) + j * index(rest), rest)


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
    *,
    chains: int = 1,
) -> Expr:
    """Combine ``value`` over a row to a scalar: vectors of partial results, then those. One vector has
    to wait for what was added to it last; with so many ``chains`` there is something to do meanwhile.
    """
    if isinstance(n, tirx.IntImm):
        n = int(n)
    vectors, rest = local((lanes * chains,)), local((1,))
    for chain in range(chains):
        store(vectors, vector(identity, lanes), chain * lanes, lanes=lanes)
    store(rest, vector(identity, 1), 0, lanes=1)

    def add(j: Expr, width: int, chain: int = 0) -> None:
        buffer, at = (rest, 0) if width == 1 else (vectors, chain * lanes)
        combined = combine(load(buffer, at, lanes=width), value(j, width))
        store(buffer, combined, at, lanes=width)

    first: Expr = index(0)
    if chains > 1:
        wide = lanes * chains
        blocks = index(n // wide) if isinstance(n, int) else let(div(n, wide))
        with serial(blocks) as block:
            for chain in range(chains):
                add(block * index(wide) + index(chain * lanes), lanes, chain)
        first = blocks * index(wide)
        n = n % wide if isinstance(n, int) else let(n - first)
    over(n, lanes, lambda j, width: add(first + j, width))
    across = load(vectors, 0, lanes=lanes)
    for chain in range(1, chains):
        across = combine(across, load(vectors, chain * lanes, lanes=lanes))
    return combine(reduce_lanes(across, combine, lanes), load(rest, 0, lanes=1))
