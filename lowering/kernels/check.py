"""Values that are looked at before they are used: copies that fail where a condition does not hold."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from .prim_func import Expr, dim, param, prim_func, serial


def checked_copy(
    dtype: str, extent: Callable[[], tuple[list[tirx.Var], Expr]], *, wraps: bool, number: int
) -> tirx.PrimFunc:
    """Y = X, both [m] of an integer dtype, if all of X lies in ``0..size-1``.

    Args:
        extent: gives the scalar int64 parameters between X and Y, and the size as an expression
            over them.
        wraps: allow ``-size..-1`` too.
        number: is part of the error: ``tcexport check <number>``.
    """

    def declare() -> Callable[[], None]:
        length = dim(None, "m")
        source = param("x", [length], dtype)
        variables, size = extent()
        for variable in variables:
            T.arg(variable.name, variable)
        result = param("y", [length], dtype)

        def body() -> None:
            # One thread: an error in a parallel loop would not come through.
            with serial(length) as position:
                value = source[position].astype("int64")
                lowest = tirx.IntImm("int64", 0) - size if wraps else tirx.IntImm("int64", 0)
                inside = tirx.all(value >= lowest, value < size)
                with T.Assert(inside, f"tcexport check {number}", "IndexError"):
                    T.buffer_store(result, source[position], [position])

        return body

    return prim_func("check_index", declare)


def required_copy(dtype: str, *, message: str) -> tirx.PrimFunc:
    """Y = X, both [m] of any dtype, if all of the bools H[k] are true; else an error ``message``."""

    def declare() -> Callable[[], None]:
        length, count = dim(None, "m"), dim(None, "k")
        source = param("x", [length], dtype)
        holds = param("h", [count], "bool")
        result = param("y", [length], dtype)

        def body() -> None:
            # Statements that follow each other: the copy is made after all were looked at.
            with (
                serial(count) as position,
                T.Assert(holds[position], message, "ValueError"),
            ):
                T.evaluate(tirx.IntImm("int32", 0))
            with serial(length) as position:
                T.buffer_store(result, source[position], [position])

        return body

    return prim_func("require", declare)
