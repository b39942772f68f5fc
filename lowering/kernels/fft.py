"""Discrete Fourier transforms of any length, along one axis.

A length whose prime factors are small is split by them: Stockham's mixed-radix form, which needs no
reordering (Van Loan, Computational Frameworks for the FFT, 1992). Any other becomes a convolution of
a length that is a power of two (Bluestein, 1970). Which of the two it is, and the factors, are found
when the code runs, since the length may be dynamic. The rows that are transformed lie side by side in
a vector, so that every step is plain vector arithmetic; what is left over goes one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .prim_func import (
    FLOAT,
    Expr,
    ceil_div,
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
    workspace,
)

_LARGEST_FACTOR = 31  # a larger prime costs more than Bluestein's two transforms
_MOST_FACTORS = 64
_TASKS = 64  # each has memory of its own for the rows it works on
_UNROLLED = (2, 3, 4, 5)

Pair = tuple[Expr, Expr]
Read = Callable[[Expr, Expr], Pair]
Write = Callable[[Expr, Expr, Expr, Expr], None]


@dataclass(frozen=True)
class _Plan:
    """How a length is split: ``length`` of the transform that is computed, its ``factors`` and
    ``count`` of them, its roots of unity ``[2, length]``; ``chirped`` if it is Bluestein's, with
    ``chirp`` ``[2, n]`` and the transformed ``filter`` ``[2, length]``."""

    n: Expr
    length: Expr
    factors: tirx.Buffer
    count: Expr
    roots: tirx.Buffer
    chirped: Expr
    chirp: tirx.Buffer
    filter: tirx.Buffer


def transform(
    rows: Expr,
    n: Expr,
    read: Read,
    write: Write,
    kept: Expr,
    target: CpuTarget,
    dtype: str = FLOAT,
) -> None:
    """``X[k] = sum over j of x[j] exp(-2 pi i j k / n)`` for each of ``rows`` rows.

    ``read(row, j)`` gives an element (real and imaginary part), ``write(row, k, re, im)`` takes one;
    only the first ``kept`` are written. The inverse is the same with both parts exchanged, in what is
    read and in what is written.
    """
    lanes = target.lanes if dtype == FLOAT else target.lanes // 2
    with T.If(tirx.all(n > index(0), rows > index(0))), T.Then():
        plan = _planned(n, dtype)
        groups = let(div(rows, lanes))
        tasks = let(T.min(ceil_div(rows, lanes), index(_TASKS)))
        memory = workspace((tasks, 2, 2, plan.length, lanes), dtype)
        single = workspace((tasks, 2, 2, plan.length, 1), dtype)
        with parallel(tasks) as task:
            first = let(div(groups * task, tasks))
            with serial(div(groups * (task + index(1)), tasks) - first) as group:
                row = let((first + group) * index(lanes))
                _rows(plan, memory, task, row, lanes, read, write, kept, dtype)
            left = let(rows - groups * index(lanes))
            begin = let(div(left * task, tasks))
            with serial(div(left * (task + index(1)), tasks) - begin) as one:
                row = let(groups * index(lanes) + begin + one)
                _rows(plan, single, task, row, 1, read, write, kept, dtype)


def _planned(n: Expr, dtype: str) -> _Plan:
    """Factors, roots of unity and, for Bluestein's way, the chirp: found as the kernel begins."""
    one, two = index(1), index(2)
    factors, state = local((_MOST_FACTORS,), "int64"), local((2,), "int64")

    def left() -> Expr:
        return state[0]

    def split(factor: Expr) -> None:
        store(factors, factor, state[1], lanes=1)
        store(state, div(left(), factor), 0, lanes=1)
        store(state, state[1] + one, 1, lanes=1)

    def factorize(length: Expr) -> None:
        store(state, length, 0, lanes=1)
        store(state, index(0), 1, lanes=1)
        for factor in (4, 2, 3, 5, *range(7, _LARGEST_FACTOR + 1, 2)):
            with (
                serial(_MOST_FACTORS if factor < 6 else 14),
                T.If(tirx.all(left() > one, tirx.EQ(mod(left(), factor), index(0)))),
                T.Then(),
            ):
                split(index(factor))

    factorize(n)
    chirped = let(left() > one)
    # The least power of two that holds a linear convolution of n and 2 n - 1 elements.
    power = local((1,), "int64")
    store(power, one, 0, lanes=1)
    with serial(62), T.If(power[0] < two * n - one), T.Then():
        store(power, power[0] * two, 0, lanes=1)
    length = let(tirx.Select(chirped, power[0], n))
    with T.If(chirped), T.Then():
        factorize(length)
    count = let(state[1])
    roots = workspace((2, length), dtype)
    _circle(roots, length, lambda j: (j, length), dtype)
    chirp_size = let(tirx.Select(chirped, n, one))
    chirp = workspace((2, chirp_size), dtype)
    kernel_size = let(tirx.Select(chirped, length, one))
    kernel = workspace((2, kernel_size), dtype)
    plan = _Plan(n, length, factors, count, roots, chirped, chirp, kernel)
    with T.If(chirped), T.Then():
        # exp(-pi i j^2 / n) has the period 2 n in j^2.
        _circle(chirp, n, lambda j: (mod(j * j, two * n), two * n), dtype)
        buffer = workspace((1, 2, 2, length, 1), dtype)

        def conjugate(k: Expr) -> Pair:
            # The filter is even: element -k, which is length - k, is element k.
            at = let(T.min(k, length - k))
            inside = at < n
            at = let(T.min(at, n - one))
            zero = tirx.const(0, dtype)
            return (
                tirx.Select(inside, chirp[0, at], zero),
                tirx.Select(inside, zero - chirp[1, at], zero),
            )

        with serial(length) as k:
            re, im = conjugate(k)
            store(buffer, re, 0, 0, 0, k, 0, lanes=1)
            store(buffer, im, 0, 0, 1, k, 0, lanes=1)
        _passes(plan, buffer, index(0), 1, dtype)
        final = mod(count, 2)
        with serial(length) as k:
            for part in (0, 1):
                store(kernel, buffer[0, final, part, k, 0], part, k, lanes=1)
    return plan


def _circle(
    table: tirx.Buffer, size: Expr, turn: Callable[[Expr], tuple[Expr, Expr]], dtype: str
) -> None:
    """exp(-2 pi i a / b) for ``a, b = turn(j)``, for each j; computed in double."""
    with serial(size) as j:
        part, whole = turn(j)
        angle = let(
            part.astype("float64") * tirx.const(-2 * math.pi, "float64") / whole.astype("float64")
        )
        store(table, tirx.cos(angle).astype(dtype), 0, j, lanes=1)
        store(table, tirx.sin(angle).astype(dtype), 1, j, lanes=1)


def _rows(
    plan: _Plan,
    memory: tirx.Buffer,
    task: Expr,
    row: Expr,
    lanes: int,
    read: Read,
    write: Write,
    kept: Expr,
    dtype: str,
) -> None:
    """Transform ``lanes`` rows from ``row`` on."""
    zero = vector(0.0, lanes, dtype)

    def at(half: Expr, part: int, k: Expr) -> Expr:
        return load(memory, task, half, part, k, 0, lanes=lanes)

    def put(value: Pair, half: Expr, k: Expr) -> None:
        for part in (0, 1):
            store(memory, value[part], task, half, part, k, 0, lanes=lanes)

    def chirp(k: Expr) -> Pair:
        return vector(plan.chirp[0, k], lanes), vector(plan.chirp[1, k], lanes)

    with serial(plan.n) as k:
        for lane in range(lanes):
            for part, value in enumerate(read(row + index(lane), k)):
                store(memory, value, task, 0, part, k, lane, lanes=1)
        with T.If(plan.chirped), T.Then():
            put(_times((at(index(0), 0, k), at(index(0), 1, k)), chirp(k)), index(0), k)
    with serial(plan.length - plan.n) as k:
        put((zero, zero), index(0), plan.n + k)
    _passes(plan, memory, task, lanes, dtype)
    final = let(mod(plan.count, 2))
    with T.If(plan.chirped), T.Then():
        with serial(plan.length) as k:
            kernel = vector(plan.filter[0, k], lanes), vector(plan.filter[1, k], lanes)
            re, im = _times((at(final, 0, k), at(final, 1, k)), kernel)
            # The way back is a transform of the conjugate.
            put((let(re), let(zero - im)), index(0), k)
        _passes(plan, memory, task, lanes, dtype)
        shrink = vector(tirx.const(1, dtype) / plan.length.astype(dtype), lanes)
        with serial(plan.n) as k:
            conjugate = at(final, 0, k) * shrink, zero - at(final, 1, k) * shrink
            put(_times(conjugate, chirp(k)), final, k)
    with serial(kept) as k:
        for lane in range(lanes):
            re, im = (let(memory[task, final, part, k, lane]) for part in (0, 1))
            write(row + index(lane), k, re, im)


def _passes(plan: _Plan, memory: tirx.Buffer, task: Expr, lanes: int, dtype: str) -> None:
    """All factors, one after the other, from one half of the memory to the other."""
    state = local((2,), "int64")  # the length that is left, and the stride
    store(state, plan.length, 0, lanes=1)
    store(state, index(1), 1, lanes=1)
    with serial(plan.count) as turn:
        factor = let(plan.factors[turn])
        half = let(mod(turn, 2))
        stride = let(state[1])
        rest = let(div(state[0], factor))
        place = (plan, memory, task, half)
        for radix in _UNROLLED:
            chosen = tirx.EQ(factor, index(radix))
            with T.If(chosen), T.Then(), serial(rest) as p, serial(stride) as q:
                _butterfly(*place, radix, rest, stride, p, q, lanes, dtype)
        chosen = factor > index(max(_UNROLLED))
        with T.If(chosen), T.Then(), serial(rest) as p, serial(stride) as q:
            _general(*place, factor, rest, stride, p, q, lanes, dtype)
        store(state, rest, 0, lanes=1)
        store(state, stride * factor, 1, lanes=1)


def _butterfly(
    plan: _Plan,
    memory: tirx.Buffer,
    task: Expr,
    half: Expr,
    radix: int,
    rest: Expr,
    stride: Expr,
    p: Expr,
    q: Expr,
    lanes: int,
    dtype: str,
) -> None:
    values: list[Pair] = []
    for k in range(radix):
        place = let(q + stride * (p + rest * index(k)))
        values.append(
            tuple(let(load(memory, task, half, part, place, 0, lanes=lanes)) for part in (0, 1))
        )
    for j, value in enumerate(_small(values, lanes, dtype)):
        if j:
            angle = let(p * index(j) * stride)
            value = _times(value, tuple(vector(plan.roots[part, angle], lanes) for part in (0, 1)))
        place = let(q + stride * (p * index(radix) + index(j)))
        for part in (0, 1):
            store(memory, value[part], task, index(1) - half, part, place, 0, lanes=lanes)


def _small(x: list[Pair], lanes: int, dtype: str) -> list[Pair]:
    """The transform of two to five elements."""
    if len(x) == 2:
        return [_plus(x[0], x[1]), _minus(x[0], x[1])]
    if len(x) == 4:
        even, odd = _both(_plus(x[0], x[2])), _both(_plus(x[1], x[3]))
        a, b = _both(_minus(x[0], x[2])), _both(_minus(x[1], x[3]))
        return [
            _plus(even, odd),
            (a[0] + b[1], a[1] - b[0]),
            _minus(even, odd),
            (a[0] - b[1], a[1] + b[0]),
        ]
    # Pairs of elements whose roots are conjugate.
    size = len(x)
    sums = [_both(_plus(x[k], x[size - k])) for k in range(1, size // 2 + 1)]
    differences = [_both(_minus(x[k], x[size - k])) for k in range(1, size // 2 + 1)]
    results: list[Pair] = [x[0]] * size
    for each in sums:
        results[0] = _plus(results[0], each)
    for j in range(1, size // 2 + 1):
        re, im = x[0]
        turned_re, turned_im = vector(0.0, lanes, dtype), vector(0.0, lanes, dtype)
        for k, (total, difference) in enumerate(zip(sums, differences, strict=True), 1):
            angle = 2 * math.pi * (j * k % size) / size
            cosine, sine = (vector(f(angle), lanes, dtype) for f in (math.cos, math.sin))
            re, im = re + total[0] * cosine, im + total[1] * cosine
            turned_re = turned_re + difference[1] * sine
            turned_im = turned_im - difference[0] * sine
        re, im, turned_re, turned_im = (let(v) for v in (re, im, turned_re, turned_im))
        results[j] = (re + turned_re, im + turned_im)
        results[size - j] = (re - turned_re, im - turned_im)
    return results


def _general(
    plan: _Plan,
    memory: tirx.Buffer,
    task: Expr,
    half: Expr,
    radix: Expr,
    rest: Expr,
    stride: Expr,
    p: Expr,
    q: Expr,
    lanes: int,
    dtype: str,
) -> None:
    """A radix that is known at run time only: the sums as they are defined."""
    sums = local((2 * lanes,), dtype)
    step = let(div(plan.length, radix))
    with serial(radix) as j:
        for part in (0, 1):
            store(sums, vector(0.0, lanes, dtype), part * lanes, lanes=lanes)
        with serial(radix) as k:
            angle = let(mod(j * k, radix) * step)
            root = tuple(vector(plan.roots[part, angle], lanes) for part in (0, 1))
            place = let(q + stride * (p + rest * k))
            value = tuple(
                let(load(memory, task, half, part, place, 0, lanes=lanes)) for part in (0, 1)
            )
            for part, term in enumerate(_times(value, root)):
                old = load(sums, part * lanes, lanes=lanes)
                store(sums, old + term, part * lanes, lanes=lanes)
        angle = let(p * j * stride)
        root = tuple(vector(plan.roots[part, angle], lanes) for part in (0, 1))
        value = tuple(load(sums, part * lanes, lanes=lanes) for part in (0, 1))
        place = let(q + stride * (p * radix + j))
        for part, term in enumerate(_times(value, root)):
            store(memory, term, task, index(1) - half, part, place, 0, lanes=lanes)


def _times(a: Pair, b: Pair) -> Pair:
    (a, b), (c, d) = _both(a), _both(b)
    return a * c - b * d, a * d + b * c


def _both(a: Pair) -> Pair:
    return let(a[0]), let(a[1])


def _plus(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]


def _minus(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]
