"""Expressions of a stage at a point of our own loops, with what they read put in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from . import vector_math
from .prim_func import ON_STACK, Expr, as_expression, let, lets_by
from .stages import Stage, is_constant, loads, same

_POLYNOMIALS = {
    "tirx.exp": vector_math.exp,
    "tirx.log": vector_math.log,
    "tirx.tanh": vector_math.tanh,
    "tirx.erf": vector_math.erf,
    "tirx.sigmoid": vector_math.sigmoid,
}
_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: tirx.sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}


_Mutator = Any  # tvm_ffi.structural.StructuralMutator


class Rewriter:
    """Puts producers in the place of their loads, and our functions in the place of libm's.

    A producer that is read twice with the same indices is computed once. Values of a branch stay
    in the branch, since its condition may be what keeps a load within its buffer.
    """

    def __init__(self, producers: dict[tirx.Buffer, Stage], stages: Sequence[Stage]) -> None:
        self._producers = producers
        self._extents = {
            axis.var: axis.dom.extent
            for stage in stages
            for axis in (*stage.spatial, *stage.reduce)
        }
        self._known: list[tuple[ir.TensorLoad, Expr]] = []

    def expression(self, value: Expr, point: dict[tirx.Var, Expr]) -> Expr:
        return self._branch(lambda: self._rewrite(value, point))

    def value(self, value: Expr, point: dict[tirx.Var, Expr]) -> Expr:
        """The value for a ``Scratch`` that stands around the call."""
        self._known = []
        return self._rewrite(value, point)

    def statement(self, body: tirx.Stmt, point: dict[tirx.Var, Expr]) -> tirx.Stmt:
        """Bindings and stores at a point. Bound variables are new ones each time."""
        point = dict(point)
        result: list[tirx.Stmt] = []
        for part in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
            scratch = Scratch(1, int64(0))
            with lets_by(scratch.keep):
                value = self.value(part.value, point)
            result += scratch.allocations + scratch.statements
            if isinstance(part, tirx.Bind):
                point[part.var] = tirx.Var(part.var.name, part.var.ty)
                result.append(tirx.Bind(point[part.var], value))
            else:
                indices = [self.expression(i, point) for i in part.indices]
                result.append(tirx.BufferStore(part.buffer, value, indices))
        return sequence(result)

    def _branch(self, emit: Callable[[], Expr]) -> Expr:
        known = list(self._known)
        try:
            return as_expression(emit)
        finally:
            self._known = known

    def _rewrite(self, value: Expr, point: dict[tirx.Var, Expr]) -> Expr:
        def load(node: ir.TensorLoad, mutator: _Mutator) -> Expr:
            indices = [mutator.mutate(i) for i in node.indices]
            if node.source not in self._producers:
                return tirx.BufferLoad(node.source, indices)
            return self._produce(tirx.BufferLoad(node.source, indices))

        def choose(condition: Expr, yes: Expr, no: Expr, mutator: _Mutator) -> Expr:
            condition = mutator.mutate(condition)
            if self._always_within(yes) and self._always_within(no):
                # A load inside a Select becomes a branch, and the loop is not vectorized.
                return tirx.Select(condition, let(mutator.mutate(yes)), let(mutator.mutate(no)))
            yes, no = (self._branch(partial(self._rewrite, part, point)) for part in (yes, no))
            return tirx.if_then_else(condition, yes, no)

        def select(node: tirx.Select, mutator: _Mutator) -> Expr:
            return choose(node.condition, node.true_value, node.false_value, mutator)

        def call(node: ir.Call, mutator: _Mutator) -> Expr:
            name = node.op.name if isinstance(node.op, ir.Op) else ""
            if name == "prim.if_then_else":
                condition, yes, no = node.args
                return choose(condition, yes, no, mutator)
            if name in _POLYNOMIALS and _is_float32(node):
                return _POLYNOMIALS[name](mutator.mutate(node.args[0]), 1)
            if name == "tirx.pow" and isinstance(node.args[1], tirx.FloatImm):
                power = _POWERS.get(float(node.args[1].value))
                if power is not None:
                    return power(let(mutator.mutate(node.args[0])))
            return mutator.default_mutate(node)

        def extremum(node: tirx.Max | tirx.Min, mutator: _Mutator) -> Expr:
            a, b = mutator.mutate(node.a), mutator.mutate(node.b)
            return _EXTREMA[type(node)](a, b)

        return tvm_ffi.structural_mutate(
            value,
            (
                (tirx.Var, lambda variable, _: point.get(variable, variable)),
                (ir.TensorLoad, load),
                (tirx.Select, select),
                (ir.Call, call),
                ((tirx.Max, tirx.Min), extremum),
            ),
        )

    def _always_within(self, value: Expr) -> bool:
        """Whether every load of an expression stays in its buffer wherever the loops are: its
        indices are axes as long as the buffer."""
        for load in loads(value):
            if load.source in self._producers:
                (store,) = self._producers[load.source].stores
                if not self._always_within(store.value):
                    return False
            for position, size in zip(load.indices, load.source.ty.shape, strict=True):
                extent = self._extents.get(position) if isinstance(position, tirx.Var) else None
                if not is_constant(position, 0) and (extent is None or not same(extent, size)):
                    return False
        return True

    def _produce(self, wanted: ir.TensorLoad) -> Expr:
        for load, value in self._known:
            if same(load, wanted):
                return value
        stage = self._producers[wanted.source]
        (store,) = stage.stores
        point = {v.var: zero_of(v.var) for v in stage.spatial}
        for position, actual in zip(store.indices, wanted.indices, strict=True):
            if isinstance(position, tirx.Var):
                point[position] = actual
        value = self._rewrite(store.value, point)
        if str(value.ty.dtype) != "bool":
            value = let(value)
        self._known.append((wanted, value))
        return value


class Scratch:
    """Keeps values in small buffers, for ``lets_by``; LLVM makes registers of them.

    TVM's simplifier puts the value of a bound variable wherever the variable stands, and so takes
    exponential time over a chain of functions. It does not look into memory.
    """

    def __init__(self, length: int, position: Expr) -> None:
        self.allocations: list[tirx.Stmt] = []
        self.statements: list[tirx.Stmt] = []
        self._length = length
        self._position = position

    def keep(self, value: Expr) -> Expr:
        if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            return value
        length, position = self._length, self._position
        lanes = value.ty.dtype.lanes
        if lanes > 1:
            length, position = lanes, tirx.Ramp(int64(0), int64(1), lanes)
        element = str(value.ty.dtype).split("x")[0]
        buffer = tirx.decl_buffer((length,), element, "value", scope="local")
        variable = tirx.Var("value", value.ty)
        self.allocations.append(tirx.AllocBuffer(buffer, ON_STACK))
        self.statements.append(tirx.BufferStore(buffer, value, [position]))
        # A variable, and not the load: Select with a load in it becomes a branch.
        self.statements.append(tirx.Bind(variable, tirx.BufferLoad(buffer, [position])))
        return variable


def _is_float32(value: Expr) -> bool:
    return str(value.ty.dtype) == "float32"


def is_float(value: Expr) -> bool:
    return "float" in str(value.ty.dtype)


def _is_nan(value: Expr) -> Expr:
    """By the bits: TVM's simplifier believes that x == x, and isnan is not vectorized."""
    if str(value.ty.dtype) != "float64":
        value = tirx.Cast(_with_lanes("float32", value), value)
        bits = tirx.reinterpret(_with_lanes("int32", value), value)
        magnitude, infinity = 0x7FFFFFFF, 0x7F800000
    else:
        bits = tirx.reinterpret(_with_lanes("int64", value), value)
        magnitude, infinity = 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000
    return bits & tirx.const(magnitude, bits.ty.dtype) > tirx.const(infinity, bits.ty.dtype)


def _with_lanes(dtype: str, value: Expr) -> str:
    lanes = value.ty.dtype.lanes
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def zero_of(variable: tirx.Var) -> Expr:
    return tirx.IntImm(variable.ty.dtype, 0)


def maximum(a: Expr, b: Expr) -> Expr:
    """The larger, or NaN if either is."""
    if not is_float(a):
        return tirx.Max(a, b)
    a, b = let(a), let(b)
    return tirx.Select(tirx.any(a > b, _is_nan(a)), a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    if not is_float(a):
        return tirx.Min(a, b)
    a, b = let(a), let(b)
    return tirx.Select(tirx.any(a < b, _is_nan(a)), a, b)


_EXTREMA = {tirx.Max: maximum, tirx.Min: minimum}
COMBINERS: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: tirx.Add,
    tirx.Mul: tirx.Mul,
    **_EXTREMA,
}


def int64(value: Expr) -> Expr:
    if isinstance(value, (int, tirx.IntImm)):
        return tirx.IntImm("int64", int(value))
    return value if str(value.ty.dtype) == "int64" else tirx.Cast("int64", value)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
