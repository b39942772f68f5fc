"""Which int8 constants of a graph are weights of products and convolutions, and of nothing else.

Quantized models make floats of their weights in each call: casts, subtractions of zero points, products
with scales. What such a chain gives is left as the integers that it begins with (`tensor.Codes`),
whatever their number: they stay int8 in the file, and the kernel of the product makes floats of them.
A chain that no kernel could follow is none: its floats are made at export where they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .ops import CHECKS
from .symbols import as_shape
from .tensor import Constant

aten = torch.ops.aten

_SUBTRACT = (aten.sub.Tensor, aten.sub.Scalar)
_MULTIPLY = (aten.mul.Tensor, aten.mul.Scalar)
_SAME_ELEMENTS = (
    *(aten.view.default, aten.reshape.default, aten.permute.default, aten.transpose.int),
    *(aten.t.default, aten.clone.default, aten.alias.default, aten.detach.default),
)
_FILTERED = (aten.conv1d.default, aten.conv2d.default, aten.convolution.default)
_MATRIX = {aten.mm.default: 1, aten.matmul.default: 1, aten.addmm.default: 2}  # by which operand


def find(graph: torch.fx.Graph, constants: Mapping[str, Constant]) -> frozenset[torch.fx.Node]:
    """The nodes of all chains that lead from an int8 constant to weights alone, without the constants.

    Args:
        constants: by the names of their nodes.
    """
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.name in constants and constants[node.name].value.dtype is torch.int8:
            chain: set[torch.fx.Node] = set()
            if _leads_to_weights(node, False, constants, chain):
                found |= chain
    return frozenset(found)


def _leads_to_weights(
    node: torch.fx.Node,
    scaled: bool,
    constants: Mapping[str, Constant],
    chain: set[torch.fx.Node],
) -> bool:
    """Whether whoever uses a node, at last, multiplies by it; ``chain`` takes the nodes on the way.

    Args:
        scaled: whether a scale was multiplied with already.
    """
    users = [user for user in node.users if str(user.target) not in CHECKS]
    for user in users:
        if _is_weight(node, user, scaled):
            continue
        if not _is_step(node, user, scaled, constants):
            return False
        scales = scaled or user.target in _MULTIPLY
        if not _leads_to_weights(user, scales, constants, chain):
            return False
        chain.add(user)
    return bool(users)


def _is_weight(node: torch.fx.Node, user: torch.fx.Node, scaled: bool) -> bool:
    """Whether a kernel for ``user`` reads codes in the place where ``node`` is."""
    if not _dtype(node).is_floating_point or list(user.args).count(node) != 1:
        return False
    if user.target is aten.linear.default or user.target in _FILTERED:
        transposed = user.target is aten.convolution.default and user.args[6]
        return user.args[1] is node and not transposed
    at = _MATRIX.get(user.target)
    two = len(_shape(node)) == 2
    return at is not None and user.args[at] is node and two and not scaled


def _is_step(
    node: torch.fx.Node, user: torch.fx.Node, scaled: bool, constants: Mapping[str, Constant]
) -> bool:
    if user.target in _SAME_ELEMENTS:
        return _dtype(node) is torch.int8 or _changes_nothing(node, user)
    if user.target is aten._to_copy.default:
        return _dtype(node) is torch.int8 and _dtype(user).is_floating_point
    if user.target in _SUBTRACT:
        return user.args[0] is node and not scaled and _is_zero(user.args[1], constants)
    if user.target in _MULTIPLY and not scaled and _dtype(user) is torch.float32:
        (other,) = [each for each in user.args[:2] if each is not node] or [None]
        return _is_scale(other, _shape(node), constants)
    return False


def _changes_nothing(node: torch.fx.Node, user: torch.fx.Node) -> bool:
    if user.target in (aten.t.default, aten.transpose.int):
        return False
    if user.target is aten.permute.default:
        return list(user.args[1]) == list(range(len(_shape(node))))
    return bool(_shape(user) == _shape(node))


def _is_zero(operand: Any, constants: Mapping[str, Constant]) -> bool:
    if not isinstance(operand, torch.fx.Node):
        return bool(operand == 0)
    root = _root(operand)
    return root.name in constants and not bool(constants[root.name].value.any())


def _is_scale(operand: Any, shape: Any, constants: Mapping[str, Constant]) -> bool:
    if not isinstance(operand, torch.fx.Node):
        return isinstance(operand, (int, float))
    of_rows = (shape[0], *(1,) * (len(shape) - 1))
    known = _root(operand).name in constants
    return known and _shape(operand) == of_rows and _dtype(operand) is torch.float32


def _root(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of."""
    while node.target in _SAME_ELEMENTS:
        node = node.args[0]
    return node


def _dtype(node: torch.fx.Node) -> torch.dtype:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value.dtype


def _shape(node: torch.fx.Node) -> Any:
    return as_shape(node.meta["val"].shape)
