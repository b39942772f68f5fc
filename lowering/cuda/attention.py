"""Attention in one kernel, which never holds a matrix of scores: PrimFuncs around attention.cuh, for
half types on tensor cores, and attention_float.cuh, for float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..kernels.prim_func import FLOAT, ceil_div, dim, index, param, prim_func
from .launch import TYPES, instance, launch

WIDEST_HEAD = 256
THREADS = 128


@dataclass(frozen=True)
class AttentionTile:
    """The rows of a block, and the keys that it takes at a time. ``parts`` are of 16 rows for each of
    its four warps where tensor cores compute, and else of 32 rows."""

    parts: int
    keys: int
    rows: int
    shared_bytes: int


def attention_tile(
    width: int, value_width: int, dtype: str, parts: int, masked: bool
) -> AttentionTile:
    """For heads of a size, with at most ``parts``: as many as fit into the registers."""
    widest = max(width, value_width)
    parts = parts if widest <= 64 else 1
    if dtype == FLOAT:
        keys = 32 if widest <= 128 else 8
        rows = 32 * parts
        # A chunk of 16 bytes more in each row, so that rows lie in different banks.
        steps = [-(-size // 4) + 1 for size in (width, value_width)]
        shared = 16 * (rows * steps[0] + keys * max(steps)) + 4 * rows * (keys + 4)
    else:
        keys = (16 if widest > 64 else 32) if masked else (16 if widest > 128 else 64)
        rows = 64 * parts
        whole = [-(-size // 16) * 16 for size in (width, value_width)]
        shared = 2 * (rows * whole[0] + keys * sum(whole))
    return AttentionTile(parts, keys, rows, shared)


def attention(
    width: int,
    value_width: int,
    *,
    dtype: str,
    causal: bool,
    mask: str | None,
    broadcast: tuple[bool, bool, bool, bool] = (True, True, True, True),
    scale: float,
) -> tirx.PrimFunc:
    """softmax(Q Kᵀ scale + mask) V, of ``dtype`` (float32 or a half) with sums in float32.

    Parameters: Q ``[b, h, s, width]``, K ``[b, h / group, t, width]``, V ``[b, h / group, t,
    value_width]``, the mask ``[b, h, s, t]`` where there is one (of ``bool``, which hides where it is
    False, or of ``dtype``, which is added), and the result ``[b, h, s, value_width]``. The axes of the
    mask that are ``broadcast`` have a size of 1. Sizes of a head are 256 at most.
    """

    def declare() -> Callable[[], None]:
        b, h, own, s, t = (dim(None, name) for name in ("b", "h", "own", "s", "t"))
        q = param("Q", (b, h, s, width), dtype)
        k = param("K", (b, own, t, width), dtype)
        v = param("V", (b, own, t, value_width), dtype)
        seen = None
        steps = [index(0)] * 4
        if mask is not None:
            shape = [1 if one else size for one, size in zip(broadcast, (b, h, s, t), strict=True)]
            seen = param("mask", shape, mask)
            step = index(1)
            for axis in (3, 2, 1, 0):
                if not broadcast[axis]:
                    steps[axis] = step
                    step = step * index(shape[axis])
        out = param("O", (b, h, s, value_width), dtype)
        kind = {None: "NO_MASK", "bool": "BOOL_MASK", dtype: "FLOAT_MASK"}[mask]

        def by(tile: AttentionTile) -> None:
            sizes = (width, value_width, tile.parts, tile.keys)
            types = () if dtype == FLOAT else (TYPES[dtype],)
            function = "attention_float" if dtype == FLOAT else "attention"
            name = instance(function, (*types, *sizes, kind, causal))
            numbers = (h, tirx.truncdiv(h, own), s, t, *steps, tirx.const(scale, FLOAT))
            blocks = b * h * ceil_div(s, tile.rows)
            launch(name, (q, k, v, seen, out), numbers, blocks, THREADS, tile.shared_bytes)

        def body() -> None:
            of = (width, value_width, dtype)
            few, many = (attention_tile(*of, n, mask is not None) for n in (1, 2))
            if few == many:
                by(few)
                return
            with T.If(s <= index(few.rows)):
                with T.Then():
                    by(few)
                with T.Else():
                    by(many)

        return body

    return prim_func("attention", declare)
