"""A module of samples as a program: traced or refused, and compiled in this process."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import sympy
import torch
import torch._export.utils as export_utils
import torch.fx.experimental._config as fx_config
import tvm
import tvm_ffi
from torch import nn
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from tvm import relax

from tcexport.artifacts.errors import Diagnostic, ExportError
from tcexport.exporter.breaks import explain_failure, explain_pass
from tcexport.exporter.eager import quietly, without_fast_path
from tcexport.lowering.answer import Function
from tcexport.lowering.decompose import decompose
from tcexport.lowering.graph import survey
from tcexport.lowering.library import build_all
from tcexport.lowering.pipeline import compile_module
from tcexport.lowering.survey import refusals
from tcexport.lowering.targets import CPU_TARGETS
from tcexport.lowering.tracing import whole_ops
from tcexport.lowering.variants import ENTRY
from tcexport.lowering.weights import WeightStore, constants

from .conftest import TARGET, aligned, argument, in_parts

_TARGET = CPU_TARGETS[TARGET]


class Axes(enum.Enum):
    """Which axes are dynamic, of those with more than one element: one of one element would be taken
    for any other, and no sample that broadcasts be traced."""

    ALL = "those of all tensors"
    FIRST = "those of the first tensor"
    NONE = "none"


class Refused(Exception):
    """A program is refused, by a code and a name."""


@dataclass(frozen=True)
class Program:
    """A decomposed program of tensors alone.

    ``ops``: those of core ATen in it, and before decomposition. ``shapes``: the sizes of its inputs.
    """

    program: torch.export.ExportedProgram
    ops: frozenset[str]
    shapes: tuple[tuple[Any, ...], ...]
    env: ShapeEnv | None

    def longer(self, inputs: Iterable[int]) -> list[list[int]] | None:
        """Shapes of some inputs with every free axis one longer; None where there is no free axis, or
        a guard of the trace does not let them in."""
        shapes = [[_expression(size) for size in self.shapes[index]] for index in inputs]
        free = {symbol for shape in shapes for size in shape for symbol in size.free_symbols}
        if self.env is None or not free:
            return None
        hints = self.env.backed_var_to_val
        sizes = {symbol: sympy.Integer(hints[symbol] + 1) for symbol in free}
        if not all(sizes[each] in _range(self.env, each) for each in free):
            return None
        for guard in self.env.guards:
            held = self.env.replace(guard.expr)
            if held.free_symbols & free and held.xreplace(hints | sizes) != sympy.true:
                return None
        return [[int(size.xreplace(sizes)) for size in shape] for shape in shapes]


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _range(env: ShapeEnv, symbol: sympy.Symbol) -> sympy.Interval:
    known = env.var_to_range[symbol]
    return sympy.Interval(known.lower, known.upper)


def traced(module: nn.Module, tensors: Sequence[torch.Tensor], axes: Axes) -> Program:
    """Trace and decompose.

    Raises:
        Refused: torch cannot trace it, or it cannot be taken apart.
    """
    auto = torch.export.Dim.AUTO
    dynamic = [
        {at: auto for at, n in enumerate(tensor.shape) if n > 1 and axes is not Axes.NONE}
        for tensor in tensors
    ]
    if axes is Axes.FIRST:
        dynamic[1:] = [{} for _ in dynamic[1:]]
    shapes = (tuple(dynamic),) if any(dynamic) else None
    inputs = tuple(tensor.clone() for tensor in tensors)
    with (
        torch.no_grad(),
        quietly(),
        without_fast_path(),
        fx_config.patch(backed_size_oblivious=True, use_duck_shape=False),
        whole_ops(),
        mock.patch.object(export_utils, *_CIA),
    ):
        try:
            program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # torch's refusals, in our words
            raise _refused([explain_failure(error)[0]]) from error
        ops = _core_ops(program)
        try:
            program = decompose(program, {})
        except ExportError as error:
            raise _refused(error.diagnostics) from error
        except Exception as error:
            raise _refused([explain_pass(error, program)]) from error
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    given = [nodes[str(name)].meta["val"] for name in program.graph_signature.user_inputs]
    mode = detect_fake_mode(given)
    sizes = tuple(tuple(each.shape) for each in given)
    return Program(
        program, frozenset(ops | _core_ops(program)), sizes, mode.shape_env if mode else None
    )


# Torch asks for all of its ops at each decomposition, which takes longer than the rest.
_CIA = (
    "_collect_all_valid_cia_ops_for_namespace",
    functools.cache(export_utils._collect_all_valid_cia_ops_for_namespace),
)


def _core_ops(program: torch.export.ExportedProgram) -> set[str]:
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return {
        str(target)
        for target in targets
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.core in target.tags
    }


def refusal(module: nn.Module, tensors: Sequence[torch.Tensor], axes: Axes) -> Refused | None:
    """Why a module is refused, by what is known before it is compiled."""
    try:
        program = traced(module, tensors, axes).program
        rows = survey(program, constants(program), _TARGET).ops
    except Refused as refused:
        return refused
    except Exception:  # told where it is compiled
        return None
    found = refusals(rows)
    return _refused(found) if found else None


def _refused(found: Sequence[Diagnostic]) -> Refused:
    texts = {re.sub(r"\b[su]\d+\b", "s", f"{each.code} {each.message}"[:160]) for each in found}
    return Refused(", ".join(sorted(texts)))


def compiled(program: Program) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """The program as a function of its tensors, of any sizes that its guards let in.

    Raises:
        Refused: an op, or a use of it, is not lowered (TC501).
        ExportError: a converter's result is not what the trace says (TC502).
    """
    store = WeightStore()
    made = program.program
    try:
        library = build_all([made], [constants(made)], [Function()], _TARGET, store)
    except ExportError as error:
        if any(each.code != "TC501" for each in error.diagnostics):
            raise
        raise _refused(error.diagnostics) from error
    (called,) = library.functions
    if called.states:
        raise Refused("not compared: draws other numbers than eager, from the seed of a session")
    executable = compile_module(library.module, _TARGET, {ENTRY: len(called.weights)}).executable
    vm = relax.VirtualMachine(executable, tvm.cpu())
    kept = [aligned(store.kept[name].value) for name in called.weights]

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        sizes = _sizes(program, called.sizes, tensors)
        inputs = [aligned(in_parts(tensors[index])) for index in called.inputs]
        arguments: list[Any] = [argument(tensor) for tensor in inputs]
        arguments += [tvm_ffi.Shape(sizes)] if sizes else []
        arguments += [argument(tensor) for tensor in kept]
        results = vm[called.name](*arguments)
        alone = isinstance(results, tvm_ffi.Tensor)
        return [torch.from_dlpack(result) for result in ([results] if alone else results)]

    return run


def _sizes(program: Program, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[int]:
    """The sizes of the symbols that a function is called with."""
    known = {
        str(_expression(size)): n
        for shape, tensor in zip(program.shapes, tensors, strict=True)
        for size, n in zip(shape, tensor.shape, strict=True)
    }
    hints = {} if program.env is None else program.env.backed_var_to_val
    known = {symbol.name: int(hint) for symbol, hint in hints.items()} | known
    return [known[name] for name in names]
