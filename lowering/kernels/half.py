"""Half-precision floats: stored as such, computed in float32.

LLVM converts float16 by instructions of the CPU (F16C), or by code that TVM puts into each module.
bfloat16 is the upper half of a float32. TVM's own passes for it round some NaN to infinity, and
leave expressions whose parts do not fit; `bfloat16_as_bits` leaves them nothing to do.
"""

from __future__ import annotations

import struct
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx
from tvm.tirx.script.builder import ir as T

from .prim_func import FLOAT, Expr, let, load, select, vector

_NAN = 0x7FC0  # of bfloat16


def typed(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def widen(value: Expr, lanes: int) -> Expr:
    """A vector of floats of any width as float32."""
    if str(value.ty.dtype) == typed(FLOAT, lanes):
        return value
    return tirx.Cast(typed(FLOAT, lanes), value)


def load_wide(buffer: tirx.Buffer, *position: Expr, lanes: int) -> Expr:
    """``load`` of any float, as float32."""
    return widen(load(buffer, *position, lanes=lanes), lanes)


def narrow(value: Expr, dtype: str, lanes: int) -> Expr:
    """float32 rounded to ``dtype``, to the nearest, ties to even."""
    if dtype == FLOAT:
        return value
    if dtype != "bfloat16":
        return tirx.Cast(typed(dtype, lanes), value)
    upper = _upper_half(let(value), lanes)
    return T.reinterpret(typed(dtype, lanes), upper)


def _upper_half(value: Expr, lanes: int) -> Expr:
    """The bits of a float32 vector in bfloat16."""
    bits = T.reinterpret(typed("uint32", lanes), value)

    def number(constant: int) -> Expr:
        return vector(constant, lanes, "uint32")

    odd = T.bitwise_and(T.shift_right(bits, number(16)), number(1))
    upper = T.shift_right(bits + number(0x7FFF) + odd, number(16))
    is_nan = T.bitwise_and(bits, number(0x7FFFFFFF)) > number(0x7F800000)
    upper = select(is_nan, number(_NAN), upper)
    return tirx.Cast(typed("uint16", lanes), upper)


def rounded(value: Expr, dtype: str, lanes: int) -> Expr:
    """float32 with the digits that ``dtype`` keeps, as float32."""
    return value if dtype == FLOAT else widen(narrow(value, dtype, lanes), lanes)


def bfloat16_as_bits(module: IRModule) -> IRModule:
    """Let every PrimFunc work on the bits of bfloat16, as uint16: only its parameters have the dtype.

    Raises:
        TypeError: something is computed in bfloat16, and not in float32.
    """
    result = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _mentions_bfloat16(function):
            body = _as_bits(function.body, {*function.params, *_declared(function.body)})
            result.update_func(name, function.with_body(body))
    return result


def _mentions_bfloat16(function: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def look(value: Any) -> None:
        if _is_bfloat16(value):
            found.append(value)

    tvm_ffi.structural_walk(function.body, (ir.Expr, look))
    return bool(found)


def _declared(body: tirx.Stmt) -> list[tirx.Buffer]:
    """The buffers that are other names for the memory of a parameter."""
    found: list[tirx.Buffer] = []
    tvm_ffi.structural_walk(body, (tirx.DeclBuffer, lambda node: found.append(node.buffer)))
    return found


def _is_bfloat16(value: Any) -> bool:
    # An address has no dtype.
    return str(getattr(value.ty, "dtype", "")).startswith("bfloat16")


def _as_bits(node: Any, parameters: set[tirx.Buffer]) -> Any:
    renamed: dict[tirx.Var, tirx.Var] = {}
    twins: dict[tirx.Buffer, tirx.Buffer] = {}

    def own(buffer: tirx.Buffer) -> tirx.Buffer:
        """The buffer of bits for one that the function allocates."""
        if buffer in parameters or not _is_bfloat16(buffer):
            return buffer
        if buffer not in twins:
            twins[buffer] = tirx.decl_buffer(
                buffer.shape, "uint16", buffer.name, scope=buffer.scope()
            )
        return twins[buffer]

    def bits_type(value: Expr) -> str:
        return str(value.ty.dtype).replace("bfloat16", "uint16")

    def renamed_var(variable: tirx.Var, value: Expr) -> tirx.Var:
        if _is_bfloat16(variable) and variable not in renamed:
            renamed[variable] = tirx.Var(variable.name, value.ty)
        return renamed.get(variable, variable)

    def load(node: ir.TensorLoad, mutator: Any) -> Expr:
        read = tirx.BufferLoad(own(node.source), [mutator.mutate(i) for i in node.indices])
        return T.reinterpret(bits_type(read), read) if _is_bfloat16(read) else read

    def store(node: tirx.BufferStore, mutator: Any) -> tirx.Stmt:
        value = mutator.mutate(node.value)
        buffer = own(node.buffer)
        if _is_bfloat16(buffer):
            value = T.reinterpret(str(node.value.ty.dtype), value)
        return tirx.BufferStore(buffer, value, [mutator.mutate(i) for i in node.indices])

    def allocation(node: tirx.AllocBuffer, mutator: Any) -> tirx.Stmt:
        return tirx.AllocBuffer(own(node.buffer), node.annotations)

    def region(node: Any) -> Any:
        return tirx.BufferRegion(own(node.source), node.region)

    def block(node: s_tir.SBlock, mutator: Any) -> s_tir.SBlock:
        return s_tir.SBlock(
            node.iter_vars,
            [region(each) for each in node.reads],
            [region(each) for each in node.writes],
            node.name_hint,
            mutator.mutate(node.body),
            None if node.init is None else mutator.mutate(node.init),
            [own(buffer) for buffer in node.alloc_buffers],
            node.match_buffers,
            node.annotations,
        )

    def cast(node: tirx.Cast, mutator: Any) -> Expr:
        value = mutator.mutate(node.value)
        lanes = node.ty.dtype.lanes
        if _is_bfloat16(node.value):
            wide = tirx.Cast(typed("uint32", lanes), value)
            wide = T.shift_left(wide, vector(16, lanes, "uint32"))
            value = T.reinterpret(typed(FLOAT, lanes), wide)
        if _is_bfloat16(node):
            variable = tirx.Var("wide", value.ty)
            return tirx.Let(variable, value, _upper_half(variable, lanes))
        return value if value.ty.dtype == node.ty.dtype else tirx.Cast(node.ty.dtype, value)

    def call(node: ir.Call, mutator: Any) -> Expr:
        name = node.op.name if isinstance(node.op, ir.Op) else ""
        inside = _is_bfloat16(node) or any(
            isinstance(a, ir.Expr) and _is_bfloat16(a) for a in node.args
        )
        if not inside:
            return mutator.default_mutate(node)
        if name == "tirx.buffer_data":
            return own(node.args[0]).data
        if name == "tirx.address_of":
            (read,) = node.args
            indices = [mutator.mutate(i) for i in read.indices]
            return T.address_of(tirx.BufferLoad(own(read.source), indices))
        arguments = [mutator.mutate(argument) for argument in node.args]
        if name == "tirx.reinterpret":
            return arguments[0]
        if name == "prim.if_then_else":
            return tirx.if_then_else(*arguments)
        raise TypeError(f"{node} is computed in bfloat16")

    def select(node: tirx.Select, mutator: Any) -> Expr:
        return tirx.Select(
            mutator.mutate(node.condition),
            mutator.mutate(node.true_value),
            mutator.mutate(node.false_value),
        )

    def let_in(node: tirx.Let, mutator: Any) -> Expr:
        value = mutator.mutate(node.value)
        return tirx.Let(renamed_var(node.var, value), value, mutator.mutate(node.body))

    def bind(node: tirx.Bind, mutator: Any) -> tirx.Stmt:
        value = mutator.mutate(node.value)
        return tirx.Bind(renamed_var(node.var, value), value)

    def broadcast(node: tirx.Broadcast, mutator: Any) -> Expr:
        return tirx.Broadcast(mutator.mutate(node.value), node.lanes)

    def constant(node: tirx.FloatImm, mutator: Any) -> Expr:
        if not _is_bfloat16(node):
            return node
        value = float(node.value)
        if value != value:
            return tirx.const(_NAN, "uint16")
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return tirx.const((bits + 0x7FFF + (bits >> 16 & 1)) >> 16, "uint16")

    return tvm_ffi.structural_mutate(
        node,
        (
            (tirx.Var, lambda variable, _: renamed.get(variable, variable)),
            (ir.TensorLoad, load),
            (tirx.BufferStore, store),
            (tirx.AllocBuffer, allocation),
            (tirx.DeclBuffer, lambda node, _: node),
            (s_tir.SBlock, block),
            (tirx.Cast, cast),
            (ir.Call, call),
            (tirx.Select, select),
            (tirx.Let, let_in),
            (tirx.Bind, bind),
            (tirx.Broadcast, broadcast),
            (tirx.FloatImm, constant),
        ),
    )
