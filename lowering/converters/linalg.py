"""Linear systems: inverse, solution, determinant, Cholesky factor, triangular solution.

Written out as eliminations in double, row by row: for the small matrices that models invert (cameras,
filters, covariances), not for large ones. Where eager raises for a singular matrix, so does the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..context import Context, Unsupported
from ..kernels.prim_func import index, let, local, parallel, serial, store, workspace
from ..symbols import Shape, Size, product
from ..tensor import Tensor
from .registry import converter

_WIDE = "float64"
_FLOATS = ("float32", "float64")


def _wide(value: float) -> Any:
    return tirx.const(value, _WIDE)


def _stacked(ctx: Context, x: Tensor) -> Tensor:
    if x.dtype not in _FLOATS:
        raise Unsupported(f"of {x.dtype}", "float32 or float64")
    return ctx.reshape(x, (product(x.shape[:-2]), *x.shape[-2:]))


def _eliminate(
    work: Any, item: Any, size: Any, columns: Any, *, below_only: bool, sign: Any
) -> None:
    """Gauss's elimination with partial pivoting of ``work[item]``, ``size`` rows of ``columns``.

    ``sign`` changes its sign with every exchange of rows. Rows above the pivot are cleared too, unless
    ``below_only``.
    """
    best = local((1,), "int64")
    with serial(size) as k:
        store(best, k, 0, lanes=1)
        with serial(size - k) as offset:
            row = let(k + offset)
            larger = tirx.abs(work[item, row, k]) > tirx.abs(work[item, best[0], k])
            with T.If(larger), T.Then():
                store(best, row, 0, lanes=1)
        with T.If(best[0] > k), T.Then():
            store(sign, -sign[0], 0, lanes=1)
            with serial(columns) as j:
                held = let(work[item, k, j])
                store(work, work[item, best[0], j], item, k, j, lanes=1)
                store(work, held, item, best[0], j, lanes=1)
        pivot = let(work[item, k, k])
        with T.If(tirx.NE(pivot, _wide(0))), T.Then(), serial(size) as row:
            wanted = row > k if below_only else tirx.NE(row, k)
            with T.If(wanted), T.Then():
                factor = let(work[item, row, k] / pivot)
                with serial(columns - k) as offset:
                    j = let(k + offset)
                    value = work[item, row, j] - factor * work[item, k, j]
                    store(work, value, item, row, j, lanes=1)


def _assert_all(flags: Any, count: Any, message: str) -> None:
    with serial(count) as item, T.Assert(tirx.EQ(flags[item], index(0)), message, "ValueError"):
        T.evaluate(tirx.IntImm("int32", 0))


def _solution(ctx: Context, a: Tensor, b: Tensor | None) -> Tensor:
    """``x`` with ``a x = b``, for ``[n, k, k]`` and ``[n, k, m]``; of the unit matrix without ``b``."""
    batch, size = a.shape[0], a.shape[1]
    width: Size = size if b is None else b.shape[2]
    shape: Shape = (batch, size, width)
    message = ctx.asserts("the matrix can be inverted")

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        count, k, m = scope.shape((batch, size, width))
        work = workspace((count, k, k + m), _WIDE)
        flags = workspace((count,), "int64")
        with parallel(count) as item:
            with serial(k) as i:
                with serial(k) as j:
                    store(work, inputs[0][item, i, j].astype(_WIDE), item, i, j, lanes=1)
                with serial(m) as j:
                    if b is None:
                        value = tirx.Select(tirx.EQ(i, j), _wide(1), _wide(0))
                    else:
                        value = inputs[1][item, i, j].astype(_WIDE)
                    store(work, value, item, i, k + j, lanes=1)
            sign = local((1,), _WIDE)
            store(sign, _wide(1), 0, lanes=1)
            _eliminate(work, item, k, k + m, below_only=False, sign=sign)
            store(flags, index(0), item, lanes=1)
            with serial(k) as i:
                with T.If(tirx.EQ(work[item, i, i], _wide(0))), T.Then():
                    store(flags, index(1), item, lanes=1)
                with serial(m) as j:
                    value = (work[item, i, k + j] / work[item, i, i]).astype(a.dtype)
                    store(results[0], value, item, i, j, lanes=1)
        _assert_all(flags, count, message)

    inputs = [a] if b is None else [a, b]
    return ctx.procedure("solve", inputs, [(shape, a.dtype)], emit, (batch, size, width))[0]


def _no_errors(ctx: Context, x: Tensor) -> Tensor:
    """What LAPACK says of each matrix: nothing, as the call would have been refused."""
    shape = x.shape[:-2]
    return ctx.compute("info", [], shape, "int32", lambda *_: tirx.IntImm("int32", 0))


@converter("aten.linalg_inv.default")
def convert_inv(ctx: Context, A: Tensor) -> Tensor:
    return ctx.reshape(_solution(ctx, _stacked(ctx, A), None), A.shape)


@converter("aten.inverse.default")
def convert_inverse(ctx: Context, x: Tensor) -> Tensor:
    return convert_inv(ctx, x)


@converter("aten.linalg_solve.default")
def convert_solve(ctx: Context, A: Tensor, B: Tensor, left: bool) -> Tensor:
    (solution, *_) = convert_solve_ex(ctx, A, B, left, False)
    assert solution is not None
    return solution


@converter("aten.linalg_cholesky.default", "aten.cholesky.default")
def convert_whole_cholesky(ctx: Context, x: Tensor, upper: bool) -> Tensor:
    return convert_cholesky(ctx, x, upper, False)[0]


@converter("aten.linalg_inv_ex.default")
def convert_inv_ex(ctx: Context, A: Tensor, check_errors: Any) -> list[Tensor]:
    inverse = _solution(ctx, _stacked(ctx, A), None)
    return [ctx.reshape(inverse, A.shape), _no_errors(ctx, A)]


@converter("aten._linalg_solve_ex.default")
def convert_solve_ex(
    ctx: Context, A: Tensor, B: Tensor, left: bool, check_errors: Any
) -> list[Tensor | None]:
    if not left:
        raise Unsupported("with left=False", "the transposed system")
    vector = B.rank == A.rank - 1
    wide = ctx.reshape(B, (*B.shape, 1)) if vector else B
    if wide.shape[:-2] != A.shape[:-2]:
        raise Unsupported("with operands that are broadcast", "expand them first")
    solution = _solution(ctx, _stacked(ctx, A), _stacked(ctx, wide))
    return [ctx.reshape(solution, B.shape), None, None, _no_errors(ctx, A)]


def _triangle(
    ctx: Context, a: Tensor, dtypes: list[str], finish: Callable[..., None]
) -> list[Tensor]:
    """For each matrix ``finish(results, item, work, size, sign)`` after an elimination."""
    batch, size = a.shape[0], a.shape[1]

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        count, k = scope.shape((batch, size))
        work = workspace((count, k, k), _WIDE)
        with parallel(count) as item:
            with serial(k) as i, serial(k) as j:
                store(work, inputs[0][item, i, j].astype(_WIDE), item, i, j, lanes=1)
            sign = local((1,), _WIDE)
            store(sign, _wide(1), 0, lanes=1)
            _eliminate(work, item, k, k, below_only=True, sign=sign)
            finish(results, item, work, k, sign)

    results: list[tuple[Shape, str]] = [((batch,), dtype) for dtype in dtypes]
    return ctx.procedure("determinant", [a], results, emit, (batch, size))


@converter("aten._linalg_det.default")
def convert_det(ctx: Context, A: Tensor) -> list[Tensor | None]:
    def finish(results: Any, item: Any, work: Any, size: Any, sign: Any) -> None:
        with serial(size) as i:
            store(sign, sign[0] * work[item, i, i], 0, lanes=1)
        store(results[0], sign[0].astype(A.dtype), item, lanes=1)

    (result,) = _triangle(ctx, _stacked(ctx, A), [A.dtype], finish)
    return [ctx.reshape(result, A.shape[:-2]), None, None]


@converter("aten._linalg_slogdet.default")
def convert_slogdet(ctx: Context, A: Tensor) -> list[Tensor | None]:
    def finish(results: Any, item: Any, work: Any, size: Any, sign: Any) -> None:
        total = local((1,), _WIDE)
        store(total, _wide(0), 0, lanes=1)
        with serial(size) as i:
            pivot = let(work[item, i, i])
            direction = tirx.Select(pivot < _wide(0), _wide(-1), _wide(1))
            direction = tirx.Select(tirx.EQ(pivot, _wide(0)), _wide(0), direction)
            store(sign, sign[0] * direction, 0, lanes=1)
            store(total, total[0] + tirx.log(tirx.abs(pivot)), 0, lanes=1)
        store(results[0], sign[0].astype(A.dtype), item, lanes=1)
        store(results[1], total[0].astype(A.dtype), item, lanes=1)

    made = _triangle(ctx, _stacked(ctx, A), [A.dtype] * 2, finish)
    return [*(ctx.reshape(each, A.shape[:-2]) for each in made), None, None]


@converter("aten.linalg_cholesky_ex.default")
def convert_cholesky(ctx: Context, x: Tensor, upper: bool, check_errors: Any) -> list[Tensor]:
    a = _stacked(ctx, x)
    batch, size = a.shape[0], a.shape[1]
    message = ctx.asserts("the matrix is positive-definite")

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        count, k = scope.shape((batch, size))
        work = workspace((count, k, k), _WIDE)
        flags = workspace((count,), "int64")
        with parallel(count) as item:
            store(flags, index(0), item, lanes=1)
            total = local((1,), _WIDE)
            with serial(k) as i, serial(i + index(1)) as j:
                given = inputs[0][item, j, i] if upper else inputs[0][item, i, j]
                store(total, given.astype(_WIDE), 0, lanes=1)
                with serial(j) as p:
                    value = total[0] - work[item, i, p] * work[item, j, p]
                    store(total, value, 0, lanes=1)
                with T.If(tirx.EQ(i, j)):
                    with T.Then():
                        with T.If(total[0] <= _wide(0)), T.Then():
                            store(flags, index(1), item, lanes=1)
                        store(work, tirx.sqrt(total[0]), item, i, j, lanes=1)
                    with T.Else():
                        store(work, total[0] / work[item, j, j], item, i, j, lanes=1)
            with serial(k) as i, serial(k) as j:
                first, second = (j, i) if upper else (i, j)
                inside = second <= first
                low = let(tirx.min(second, first))
                value = tirx.Select(inside, work[item, first, low], _wide(0))
                store(results[0], value.astype(x.dtype), item, i, j, lanes=1)
        _assert_all(flags, count, message)

    made = ctx.procedure("cholesky", [a], [(a.shape, x.dtype)], emit, (batch, size))
    return [ctx.reshape(made[0], x.shape), _no_errors(ctx, x)]


@converter("aten.linalg_solve_triangular.default")
def convert_solve_triangular(
    ctx: Context, x: Tensor, B: Tensor, upper: bool, left: bool, unitriangular: bool
) -> Tensor:
    if not left:
        raise Unsupported("with left=False", "the transposed system")
    if x.shape[:-2] != B.shape[:-2]:
        raise Unsupported("with operands that are broadcast", "expand them first")
    a, b = _stacked(ctx, x), _stacked(ctx, B)
    batch, size, width = b.shape

    def emit(scope: Any, inputs: Any, results: Any) -> None:
        count, k, m = scope.shape((batch, size, width))
        work = workspace((count, k, m), _WIDE)
        with parallel(count) as item, serial(m) as column:
            total = local((1,), _WIDE)
            with serial(k) as turn:
                row = let(k - index(1) - turn) if upper else turn
                store(total, inputs[1][item, row, column].astype(_WIDE), 0, lanes=1)
                with serial(turn) as done:
                    j = let(k - index(1) - done) if upper else done
                    product = inputs[0][item, row, j].astype(_WIDE) * work[item, j, column]
                    store(total, total[0] - product, 0, lanes=1)
                if not unitriangular:
                    store(total, total[0] / inputs[0][item, row, row].astype(_WIDE), 0, lanes=1)
                store(work, total[0], item, row, column, lanes=1)
                store(results[0], total[0].astype(B.dtype), item, row, column, lanes=1)

    made = ctx.procedure(
        "solve_triangular", [a, b], [(b.shape, B.dtype)], emit, (batch, size, width)
    )
    return ctx.reshape(made[0], B.shape)
