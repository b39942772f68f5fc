"""Scaled dot-product attention, without the matrix of all scores.

A task takes some query rows of one head through the keys, a block at a time, and keeps a running
maximum and sum of each row (Milakov and Gimelshein, Online normalizer calculation for softmax,
2018; Dao et al., FlashAttention, 2022). Keys are packed to panels once for all query rows, so that
scores are a matrix product with the tile of ``tile.py``; where there are only one or two query rows
(a decoding step) that would cost more than it saves, and scores are dot products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .half import load_wide, narrow, widen
from .prim_func import (
    FLOAT,
    Expr,
    ceil_div,
    dim,
    div,
    index,
    iota,
    let,
    load,
    local,
    mod,
    parallel,
    param,
    prim_func,
    select,
    serial,
    store,
    vector,
    workspace,
)
from .row import over, reduce
from .tile import PANEL, accumulate, along, finish_tile
from .vector_math import add, exp, maximum

_BLOCK = 128  # keys
_FEW = 2  # query rows that are not worth packing the keys for

_NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True)
class _Attention:
    """The operands. ``values`` may be a padded copy of V; ``v_item`` indexes its first axes."""

    q: tirx.Buffer
    k: tirx.Buffer
    mask: tirx.Buffer | None
    o: tirx.Buffer
    b: Expr
    h: Expr
    hk: Expr
    s: Expr
    t: Expr
    head_dim: int
    value_dim: int
    causal: bool
    mask_kind: str | None
    mask_batch: bool
    mask_heads: bool
    scale: float
    target: CpuTarget

    @property
    def lanes(self) -> int:
        return self.target.lanes


def attention(
    head_dim: int,
    value_dim: int,
    *,
    causal: bool,
    mask: str | None,
    mask_batch: bool,
    mask_heads: bool,
    scale: float,
    target: CpuTarget,
    dtype: str = FLOAT,
    mask_dtype: str = FLOAT,
) -> tirx.PrimFunc:
    """softmax(Q Kᵀ * scale + mask) V in float32; Q, K, V and O are stored as ``dtype``, a mask that is
    added as ``mask_dtype``.

    Parameters: Q ``[b, h, s, head_dim]``, K ``[b, hk, t, head_dim]``, V ``[b, hk, t, value_dim]``,
    the mask ``[b or 1, h or 1, s, t]`` where there is one, O ``[b, h, s, value_dim]``. ``h`` is a
    multiple of ``hk``: query head i reads key head i // (h / hk). ``mask`` is "bool" (True: take
    part) or "float" (is added); ``mask_batch`` and ``mask_heads`` say whether it has those axes or
    ones. ``causal``: query i reads keys up to i. A row that may read nothing becomes 0, as in
    torch 2.13.
    """

    def declare() -> Callable[[], None]:
        b, h, hk, s, t = (dim(None, name) for name in ("b", "h", "hk", "s", "t"))
        q = param("Q", (b, h, s, head_dim), dtype)
        k = param("K", (b, hk, t, head_dim), dtype)
        v = param("V", (b, hk, t, value_dim), dtype)
        mask_buffer = None
        if mask is not None:
            shape = (b if mask_batch else 1, h if mask_heads else 1, s, t)
            mask_buffer = param("mask", shape, "bool" if mask == "bool" else mask_dtype)
        o = param("O", (b, h, s, value_dim), dtype)
        operands = _Attention(
            q=q,
            k=k,
            mask=mask_buffer,
            o=o,
            b=b,
            h=h,
            hk=hk,
            s=s,
            t=t,
            head_dim=head_dim,
            value_dim=value_dim,
            causal=causal,
            mask_kind=mask,
            mask_batch=mask_batch,
            mask_heads=mask_heads,
            scale=scale,
            target=target,
        )
        return lambda: _emit(operands, v)

    return prim_func(f"attention_{head_dim}_{value_dim}", declare)


def _emit(op: _Attention, v: tirx.Buffer) -> None:
    values = _padded_values(op, v)
    with T.If(op.s <= index(_FEW)):
        with T.Then():
            _emit_rows(op, 1, None, values)
        with T.Else():
            packed = _packed_keys(op)
            rows = op.target.tile_rows
            with T.If(op.s <= index(rows // 2)):
                with T.Then():
                    _emit_rows(op, rows // 2, packed, values)
                with T.Else():
                    _emit_rows(op, rows, packed, values)


def _padded_values(op: _Attention, v: tirx.Buffer) -> tirx.Buffer:
    """V, or where its rows are not whole tiles, a copy with rows that are."""
    width = 2 * op.lanes
    if op.value_dim % width == 0:
        return v
    padded_dim = -(-op.value_dim // width) * width
    padded = workspace((op.b, op.hk, op.t, padded_dim))
    with parallel(op.b * op.hk * op.t) as row:
        item = let(div(row, op.hk * op.t))
        head = let(mod(div(row, op.t), op.hk))
        key = let(mod(row, op.t))
        with serial(op.value_dim) as j:
            store(padded, widen(v[item, head, key, j], 1), item, head, key, j, lanes=1)
        with serial(padded_dim - op.value_dim) as j:
            store(padded, T.float32(0.0), item, head, key, index(op.value_dim) + j, lanes=1)
    return padded


def _packed_keys(op: _Attention) -> tirx.Buffer:
    """K in panels ``[b * hk, ceil(t / 32), head_dim, 32]``, zeros after the last key."""
    panels = let(ceil_div(op.t, PANEL), "panels")
    packed = workspace((op.b * op.hk, panels, op.head_dim, PANEL))
    with parallel(op.b * op.hk * panels) as task:
        item = let(div(task, panels))
        panel = let(mod(task, panels))
        batch, head = let(div(item, op.hk)), let(mod(item, op.hk))
        first = let(panel * index(PANEL))
        with serial(PANEL) as j, T.If(first + j < op.t):
            with T.Then(), serial(op.head_dim) as d:
                value = widen(op.k[batch, head, first + j, d], 1)
                store(packed, value, item, panel, d, j, lanes=1)
            with T.Else(), serial(op.head_dim) as d:
                store(packed, T.float32(0.0), item, panel, d, j, lanes=1)
    return packed


def _emit_rows(op: _Attention, rows: int, packed: tirx.Buffer | None, values: tirx.Buffer) -> None:
    """Tasks of ``rows`` query rows. The rows after the last one are computed as zeros."""
    lanes = op.lanes
    value_width = int(values.ty.shape[-1])
    blocks = let(ceil_div(op.s, rows), "blocks")
    with parallel(op.b * op.h * blocks) as task:
        batch = let(div(task, op.h * blocks), "batch")
        head = let(mod(div(task, blocks), op.h), "head")
        first = let(mod(task, blocks) * index(rows), "first_row")
        kv_head = let(div(head, div(op.h, op.hk)), "kv_head")
        present = let(T.min(index(rows), op.s - first), "present")
        query = local((rows, op.head_dim))
        scores = local((rows, _BLOCK))
        sums = local((rows, value_width))
        highest = local((rows,))
        total = local((rows,))
        with serial(rows) as i:
            _load_query(op, query, i, batch, head, first, present)
            with serial(value_width // lanes) as j:
                store(sums, vector(0.0, lanes), i, j * index(lanes), lanes=lanes)
            # CompactBufferAllocation would give a buffer that is never used whole a dynamic size.
            with serial(_BLOCK // lanes) as j:
                store(scores, vector(0.0, lanes), i, j * index(lanes), lanes=lanes)
            store(highest, T.float32(_NEGATIVE_INFINITY), i, lanes=1)
            store(total, T.float32(0.0), i, lanes=1)
        end = let(T.min(op.t, first + index(rows)) if op.causal else op.t, "end")
        with serial(ceil_div(end, _BLOCK)) as block:
            first_key = let(block * index(_BLOCK), "first_key")
            keys = let(T.min(end - first_key, index(_BLOCK)), "keys")
            if packed is None:
                _dot_scores(op, query, scores, batch, kv_head, first_key, keys)
            else:
                item = let(batch * op.hk + kv_head)
                _tile_scores(op, rows, query, scores, packed, item, first_key, keys)
            if op.mask is not None:
                _apply_mask(op, scores, batch, head, first, present, first_key, keys)
            with serial(rows) as i:
                _hide_keys(op, scores, first + i, i, first_key, keys)
                _update_row(op, scores, sums, highest, total, i, keys, value_width)
            _add_values(op, rows, scores, sums, values, batch, kv_head, first_key, keys)
        with serial(present) as i:
            weight = let(total[i])
            # A row that could read nothing has no weight at all.
            scale = select(weight == T.float32(0.0), T.float32(0.0), T.float32(1.0) / weight)
            scale = let(scale)

            def write(j: Expr, lanes: int) -> None:
                value = load(sums, i, j, lanes=lanes) * vector(scale, lanes)
                value = narrow(value, str(op.o.dtype), lanes)
                store(op.o, value, batch, head, first + i, j, lanes=lanes)

            over(op.value_dim, lanes, write)


def _load_query(
    op: _Attention,
    query: tirx.Buffer,
    i: Expr,
    batch: Expr,
    head: Expr,
    first: Expr,
    present: Expr,
) -> None:
    def copy(j: Expr, lanes: int) -> None:
        value = load_wide(op.q, batch, head, first + i, j, lanes=lanes)
        store(query, value * vector(op.scale, lanes), i, j, lanes=lanes)

    with T.If(i < present):
        with T.Then():
            over(op.head_dim, op.lanes, copy)
        with T.Else():
            over(
                op.head_dim,
                op.lanes,
                lambda j, lanes: store(query, vector(0.0, lanes), i, j, lanes=lanes),
            )


def _dot_scores(
    op: _Attention,
    query: tirx.Buffer,
    scores: tirx.Buffer,
    batch: Expr,
    kv_head: Expr,
    first_key: Expr,
    keys: Expr,
) -> None:
    with serial(keys) as key:
        score = reduce(
            op.head_dim,
            op.lanes,
            0.0,
            add,
            lambda j, lanes: (
                load(query, 0, j, lanes=lanes)
                * load_wide(op.k, batch, kv_head, first_key + key, j, lanes=lanes)
            ),
        )
        store(scores, score, 0, key, lanes=1)


def _tile_scores(
    op: _Attention,
    rows: int,
    query: tirx.Buffer,
    scores: tirx.Buffer,
    packed: tirx.Buffer,
    item: Expr,
    first_key: Expr,
    keys: Expr,
) -> None:
    lanes = op.lanes
    width = 2 * lanes
    with serial(ceil_div(keys, width)) as strip:
        column = let(strip * index(width), "column")
        panel = let(div(first_key + column, PANEL))
        offset = let(mod(column, PANEL))
        tile = accumulate(
            rows,
            2,
            lanes,
            along(op.head_dim),
            lambda i, d: query[index(i), d],
            lambda j, d: load(packed, item, panel, d, offset + index(j * lanes), lanes=lanes),
        )

        def write(value: Expr, i: Expr, j: Expr, lanes: int) -> None:
            store(scores, value, i, column + j, lanes=lanes)

        finish_tile(tile, rows, 2, lanes, None, write, unroll=True)


def _apply_mask(
    op: _Attention,
    scores: tirx.Buffer,
    batch: Expr,
    head: Expr,
    first: Expr,
    present: Expr,
    first_key: Expr,
    keys: Expr,
) -> None:
    """Add or select by the mask, an element at a time: LLVM makes vectors of it."""
    assert op.mask is not None
    with serial(present) as i, serial(keys) as j:
        masking = op.mask[
            batch if op.mask_batch else index(0),
            head if op.mask_heads else index(0),
            first + i,
            first_key + j,
        ]
        score, masking = let(scores[i, j]), let(masking)
        if op.mask_kind == "float":
            value = score + widen(masking, 1)
        else:
            value = select(masking, score, T.float32(_NEGATIVE_INFINITY))
        store(scores, value, i, j, lanes=1)


def _hide_keys(
    op: _Attention, scores: tirx.Buffer, row: Expr, i: Expr, first_key: Expr, keys: Expr
) -> None:
    """-inf for the keys that a row may not read, up to the end of the last vector."""
    lanes = op.lanes
    visible = let(T.min(keys, row + index(1) - first_key) if op.causal else keys, "visible")
    start = let(div(T.max(visible, index(0)), lanes), "start")
    with serial(ceil_div(keys, lanes) - start) as step:
        j = let((start + step) * index(lanes))
        read = iota(j, lanes) < vector(visible, lanes)
        value = let(load(scores, i, j, lanes=lanes))
        store(scores, select(read, value, vector(_NEGATIVE_INFINITY, lanes)), i, j, lanes=lanes)


def _update_row(
    op: _Attention,
    scores: tirx.Buffer,
    sums: tirx.Buffer,
    highest: tirx.Buffer,
    total: tirx.Buffer,
    i: Expr,
    keys: Expr,
    value_width: int,
) -> None:
    """Scores to weights, relative to the highest score so far; what was summed before follows."""
    lanes = op.lanes
    padded = let(ceil_div(keys, lanes) * index(lanes))
    block_highest = reduce(
        padded,
        lanes,
        _NEGATIVE_INFINITY,
        maximum,
        lambda j, lanes: load(scores, i, j, lanes=lanes),
    )
    before = let(highest[i])
    now = let(maximum(before, block_highest))
    # Of a row that has read nothing so far, -inf - -inf would make NaN.
    shift = let(select(now == T.float32(_NEGATIVE_INFINITY), T.float32(0.0), now))
    store(highest, now, i, lanes=1)

    def weight(j: Expr, lanes: int) -> Expr:
        below = load(scores, i, j, lanes=lanes) - vector(shift, lanes)
        value = exp(below, lanes, never_positive=True)
        store(scores, value, i, j, lanes=lanes)
        return value

    block_total = reduce(padded, lanes, 0.0, add, weight)
    fade = let(exp(before - shift, 1, never_positive=True))
    store(total, total[i] * fade + block_total, i, lanes=1)
    with T.If(fade != T.float32(1.0)), T.Then(), serial(value_width // lanes) as j:
        value = load(sums, i, j * index(lanes), lanes=lanes) * vector(fade, lanes)
        store(sums, value, i, j * index(lanes), lanes=lanes)


def _add_values(
    op: _Attention,
    rows: int,
    scores: tirx.Buffer,
    sums: tirx.Buffer,
    values: tirx.Buffer,
    batch: Expr,
    kv_head: Expr,
    first_key: Expr,
    keys: Expr,
) -> None:
    lanes = op.lanes
    value_width = int(values.ty.shape[-1])
    vectors = 2
    while rows == 1 and vectors < 8 and value_width % (2 * vectors * lanes) == 0:
        vectors *= 2
    with serial(value_width // (vectors * lanes)) as strip:
        column = let(strip * index(vectors * lanes), "column")
        tile = accumulate(
            rows,
            vectors,
            lanes,
            along(keys),
            lambda i, key: scores[index(i), key],
            lambda j, key: load_wide(
                values, batch, kv_head, first_key + key, column + index(j * lanes), lanes=lanes
            ),
        )

        def write(value: Expr, i: Expr, j: Expr, lanes: int) -> None:
            value = value + load(sums, i, column + j, lanes=lanes)
            store(sums, value, i, column + j, lanes=lanes)

        finish_tile(tile, rows, vectors, lanes, None, write, unroll=True)
