"""Which int8 constants of a graph are weights of products and convolutions, and of nothing else.

Quantized models make floats of their weights in each call: casts, subtractions of zero points, products
with scales. What such a chain gives is left as the integers that it begins with (`tensor.Codes`),
whatever their number: they stay int8 in the file, and the kernel of the product makes floats of them.
"""

from __future__ import annotations

from collections.abc import Container

import torch

from .ops import CHECKS

aten = torch.ops.aten

_CAST = {aten._to_copy.default}
_WITH_CONSTANT = {aten.sub.Tensor, aten.sub.Scalar, aten.mul.Tensor, aten.mul.Scalar}
_SAME_ELEMENTS = {
    *(aten.view.default, aten.reshape.default, aten.permute.default, aten.transpose.int),
    *(aten.t.default, aten.clone.default, aten.alias.default, aten.detach.default),
}
_READERS = {
    *(aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.convolution.default),
    *(aten.mm.default, aten.addmm.default, aten.matmul.default, aten.bmm.default),
}


def find(graph: torch.fx.Graph, constants: Container[str]) -> frozenset[torch.fx.Node]:
    """The nodes of all chains that lead from an int8 constant to weights alone, without the constants.

    Args:
        constants: the names of the nodes that are parameters, buffers or constants.
    """
    fixed = _made_of_constants(graph, constants)
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.name not in constants or not isinstance(value, torch.Tensor):
            continue
        if value.dtype is torch.int8 and value.dim() >= 2:
            chain: set[torch.fx.Node] = set()
            if _leads_to_weights(node, fixed, chain):
                found |= chain
    return frozenset(found)


def _made_of_constants(
    graph: torch.fx.Graph, constants: Container[str]
) -> frozenset[torch.fx.Node]:
    fixed: set[torch.fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        of_constants = node.op == "call_function" and inputs and fixed.issuperset(inputs)
        if node.name in constants or of_constants:
            fixed.add(node)
    return frozenset(fixed)


def _leads_to_weights(
    node: torch.fx.Node, fixed: Container[torch.fx.Node], chain: set[torch.fx.Node]
) -> bool:
    """Whether whoever uses a node, at last, multiplies by it; ``chain`` takes the nodes on the way."""
    users = [user for user in node.users if str(user.target) not in CHECKS]
    for user in users:
        if user.target in _READERS:
            weights = [each for each in user.args if each is node]
            if len(weights) != 1 or user.args[0] is node or node not in fixed:
                return False
            continue
        known = user.target in (_CAST | _WITH_CONSTANT | _SAME_ELEMENTS) and user in fixed
        if not known or (user.args[0] is not node and user.target is not aten.mul.Tensor):
            return False
        if not _leads_to_weights(user, fixed, chain):
            return False
        chain.add(user)
    return bool(users)
