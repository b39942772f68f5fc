"""Which ops of a graph are computed together with the op before them.

A pattern is found on the FX graph and keyed by its *last* node, where the whole of it is emitted:
by then all of its operands are there. The nodes in between have no other user.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .symbols import as_shape

aten = torch.ops.aten

_ACTIVATIONS = {
    aten.relu.default: "relu",
    aten.silu.default: "silu",
}


@dataclass(frozen=True)
class LinearEpilogue:
    """act(linear) + residual."""

    linear: torch.fx.Node
    activation: str | None
    residual: torch.fx.Node | None
    inner: tuple[torch.fx.Node, ...]


@dataclass(frozen=True)
class NormOfSum:
    """layer_norm(add)."""

    norm: torch.fx.Node
    inner: tuple[torch.fx.Node, ...]

    @property
    def add(self) -> torch.fx.Node:
        return self.inner[0]


Pattern = LinearEpilogue | NormOfSum


def find(graph: torch.fx.Graph) -> dict[torch.fx.Node, Pattern]:
    """The patterns of a graph by their last nodes; no node is in two of them."""
    found: dict[torch.fx.Node, Pattern] = {}
    for node in graph.nodes:
        if node.target is aten.linear.default:
            last, pattern = _after_linear(node, found)
            if pattern.inner:
                found[last] = pattern
    taken = set(found) | {node for pattern in found.values() for node in pattern.inner}
    for node in graph.nodes:
        if node.target is aten.layer_norm.default:
            add = node.args[0]
            if add not in taken and _is_sum(add) and len(add.users) == 1:
                found[node] = NormOfSum(node, (add,))
    return found


def _after_linear(
    linear: torch.fx.Node, found: dict[torch.fx.Node, Pattern]
) -> tuple[torch.fx.Node, LinearEpilogue]:
    """The longest pattern that begins with a linear, and its last node."""
    last, inner = linear, []
    activation, residual = None, None
    user = _only_user(last)
    if user is not None and (activation := _activation(user)) is not None:
        inner.append(last)
        last, user = user, _only_user(user)
    # The residual may be any tensor: this pattern stands where the sum stood.
    if user is not None and user not in found and _is_sum(user):
        inner.append(last)
        residual = user.args[1] if user.args[0] is last else user.args[0]
        last = user
    return last, LinearEpilogue(linear, activation, residual, tuple(inner))


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _activation(node: torch.fx.Node) -> str | None:
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    return _ACTIVATIONS.get(node.target)


def _is_sum(node: torch.fx.Node) -> bool:
    """Whether a node adds two float tensors of one shape, neither of them twice."""
    if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return False
    a, b = node.args[:2]
    if not isinstance(a, torch.fx.Node) or not isinstance(b, torch.fx.Node) or a is b:
        return False
    values = [n.meta.get("val") for n in (a, b, node)]
    if not all(isinstance(v, torch.Tensor) and v.dtype is torch.float32 for v in values):
        return False
    shapes = {as_shape(value.shape) for value in values}
    return len(shapes) == 1
