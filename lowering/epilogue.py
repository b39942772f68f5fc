"""Which ops of a graph are computed together with the op before them.

A pattern is found on the FX graph and keyed by its *last* node, where the whole of it is emitted:
by then all of its operands are there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

aten = torch.ops.aten

_ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.silu.default: "silu",
}


@dataclass(frozen=True)
class LinearEpilogue:
    """A linear op and what follows it: act(linear)."""

    linear: torch.fx.Node
    activation: str | None


def find(graph: torch.fx.Graph) -> dict[torch.fx.Node, LinearEpilogue]:
    """The linears that are fused with what follows, by the last node of each pattern."""
    found = {}
    for node in graph.nodes:
        if node.target is not aten.linear.default:
            continue
        (user, *others) = node.users or (None,)
        if user is None or others:
            continue
        activation = _activation(user)
        if activation is not None:
            found[user] = LinearEpilogue(node, activation)
    return found


def _activation(node: torch.fx.Node) -> str | None:
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    return _ACTIVATIONS.get(node.target)  # type: ignore[call-overload]
