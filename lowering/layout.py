"""Which convolutions of a graph keep their channels last.

The kernels for channels that come last are the faster ones, but torch's own order is NCHW, and what
does not know the other order costs a copy. So a graph falls into regions: convolutions, and what
keeps an order without a thought (elementwise ops, pooling), as far as they hand images to each
other. A region keeps its channels last where it has more convolutions than it has copies at its
borders.
"""

from __future__ import annotations

import operator
from collections.abc import Container

import torch

aten = torch.ops.aten

TO_LAST = (0, 2, 3, 1)
"""The axes of NCHW in the order NHWC, for `permute`."""
TO_FIRST = (0, 3, 1, 2)

_KEEP_ORDER = {
    aten.cat.default,
    aten.max_pool2d.default,
    aten.max_pool2d_with_indices.default,
    aten._native_batch_norm_legit_no_training.default,
    operator.getitem,
}
# These end a region at no cost: they read either order.
_READ_EITHER = {
    aten.mean.dim,
    aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten.sum.dim_IntList,
    aten.amax.default,
}


def find(graph: torch.fx.Graph, constants: Container[str]) -> frozenset[torch.fx.Node]:
    """The convolutions that keep their channels last.

    Args:
        constants: the names of the nodes that are parameters, buffers or constants.
    """
    inside = {node for node in graph.nodes if _is_conv(node, constants) or _keeps_order(node)}
    regions = _Regions()
    for node in inside:
        for source in node.all_input_nodes:
            if source in inside:
                regions.join(source, node)
    gain: dict[torch.fx.Node, int] = {}
    for node in inside:
        region = regions.of(node)
        gain.setdefault(region, 0)
        gain[region] += _is_conv(node, constants)
        # Of several results, a getitem is what hands the image on.
        if isinstance(node.meta["val"], torch.Tensor):
            foreign = [user for user in node.users if user not in inside]
            gain[region] -= any(user.target not in _READ_EITHER for user in foreign)
    entering: set[tuple[torch.fx.Node, torch.fx.Node]] = set()
    for node in inside:
        for source in node.all_input_nodes:
            if source not in inside and _is_image(source) and source.name not in constants:
                entering.add((regions.of(node), source))
    for region, _ in entering:
        gain[region] -= 1
    return frozenset(
        node for node in inside if _is_conv(node, constants) and gain[regions.of(node)] > 0
    )


class _Regions:
    """Sets of nodes that are joined two at a time (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[torch.fx.Node, torch.fx.Node] = {}

    def of(self, node: torch.fx.Node) -> torch.fx.Node:
        while (parent := self._parents.get(node, node)) is not node:
            node = parent
        return node

    def join(self, a: torch.fx.Node, b: torch.fx.Node) -> None:
        self._parents[self.of(a)] = self.of(b)


def _is_image(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _is_conv(node: torch.fx.Node, constants: Container[str]) -> bool:
    if node.target is not aten.conv2d.default and node.target is not aten.convolution.default:
        return False
    if not _is_image(node) or node.meta["val"].dtype is not torch.float32:
        return False
    if not isinstance(node.args[1], torch.fx.Node) or node.args[1].name not in constants:
        return False
    position = 8 if node.target is aten.convolution.default else 6
    groups = node.args[position] if len(node.args) > position else node.kwargs.get("groups", 1)
    transposed = node.target is aten.convolution.default and node.args[6]
    filters, group_channels, *_ = node.args[1].meta["val"].shape
    depthwise = groups == filters and group_channels == 1
    return not transposed and (groups == 1 or depthwise)


def _keeps_order(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or not _is_image(node):
        return False
    if node.target in _KEEP_ORDER:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    images = [source for source in node.all_input_nodes if _is_image(source)]
    return torch.Tag.pointwise in node.target.tags and bool(images)
