"""The loops of a stage: over outer axes and pieces of the last one, in parallel where it pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from .prim_func import WORTH_THREADS, Expr, div, mod
from .rewriting import Rewriter, int64, sequence, zero_of
from .stages import Stage, is_constant

_PIECE = 4096  # elements of a long last axis that make one task


def loop_over(variable: tirx.Var, extent: Expr, body: tirx.Stmt, kind: str = "serial") -> tirx.Stmt:
    kinds = {
        "serial": tirx.ForKind.SERIAL,
        "parallel": tirx.ForKind.PARALLEL,
        "vectorized": tirx.ForKind.VECTORIZED,
    }
    return tirx.For(variable, int64(0), int64(extent), kinds[kind], body)


def extent_of(axis: tirx.IterVar) -> Expr:
    return int64(axis.dom.extent)


def count_points(axes: Sequence[tirx.IterVar]) -> Expr:
    total = int64(1)
    for axis in axes:
        total = total * extent_of(axis)
    return total


def in_parallel(tasks: Expr, elements: Expr, body: Callable[[tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """Run ``body`` for each task, in parallel where there are elements enough."""

    def loop(kind: str) -> tirx.Stmt:
        task = tirx.Var("task", "int64")
        return loop_over(task, tasks, body(task), kind)

    if is_constant(tasks, 1):
        return loop("serial")
    if isinstance(elements, tirx.IntImm):
        return loop("parallel" if int(elements) >= WORTH_THREADS else "serial")
    return tirx.IfThenElse(elements < int64(WORTH_THREADS), loop("serial"), loop("parallel"))


def decode(flat: Expr, axes: Sequence[tirx.IterVar]) -> dict[tirx.Var, Expr]:
    """The point that a position in the product of some axes is."""
    point = {}
    live = [axis for axis in axes if not is_constant(axis.dom.extent, 1)]
    for axis in axes:
        point[axis.var] = zero_of(axis.var)
    for axis in reversed(live):
        position = flat
        if axis is not live[0]:
            position, flat = mod(flat, extent_of(axis)), div(flat, extent_of(axis))
        point[axis.var] = tirx.Cast(axis.var.ty.dtype, position)
    return point


def bind(point: dict[tirx.Var, Expr]) -> tuple[dict[tirx.Var, Expr], list[tirx.Stmt]]:
    """The point with a variable for each coordinate, and the statements that set them."""
    bound, bindings = dict(point), []
    for variable, value in point.items():
        if not isinstance(value, tirx.IntImm):
            bound[variable] = tirx.Var(variable.name, variable.ty)
            bindings.append(tirx.Bind(bound[variable], value))
    return bound, bindings


def _pieces(extent: Expr, length: int) -> Expr:
    """Into how many pieces a loop is cut, none much longer than ``length``."""
    if isinstance(extent, tirx.IntImm):
        return int64(max(1, -(-int(extent) // length)))
    return div(extent + int64(length - 1), int64(length))


def _bounds(piece: Expr, pieces: Expr, extent: Expr) -> tuple[Expr, Expr]:
    """Where a piece begins, and its length."""
    if is_constant(pieces, 1):
        return int64(0), extent
    first = div(piece * extent, pieces)
    return first, div((piece + int64(1)) * extent, pieces) - first


def over_last_axis(
    axes: Sequence[tirx.IterVar],
    piece_length: int,
    work: Expr,
    body: Callable[[dict[tirx.Var, Expr], Callable], tirx.Stmt],
) -> tirx.Stmt:
    """Tasks over the outer axes and pieces of the last one.

    ``body`` gets the outer point and a function that wraps a statement, made from a point, in the
    loop over the piece.
    """
    live = [axis for axis in axes if not is_constant(axis.dom.extent, 1)]
    outer, last = live[:-1], live[-1]
    extent = extent_of(last)
    pieces = _pieces(extent, piece_length)

    def task_body(task: tirx.Var) -> tirx.Stmt:
        whole = is_constant(pieces, 1)
        row = task if whole else div(task, pieces)
        first, length = _bounds(mod(task, pieces), pieces, extent)
        start = tirx.Var("start", "int64")
        count = tirx.Var("count", "int64")
        point, bindings = bind({axis.var: zero_of(axis.var) for axis in axes} | decode(row, outer))

        def along(make: Callable[[dict[tirx.Var, Expr]], tirx.Stmt]) -> tirx.Stmt:
            position = tirx.Var("i", "int64")
            at = tirx.Cast(last.var.ty.dtype, start + position)
            return loop_over(position, count, make(point | {last.var: at}))

        inner = body(point, along)
        return sequence([tirx.Bind(start, first), tirx.Bind(count, length), *bindings, inner])

    return in_parallel(count_points(outer) * pieces, work, task_body)


def emit_by_points(stage: Stage, rewriter: Rewriter) -> tirx.Stmt:
    """The stage as it stands: parallel over its points, its reduction inside."""

    def at(point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        variables = {axis.var: tirx.Var(axis.var.name, axis.var.ty) for axis in stage.reduce}
        body = rewriter.statement(stage.body, point | variables)
        for axis in reversed(stage.reduce):
            inner = variables[axis.var]
            zero = tirx.IntImm(inner.ty.dtype, 0)
            body = tirx.For(inner, zero, axis.dom.extent, tirx.ForKind.SERIAL, body)
        if stage.init is None:
            return body
        return sequence([rewriter.statement(stage.init, point), body])

    if all(is_constant(axis.dom.extent, 1) for axis in stage.spatial):
        return at({axis.var: zero_of(axis.var) for axis in stage.spatial})
    work = count_points((*stage.spatial, *stage.reduce))
    length = 1 if stage.reduce else _PIECE
    return over_last_axis(stage.spatial, length, work, lambda point, along: along(at))
