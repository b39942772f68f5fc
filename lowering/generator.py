"""A program that draws gets a generator: one more buffer, which each call moves on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from ..artifacts.errors import Diagnostic, ExportError
from .draws import GENERATOR, MOST_DRAWS, NEXT_CALL, WORDS, draws, generator_of
from .locations import user_location

_UNPLACED = -1


def draw_decompositions() -> dict[Any, Callable[..., Any]]:
    """For every op that draws: words without a generator, which `place_generator` gives them."""
    return draws(lambda count: WORDS(None, count, _UNPLACED))


def place_generator(program: torch.export.ExportedProgram) -> None:
    """Number the draws of a functional program, and let them come from its generator: an input that
    holds the seed and the number of the call, and an output with the next one.

    Raises:
        ExportError: TC105, draws within a loop, which all of its steps would share; too many of them.
    """
    graph = program.graph
    drawing = [node for node in graph.nodes if node.target is WORDS]
    _refuse_inner(program)
    if len(drawing) >= MOST_DRAWS:
        raise ExportError(
            Diagnostic(
                "TC105",
                f"random numbers are drawn {len(drawing)} times in a call, "
                f"of which a bundle tells {MOST_DRAWS - 1} apart",
                user_location(drawing[MOST_DRAWS - 1].meta.get("stack_trace")),
                tries=("draw once, one row for each use: torch.rand(uses, n)",),
            )
        )
    for number, node in enumerate(drawing):
        node.args = (None, node.args[1], number)
    for node in drawing:
        if not node.users:
            graph.erase_node(node)
    drawing = [node for node in drawing if node.users]
    if not drawing:
        return
    value = drawing[0].meta["val"]
    assert isinstance(value, FakeTensor)
    state = generator_of(0, 0)
    with graph.inserting_before(next(iter(graph.nodes))):
        placeholder = graph.placeholder("random_generator")
    placeholder.meta["val"] = value.fake_mode.from_tensor(state, static_shapes=True)
    for node in drawing:
        node.args = (placeholder, *node.args[1:])
    output = graph.output_node()
    with graph.inserting_before(output):
        moved = graph.call_function(NEXT_CALL, (placeholder,))
    moved.meta["val"] = placeholder.meta["val"]
    moved.meta["stack_trace"] = drawing[0].meta.get("stack_trace")
    output.args = ((moved, *output.args[0]),)
    signature = program.graph_signature
    of_input, of_output = (TensorArgument(name=node.name) for node in (placeholder, moved))
    # Not persistent: it is none of the model's own state, by which weights are exchanged.
    signature.input_specs.insert(0, InputSpec(InputKind.BUFFER, of_input, GENERATOR, False))
    signature.output_specs.insert(0, OutputSpec(OutputKind.BUFFER_MUTATION, of_output, GENERATOR))
    program.constants[GENERATOR] = state
    program.graph_module.recompile()


def _refuse_inner(program: torch.export.ExportedProgram) -> None:
    found = []
    for module in program.graph_module.modules():
        if module is program.graph_module or not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.target is WORDS:
                found.append(
                    Diagnostic(
                        "TC105",
                        "random numbers are drawn in the body of a loop, or in a branch",
                        user_location(node.meta.get("stack_trace")),
                        tries=("draw before it, one row for each step: torch.rand(steps, n)",),
                    )
                )
    if found:
        raise ExportError(found)
