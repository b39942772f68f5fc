"""State: the buffers that a program writes to, which outlive its calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..artifacts.states import StateTensor


@dataclass(frozen=True)
class State:
    """A buffer that calls change. ``name``: the user's (``cache.k``); ``placeholder``: the graph's
    input that holds the old value, ``result``: the node that gives the new one; ``value``: the
    buffer as the model has it."""

    name: str
    placeholder: str
    result: str
    value: torch.Tensor


def states(program: torch.export.ExportedProgram) -> tuple[State, ...]:
    """The buffers that a functional program changes, in the order of its outputs."""
    signature = program.graph_signature
    placeholders = {
        spec.target: spec.arg.name
        for spec in signature.input_specs
        if spec.kind is InputKind.BUFFER
    }
    found = []
    for spec in signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            name = str(spec.target)
            held = program.state_dict if name in program.state_dict else program.constants
            found.append(State(name, placeholders[name], spec.arg.name, held[name]))
    return tuple(found)


def kept(found: Iterable[State]) -> list[tuple[StateTensor, torch.Tensor]]:
    """How a bundle holds states, with their initial values: what is all zeros needs no bytes."""
    rows = []
    for state in found:
        value = state.value.detach().clone(memory_format=torch.contiguous_format)
        zeros = not value.reshape(-1).view(torch.uint8).any()  # by bits: -0.0 is none
        dtype = str(value.dtype).removeprefix("torch.")
        initial = "" if zeros else state.name
        rows.append((StateTensor(state.name, dtype, tuple(value.shape), initial), value))
    return rows
