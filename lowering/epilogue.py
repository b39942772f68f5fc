"""Which ops of a graph are computed together with the op before them.

A pattern is found on the FX graph and keyed by its *last* node, where the whole of it is emitted:
by then all of its operands are there. The nodes in between have no other user.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .symbols import as_shape

aten = torch.ops.aten

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
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
class ConvEpilogue:
    """act(batch_norm(conv) + residual), the weights and the statistics being constants.

    Any part may be missing but the convolution and one more.
    """

    conv: torch.fx.Node
    norm: torch.fx.Node | None
    residual: torch.fx.Node | None
    activation: str | None
    inner: tuple[torch.fx.Node, ...]


Pattern = LinearEpilogue | NormOfSum | ConvEpilogue


def find(
    graph: torch.fx.Graph,
    constants: Container[str],
    *,
    coded: Container[torch.fx.Node] = frozenset(),
) -> dict[torch.fx.Node, Pattern]:
    """The patterns of a graph by their last nodes; no node is in two of them.

    Args:
        constants: the names of the nodes that are parameters, buffers or constants.
        coded: the nodes that make weights of int8 constants.
    """
    found: dict[torch.fx.Node, Pattern] = {}
    taken: set[torch.fx.Node] = set()
    pattern: LinearEpilogue | ConvEpilogue | None
    for node in graph.nodes:
        last, pattern = node, None
        if node.target is aten.conv2d.default:
            last, pattern = _after_conv(node, constants, coded, taken)
        if node.target is aten.linear.default:
            last, pattern = _after_linear(node, taken)
        if pattern is not None and pattern.inner:
            found[last] = pattern
            taken |= {last, *pattern.inner}
    for node in graph.nodes:
        if node.target is aten.layer_norm.default:
            add = node.args[0]
            if add not in taken and _is_sum(add) and len(add.users) == 1:
                found[node] = NormOfSum(node, (add,))
    return found


def _after_linear(
    linear: torch.fx.Node, taken: Container[torch.fx.Node]
) -> tuple[torch.fx.Node, LinearEpilogue]:
    """The longest pattern that begins with a linear, and its last node."""
    last, inner = linear, []
    activation, residual = None, None
    user = _only_user(last)
    if user is not None and (activation := _activation(user)) is not None:
        inner.append(last)
        last, user = user, _only_user(user)
    # The residual may be any tensor: this pattern stands where the sum stood.
    if user is not None and user not in taken and _is_sum(user):
        inner.append(last)
        residual = user.args[1] if user.args[0] is last else user.args[0]
        last = user
    return last, LinearEpilogue(linear, activation, residual, tuple(inner))


def _after_conv(
    conv: torch.fx.Node,
    constants: Container[str],
    coded: Container[torch.fx.Node],
    taken: Container[torch.fx.Node],
) -> tuple[torch.fx.Node, ConvEpilogue | None]:
    """The longest pattern that begins with a convolution, and its last node."""

    def are_constant(operands: Sequence[Any]) -> bool:
        return all(
            operand is None or (isinstance(operand, torch.fx.Node) and operand.name in constants)
            for operand in operands
        )

    value = conv.meta["val"]
    in_codes = conv.args[1] in coded
    if value.dtype not in _DTYPES or value.dim() != 4:
        return conv, None
    if not are_constant(conv.args[2:3] if in_codes else conv.args[1:3]):
        return conv, None
    last, inner = conv, []
    norm, residual, activation = None, None, None
    user = _only_user(conv)
    if (
        user is not None
        and not in_codes
        and value.dtype is torch.float32  # eager rounds halves before the norm
        and user.target is aten._native_batch_norm_legit_no_training.default
        and are_constant(user.args[1:5])
    ):
        first = _only_user(user)
        if first is not None and first.target is operator.getitem and first.args[1] == 0:
            norm, last = user, first
            inner += [conv, norm]
    # The residual may be any tensor: this pattern stands where the sum stood.
    user = _only_user(last)
    if user is not None and user not in taken and _is_sum(user):
        inner.append(last)
        residual = user.args[1] if user.args[0] is last else user.args[0]
        last, user = user, _only_user(user)
    if user is not None and (activation := _activation(user)) is not None:
        inner.append(last)
        last = user
    return last, ConvEpilogue(conv, norm, residual, activation, tuple(inner))


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    # torch.export.load gives a node with several results a getitem for each, used or not.
    users = [user for user in node.users if user.users or user.target is not operator.getitem]
    return users[0] if len(users) == 1 else None


def _activation(node: torch.fx.Node) -> str | None:
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    return _ACTIVATIONS.get(node.target)


def _is_sum(node: torch.fx.Node) -> bool:
    """Whether a node adds two float tensors of one shape and dtype, neither of them twice."""
    if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return False
    a, b = node.args[:2]
    if not isinstance(a, torch.fx.Node) or not isinstance(b, torch.fx.Node) or a is b:
        return False
    values = [n.meta.get("val") for n in (a, b, node)]
    if not all(isinstance(v, torch.Tensor) and v.dtype in _DTYPES for v in values):
        return False
    if len({value.dtype for value in values}) != 1:
        return False
    shapes = {as_shape(value.shape) for value in values}
    return len(shapes) == 1
