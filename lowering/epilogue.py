"""Which ops of a graph are computed together with the op before them.

A pattern is found on the FX graph and keyed by its *last* node, where the whole of it is emitted:
by then all of its operands are there. The nodes in between have no other user.
"""

from __future__ import annotations

import operator
from collections.abc import Container
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


@dataclass(frozen=True)
class ConvNorm:
    """act(batch_norm(conv)), the weights and the statistics being constants."""

    conv: torch.fx.Node
    norm: torch.fx.Node
    activation: str | None
    inner: tuple[torch.fx.Node, ...]


Pattern = LinearEpilogue | NormOfSum | ConvNorm


def find(graph: torch.fx.Graph, constants: Container[str]) -> dict[torch.fx.Node, Pattern]:
    """The patterns of a graph by their last nodes; no node is in two of them.

    Args:
        constants: the names of the nodes that are parameters, buffers or constants.
    """
    found: dict[torch.fx.Node, Pattern] = {}
    for node in graph.nodes:
        if node.target is aten.conv2d.default:
            _find_conv_norm(node, constants, found)
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


def _find_conv_norm(
    conv: torch.fx.Node, constants: Container[str], found: dict[torch.fx.Node, Pattern]
) -> None:
    norm = _only_user(conv)
    if norm is None or norm.target is not aten._native_batch_norm_legit_no_training.default:
        return
    first = _only_user(norm)
    if first is None or first.target is not operator.getitem or first.args[1] != 0:
        return
    operands = [*conv.args[1:3], *norm.args[1:5]]
    value = conv.meta["val"]
    if value.dtype is not torch.float32 or value.dim() != 4:
        return
    if not all(
        operand is None or (isinstance(operand, torch.fx.Node) and operand.name in constants)
        for operand in operands
    ):
        return
    user = _only_user(first)
    activation = None if user is None else _activation(user)
    if user is None or activation is None:
        found[first] = ConvNorm(conv, norm, None, (conv, norm))
    else:
        found[user] = ConvNorm(conv, norm, activation, (conv, norm, first))


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    # torch.export.load gives a node with several results a getitem for each, used or not.
    users = [user for user in node.users if user.users or user.target is not operator.getitem]
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
