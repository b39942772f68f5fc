"""What a graph may not do, since a bundle would lose or freeze it: write to state, draw at random."""

from __future__ import annotations

from typing import Any

import torch

from ..artifacts.errors import Diagnostic
from ..lowering.locations import user_location
from .trace import Trace


def forbidden(traced: Trace) -> list[Diagnostic]:
    """All writes to buffers, parameters and inputs, and all random draws of a traced graph."""
    signature = traced.program.graph_signature
    state = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    state |= signature.inputs_to_lifted_tensor_constants
    inputs = {
        name: path for name, (path, _) in zip(traced.placeholders, traced.bound.leaves, strict=True)
    }
    found: list[Diagnostic] = []
    for node in traced.program.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        where = user_location(node.meta.get("stack_trace"))
        if _is_random(node):
            found.append(
                Diagnostic(
                    "TC105",
                    f"{node.target._opname} draws random numbers",
                    location=where,
                    tries=("pass the random tensor as an input",),
                )
            )
        for root in _written(node):
            if root.op != "placeholder":
                continue
            if root.name in state:
                found.append(
                    Diagnostic(
                        "TC103",
                        f"the model writes to {state[root.name]} ({node.target._opname}), "
                        "and the next call would not see it",
                        location=where,
                        tries=(f"take {state[root.name]} as an input and return the new value",),
                    )
                )
            elif root.name in inputs:
                found.append(
                    Diagnostic(
                        "TC104",
                        f"the model writes to its input {inputs[root.name]} "
                        f"({node.target._opname})",
                        location=where,
                        tries=(f"write to a copy: {inputs[root.name]}.clone()",),
                    )
                )
    return found


def written(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """The nodes whose memory some op writes to: they change after they are made."""
    return frozenset(
        root
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        for root in _written(node)
    )


def _given(node: torch.fx.Node) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]
    defaults = {
        argument.name: argument.default_value
        for argument in node.target._schema.arguments
        if argument.has_default_value()
    }
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def _is_random(node: torch.fx.Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    given = _given(node)
    for switch in ("train", "training"):
        if switch in given:
            return bool(given[switch])
    for probability in ("dropout_p", "dropout"):
        if probability in given:
            return given[probability] != 0
    return True


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose memory an op writes to."""
    given = _given(node)
    roots = []
    for argument in node.target._schema.arguments:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = given.get(argument.name)
        for written in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(written, torch.fx.Node):
                roots.append(memory_of(written))
    return roots


def memory_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one is a view of (or may be)."""
    while isinstance(node.target, torch._ops.OpOverload):
        given = _given(node)
        aliased = [
            given.get(argument.name)
            for argument in node.target._schema.arguments
            if argument.alias_info is not None
        ]
        returns_alias = any(value.alias_info is not None for value in node.target._schema.returns)
        if not returns_alias or not aliased or not isinstance(aliased[0], torch.fx.Node):
            return node
        node = aliased[0]
    return node
