"""What keeps the numbers of GPU code those of eager mode, where TVM's own lowering gives others.

* TVM calls CUDA's fast intrinsics for exp, log, sin and the like (``__expf``), whose error grows with
  the argument without bound; here the functions of CUDA's math library are called (``expf``, at most
  2 ulp; CUDA C++ Programming Guide, "Mathematical Functions").
* ``max`` and ``min`` of CUDA drop a NaN; torch's keep it.
* TE begins a maximum of floats at the least finite number, and so makes that of a row of -inf.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, tirx

_FAST = {"exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "pow"}


def with_exact_functions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same with every call that TVM would make a fast intrinsic of made one of the library."""

    def call(node: ir.Call, mutator: Any) -> Any:
        name = node.op.name.removeprefix("tirx.") if isinstance(node.op, ir.Op) else ""
        dtype = str(node.ty.dtype) if name in _FAST else ""
        if dtype not in ("float32", "float64"):
            return mutator.default_mutate(node)
        arguments = [mutator.mutate(argument) for argument in node.args]
        suffix = "f" if dtype == "float32" else ""
        return tirx.call_pure_extern(dtype, name + suffix, *arguments)

    return function.with_body(tvm_ffi.structural_mutate(function.body, ((ir.Call, call),)))


def begun_at_infinity(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled function, its reductions across threads lowered, in which every maximum of floats
    begins at -inf, and every minimum at inf.

    That is not said before the schedule: TVM knows its own identities only where it splits a
    reduction among threads.
    """
    kept: dict[Any, type] = {}

    def accumulator(node: tirx.BufferStore) -> None:
        value = node.value
        if isinstance(value, (tirx.Max, tirx.Min)) and "float" in str(value.ty.dtype):
            for own in (value.a, value.b):
                if isinstance(own, ir.TensorLoad) and own.source.same_as(node.buffer):
                    kept[node.buffer] = type(value)

    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, accumulator))

    def identity(value: Any, kind: type) -> Any:
        """The neutral number, for TVM's."""
        dtype = value.ty.dtype
        least = tirx.min_value(str(dtype)) if kind is tirx.Max else tirx.max_value(str(dtype))
        if not isinstance(value, tirx.FloatImm) or float(value.value) != float(least.value):
            return value
        return tirx.FloatImm(dtype, -math.inf if kind is tirx.Max else math.inf)

    def store(node: tirx.BufferStore, mutator: Any) -> tirx.Stmt:
        node = mutator.default_mutate(node)
        if node.buffer not in kept:
            return node
        value = identity(node.value, kept[node.buffer])
        return tirx.BufferStore(node.buffer, value, node.indices)

    def reducer(node: tirx.CommReducer, mutator: Any) -> tirx.CommReducer:
        kinds = [type(result) for result in node.result]
        if not all(kind in (tirx.Max, tirx.Min) for kind in kinds):
            return node
        neutral = [identity(v, k) for v, k in zip(node.identity_element, kinds, strict=True)]
        return tirx.CommReducer(node.lhs, node.rhs, node.result, neutral)

    body = tvm_ffi.structural_mutate(
        function.body, ((tirx.BufferStore, store), (tirx.CommReducer, reducer))
    )
    return function.with_body(body)


def keeping_nan(module: IRModule) -> IRModule:
    """Lowered device functions whose maxima and minima of floats are NaN where an operand is."""

    def extreme(node: tirx.Max | tirx.Min, mutator: Any) -> Any:
        a, b = mutator.mutate(node.a), mutator.mutate(node.b)
        if "float" not in str(a.ty.dtype):
            return type(node)(a, b)
        first, second = tirx.Var("a", a.ty), tirx.Var("b", b.ty)
        wins = first > second if isinstance(node, tirx.Max) else first < second
        kept = tirx.Select(tirx.any(wins, tirx.isnan(first)), first, second)
        return tirx.Let(first, a, tirx.Let(second, b, kept))

    result = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            body = tvm_ffi.structural_mutate(
                function.body, ((tirx.Max, extreme), (tirx.Min, extreme))
            )
            result.update_func(name, function.with_body(body))
    return result
