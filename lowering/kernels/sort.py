"""Sorting along the middle of ``[outer, length, inner]``: stable, NaN above all numbers."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from .prim_func import Expr, index, let, local, parallel, serial, store, workspace

_PLACES = "int64"


def before(a: Expr, b: Expr, *, descending: bool) -> Expr:
    """Whether a value comes before another, not being equal to it."""
    if str(a.ty.dtype) == "bool":
        a, b = a.astype("int8"), b.astype("int8")
    if descending:
        a, b = b, a
    if "float" not in str(a.ty.dtype):
        return a < b
    a_is_number = tirx.EQ(tirx.isnan(a).astype("int8"), tirx.const(0, "int8"))
    return tirx.any(a < b, tirx.all(tirx.isnan(b), a_is_number))


def merge_sort(
    source: tirx.Buffer,
    values: tirx.Buffer,
    places: tirx.Buffer,
    outer: Expr,
    length: Expr,
    inner: Expr,
    *,
    descending: bool,
) -> None:
    """Sort every line of ``source`` to ``values``, and to ``places`` where each element stood.

    Bottom up: runs of 1, 2, 4, … elements are merged, from the front half of a workspace to its back
    half and the other way round.
    """
    dtype = source.dtype
    with parallel(outer) as o, serial(inner) as i:
        keys = workspace((2, length), str(dtype))
        order = workspace((2, length), _PLACES)
        with serial(length) as p:
            store(keys, source[o, p, i], index(0), p, lanes=1)
            store(order, p, index(0), p, lanes=1)
        side = _counter()
        width = _counter()
        _set(width, index(1))
        _set(side, index(0))
        with T.While(width[0] < length):
            here = let(side[0], "here")
            there = let(index(1) - here, "there")
            run = let(width[0], "run")
            left, right = _counter(), _counter()
            # Which two runs an output belongs to follows from its position.
            with serial(length) as p:
                start = let(tirx.truncdiv(p, run * index(2)) * run * index(2), "start")
                middle = let(tirx.min(start + run, length), "middle")
                end = let(tirx.min(start + run * index(2), length), "end")
                with T.If(tirx.EQ(p, start)), T.Then():
                    _set(left, start)
                    _set(right, middle)
                a, b = let(left[0]), let(right[0])
                # Ties go to the left, which makes it stable.
                take_right = tirx.if_then_else(
                    a >= middle,
                    tirx.const(True),
                    tirx.if_then_else(
                        b >= end,
                        tirx.const(False),
                        before(keys[here, b], keys[here, a], descending=descending),
                    ),
                )
                with T.If(take_right):
                    with T.Then():
                        store(keys, keys[here, b], there, p, lanes=1)
                        store(order, order[here, b], there, p, lanes=1)
                        _set(right, b + index(1))
                    with T.Else():
                        store(keys, keys[here, a], there, p, lanes=1)
                        store(order, order[here, a], there, p, lanes=1)
                        _set(left, a + index(1))
            _set(side, there)
            _set(width, run * index(2))
        with serial(length) as p:
            store(values, keys[side[0], p], o, p, i, lanes=1)
            store(places, order[side[0], p], o, p, i, lanes=1)


def select_first(
    source: tirx.Buffer,
    values: tirx.Buffer,
    places: tirx.Buffer,
    outer: Expr,
    length: Expr,
    inner: Expr,
    count: Expr,
    *,
    descending: bool,
) -> None:
    """The first ``count`` elements of each sorted line, for a small count: each element is put in
    its place among those that lead so far."""
    with parallel(outer) as o, serial(inner) as i, serial(length) as p:
        value = let(source[o, p, i])
        place = _counter()
        _set(place, tirx.min(p, count))
        last = let(tirx.min(p, count))
        with T.While(
            tirx.if_then_else(
                place[0] > index(0),
                before(
                    value,
                    values[o, tirx.max(place[0] - index(1), index(0)), i],
                    descending=descending,
                ),
                tirx.const(False),
            )
        ):
            at = let(place[0] - index(1))
            with T.If(place[0] < count), T.Then():
                store(values, values[o, at, i], o, place[0], i, lanes=1)
                store(places, places[o, at, i], o, place[0], i, lanes=1)
            _set(place, at)
        with T.If(tirx.all(place[0] < count, place[0] <= last)), T.Then():
            store(values, value, o, place[0], i, lanes=1)
            store(places, p, o, place[0], i, lanes=1)


def _counter() -> tirx.Buffer:
    return local((1,), _PLACES)


def _set(counter: tirx.Buffer, value: Expr) -> None:
    store(counter, value, 0, lanes=1)
