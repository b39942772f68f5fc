"""Updates of state where it lies, when nothing needs the old value any more.

A graph is functional: each write to a state gives a new tensor, and the last of them is what the state
is after the call. A kernel marked ``PREFILLED`` writes to some elements of a result that holds the old
values already. Once all else is fused, and the order of the kernels is fixed, each call of such a
kernel is either made on the memory of its first argument, where that value is not used again, or on a
copy of it. A new value that lies elsewhere is copied to the state at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tvm import IRModule, ir, relax, tirx
from tvm.tirx.script.builder import ir as T

from .cuda.launch import a_thread_for_each
from .kernels.prim_func import dim, parallel_tasks, param, prim_func, serial

PREFILLED = "tcexport.prefilled"
_STATES = "tcexport.states"


def keeping_states(module: IRModule, name: str, parameters: Iterable[int]) -> IRModule:
    """A module whose function ``name`` takes states as ``parameters``, and gives back their new
    values as the last fields of its result."""
    function = module[name].with_attr(_STATES, ",".join(map(str, parameters)))
    module.update_func(module.get_global_var(name), function)
    return module


def update_in_place(module: IRModule, *, on_gpu: bool = False) -> IRModule:
    """Make the functions of `keeping_states` write to their states, and give back the rest alone.

    Requires a module without dataflow blocks, all kernels fused; ensures that a state is written
    after its last use.
    """
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and _STATES in (function.attrs or {}):
            module = _Rewriter(module, function, on_gpu).run(variable)
    return module


@dataclass
class _Memory:
    """A value that a tensor, and its views, have: when it is used last, and where it lies: the
    number of a state, None for memory that the function allocates, -1 for what is not written to."""

    last: int = -1
    place: int | None = None


@dataclass
class _Rewriter:
    module: IRModule
    function: relax.Function
    on_gpu: bool
    known: dict[Any, list[_Memory]] = field(default_factory=dict)

    def run(self, variable: ir.GlobalVar) -> IRModule:
        function = self.function
        numbers = [int(number) for number in str(function.attrs[_STATES]).split(",")]
        self.states = [function.params[number] for number in numbers]
        for parameter in function.params:
            self.known[parameter] = [_Memory(place=-1)]
        for number, state in enumerate(self.states):
            self.known[state] = [_Memory(place=number)]
        bindings = [each for block in function.body.blocks for each in block.bindings]
        self.look(bindings, function.body.body)
        self.builder = relax.BlockBuilder(self.module)
        made: list[relax.Binding] = []
        for at, binding in enumerate(bindings):
            made += self.rewritten(at, binding)
        made, result = self.written_back(made, function.body.body)
        body = relax.SeqExpr([relax.BindingBlock(made)], result)
        rewritten = relax.Function(
            function.params,
            body,
            result.ty,
            is_pure=function.is_pure,
            attrs=function.without_attr(_STATES).attrs,
        )
        self.builder.update_func(variable, rewritten)
        return self.builder.get()

    # What is used when: as the graph says it, each kernel giving a tensor of its own.

    def look(self, bindings: Sequence[relax.Binding], result: Any) -> None:
        for at, binding in enumerate(bindings):
            used = [memory for each in _variables(binding.value) for memory in self.of(each)]
            for memory in used:
                memory.last = at
            # All but a kernel may be a view of what it takes.
            self.known[binding.var] = [_Memory()] if _is_kernel(binding.value) else used
        for variable in _variables(result):
            for memory in self.of(variable):
                memory.last = len(bindings)

    def of(self, variable: Any) -> list[_Memory]:
        return self.known.get(variable, [])

    # What is written where.

    def rewritten(self, at: int, binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value
        if not _is_kernel(value) or PREFILLED not in (self.module[value.args[0]].attrs or {}):
            return [binding]
        kernel, operands = value.args[0], list(value.args[1].fields)
        source, *others = operands
        held = self.of(source)
        elsewhere = [memory for each in others for memory in self.of(each)]
        free = (
            len(held) == 1
            and held[0].last == at
            and held[0].place != -1
            and not any(memory is held[0] for memory in elsewhere)
        )
        if free:
            self.of(binding.var)[0].place = held[0].place
            return [_call(kernel, [*operands, source]), relax.VarBinding(binding.var, source)]
        copy = relax.call_tir(self.copying(source), [source], binding.var.ty)
        return [
            relax.VarBinding(binding.var, copy),
            _call(kernel, [*operands, binding.var]),
        ]

    def written_back(
        self, made: list[relax.Binding], result: Any
    ) -> tuple[list[relax.Binding], relax.Tuple]:
        """The bindings with what is still to be copied to a state, and the results alone."""
        *made, last = made
        assert last.var.same_as(result) and isinstance(last.value, relax.Tuple)
        fields = list(last.value.fields)
        first = len(fields) - len(self.states)
        writes: list[relax.Binding] = []
        for number, (state, value) in enumerate(zip(self.states, fields[first:], strict=True)):
            places = [memory.place for memory in self.of(value)]
            if places == [number]:
                continue
            copy = self.copying(state)
            if places != [None]:  # what a loop gives may lie in another state, too
                apart = relax.Var("apart", state.ty)
                made.append(relax.VarBinding(apart, relax.call_tir(copy, [value], state.ty)))
                value = apart
            writes.append(_call(copy, [value, state]))
        made += writes
        return made, relax.Tuple(fields[:first])

    def copying(self, value: Any) -> ir.GlobalVar:
        shape = [int(size) for size in value.ty.shape.values]
        copy = copy_kernel(shape, str(value.ty.dtype), on_gpu=self.on_gpu)
        return self.builder.add_func(copy, "copy_state")


def copy_kernel(shape: Sequence[int], dtype: str, *, on_gpu: bool = False) -> tirx.PrimFunc:
    """All elements of the first parameter to the second."""
    if on_gpu:
        return _copy_by_threads(shape, dtype)

    def declare() -> Any:
        extents = [dim(size, "n") for size in shape]
        source, target = param("x", extents, dtype), param("y", extents, dtype)

        outer = next((axis for axis, size in enumerate(shape) if size != 1), 0)

        def row(task: Any) -> None:
            with ExitStack() as loops:
                at = [
                    task if axis == outer else loops.enter_context(serial(size))
                    for axis, size in enumerate(shape)
                ]
                T.buffer_store(target, source[tuple(at)], at)

        if not shape:
            return lambda: row(None)
        return lambda: parallel_tasks(shape[outer], math.prod(shape), row)

    return prim_func("copy_state", declare)


def _copy_by_threads(shape: Sequence[int], dtype: str) -> tirx.PrimFunc:
    def declare() -> Any:
        extents = [dim(size, "n") for size in shape]
        source, target = param("x", extents, dtype), param("y", extents, dtype)

        def body() -> None:
            with a_thread_for_each(extents) as at:
                T.buffer_store(target, source[tuple(at)], at)

        return body

    return prim_func("copy_state", declare).with_attr("tirx.is_scheduled", True)


def _is_kernel(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir"


def _call(kernel: ir.GlobalVar, arguments: Sequence[Any]) -> relax.VarBinding:
    """A call for its effect."""
    nothing = relax.TupleType([])
    return relax.VarBinding(relax.Var("_", nothing), relax.Call(kernel, arguments, ret_ty=nothing))


def _variables(value: Any) -> list[Any]:
    found: list[Any] = []

    def see(node: Any) -> None:
        if isinstance(node, relax.Var):
            found.append(node)

    relax.analysis.post_order_visit(value, see)
    return found
