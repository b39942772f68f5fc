"""From a traced program to the graph that is lowered: functional, and of ops that have converters."""

from __future__ import annotations

import sympy
import torch
import torch.fx.experimental._config as fx_config
from torch.export.exported_program import _get_shape_env
from torch.export.graph_signature import OutputKind

from ..artifacts.errors import Diagnostic, ExportError
from .converters.registry import CONVERTERS
from .locations import user_location

aten = torch.ops.aten

# Their content is part of the contract, which the runtime checks at every call.
CHECKS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# Aliases under functionalization: torch cannot keep them, and takes them apart to views.
_NOT_KEPT = ("aten.contiguous.default", "aten.reshape.default", "aten.flatten.using_ints")


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Make the graph functional, and take apart every op that has no converter of its own.

    The program's graph is changed in place; give it a program of your own.

    Raises:
        ExportError: the model changes its state (TC103) or an input (TC104), or draws random
            numbers (TC105).
    """
    for node in program.graph.nodes:
        # A view that eager mode can take may not be one of what a decomposition gives instead.
        if node.op == "call_function" and node.target is aten.view.default:
            node.target = aten.reshape.default
    _mend_ranges(program)
    table = torch.export.default_decompositions()
    for op in list(table):
        if str(op) in CONVERTERS and str(op) not in _NOT_KEPT:
            table.pop(op)
    # The settings that the trace was made with: without them new guards would appear here.
    with (
        torch.no_grad(),
        fx_config.patch(backed_size_oblivious=True, use_duck_shape=False),
    ):
        program = program.run_decompositions(table)
    found = [*_mutations(program), *_randomness(program)]
    if found:
        raise ExportError(found)
    return program


def _mend_ranges(program: torch.export.ExportedProgram) -> None:
    """torch.export.load enters derived sizes (2*s0) among the symbols, on which run_decompositions
    then fails (torch 2.13); their ranges follow from their symbols'."""
    environment = _get_shape_env(program.graph_module)
    if environment is None:
        return
    for key in list(environment.var_to_range):
        if not isinstance(key, sympy.Symbol):
            del environment.var_to_range[key]


def _mutations(program: torch.export.ExportedProgram) -> list[Diagnostic]:
    found = []
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            continue
        node = nodes.get(getattr(spec.arg, "name", ""))
        location = user_location(node.meta.get("stack_trace")) if node else None
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            found.append(
                Diagnostic("TC104", f"the model writes into its input {spec.target!r}", location)
            )
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            found.append(Diagnostic("TC103", f"a call changes {spec.target!r}", location))
        else:
            found.append(
                Diagnostic("TC103", f"the program has an output of kind {spec.kind.name}", location)
            )
    return found


def _randomness(program: torch.export.ExportedProgram) -> list[Diagnostic]:
    found = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded not in node.target.tags:
            continue
        # Attention carries the tag for the sake of its dropout alone.
        if node.target is aten.scaled_dot_product_attention.default:
            dropout = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
            if dropout == 0.0:
                continue
        location = user_location(node.meta.get("stack_trace"))
        found.append(Diagnostic("TC105", f"{node.target} draws random numbers", location))
    return found
