"""Which parts of a graph keep their images with the channels last.

The kernels for channels that come last are the faster ones, but torch's own order is NCHW, and what
does not know the other order costs a copy. So a graph falls into regions: convolutions, and what
keeps an order without a thought (elementwise ops, pooling, resizing), as far as they hand images to
each other. A region keeps its channels last where it has more convolutions than it has copies at its
borders. A permutation at a border that asks for this very order is none, it is a view.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Container, Iterator

import torch

from .kernels.conv_weights import suits
from .symbols import Shape, as_shape

aten = torch.ops.aten


def to_last(rank: int) -> tuple[int, ...]:
    """The axes of NCHW, or NCL, in the order NHWC, or NLC, for `permute`."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The way back."""
    return (0, rank - 1, *range(1, rank - 1))


_HALVES = (torch.float16, torch.bfloat16)
_KEEP_ORDER = {
    aten._to_copy.default,
    aten.cat.default,
    aten.max_pool2d.default,
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
    aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten.upsample_nearest2d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten.upsample_bilinear2d.vec,
    aten.upsample_bicubic2d.vec,
    aten.constant_pad_nd.default,
    aten._native_batch_norm_legit_no_training.default,
    operator.getitem,
}
_KEEP_ORDER_ON_CPU = {aten.group_norm.default, aten.native_group_norm.default}
# These end a region at no cost: they read either order.
_READ_EITHER = {
    aten.mean.dim,
    aten.sum.dim_IntList,
    aten.amax.default,
}


def find(
    graph: torch.fx.Graph,
    constants: Container[str],
    *,
    coded: Collection[torch.fx.Node] = (),
    on_gpu: bool = False,
) -> frozenset[torch.fx.Node]:
    """The convolutions that keep their channels last, and the permutations that make an image with its
    channels last of what lies so already.

    Args:
        constants: the names of the nodes that are parameters, buffers or constants.
        coded: the nodes that make weights of int8 constants; they are no images.
    """
    nodes = [node for node in graph.nodes if node not in coded]
    convs = {node for node in nodes if _is_conv(node, constants, coded, on_gpu)}
    turns = {node for node in nodes if _turns_to_image(node)}
    inside = convs | turns | {node for node in nodes if _keeps_order(node, on_gpu)}
    regions = _Regions()
    for node in inside - turns:
        for source in node.all_input_nodes:
            if source in inside:
                regions.join(source, node)
    gain: dict[torch.fx.Node, int] = {}
    for node in inside:
        region = regions.of(node)
        gain.setdefault(region, 0)
        gain[region] += node in convs
        # Of several results, a getitem is what hands the image on.
        if isinstance(node.meta["val"], torch.Tensor) and not _is_one_pixel(node):
            foreign = [user for user in node.users if user not in inside]
            gain[region] -= any(not _reads_either(user) for user in foreign)
    entering: set[tuple[torch.fx.Node, torch.fx.Node]] = set()
    for node in inside - turns:
        for source in node.all_input_nodes:
            known = source in inside or source in coded or source.name in constants
            if not known and _is_image(source) and not _is_one_pixel(source):
                entering.add((regions.of(node), source))
    for region, _ in entering:
        gain[region] -= 1
    # A convolution of halves has a kernel for channels that come last alone.
    chosen = {
        node
        for node in convs | turns
        if gain[regions.of(node)] > 0 or (node in convs and node.meta["val"].dtype in _HALVES)
    }
    return frozenset(chosen | {_turned(node) for node in chosen & turns})


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


def _value(node: torch.fx.Node) -> object:
    """What a node gives; of several results, the first: the image, where the others go with it."""
    value = node.meta.get("val")
    return value[0] if isinstance(value, (tuple, list)) and value else value


def _is_image(node: torch.fx.Node) -> bool:
    value = _value(node)
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _shape(node: torch.fx.Node) -> Shape:
    """Without a guard: torch's own sizes would make one of each comparison."""
    value = _value(node)
    assert isinstance(value, torch.Tensor)
    return as_shape(value.shape)


def _is_one_pixel(image: torch.fx.Node) -> bool:
    """Whether an image is the same in either order."""
    return _is_image(image) and _shape(image)[2:] == (1, 1)


def _is_conv(
    node: torch.fx.Node,
    constants: Container[str],
    coded: Container[torch.fx.Node],
    on_gpu: bool,
) -> bool:
    if node.target is not aten.conv2d.default and node.target is not aten.convolution.default:
        return False
    dtypes = (torch.float32,) if on_gpu else (torch.float32, *_HALVES)
    if not _is_image(node) or node.meta["val"].dtype not in dtypes:
        return False
    weight = node.args[1]
    if not isinstance(weight, torch.fx.Node):
        return False
    if weight.name not in constants and weight not in coded:
        return False
    position = 8 if node.target is aten.convolution.default else 6
    groups = node.args[position] if len(node.args) > position else node.kwargs.get("groups", 1)
    if node.target is aten.convolution.default and node.args[6]:
        return False  # transposed
    filters, group_channels, *_ = weight.meta["val"].shape
    if on_gpu:
        return groups == 1 or (groups == filters and group_channels == 1)
    return suits(groups, filters, group_channels)


def _keeps_order(node: torch.fx.Node, on_gpu: bool) -> bool:
    if node.op != "call_function" or not _is_image(node):
        return False
    if node.target in _KEEP_ORDER or (not on_gpu and node.target in _KEEP_ORDER_ON_CPU):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    images = [source for source in node.all_input_nodes if _is_image(source)]
    return torch.Tag.pointwise in node.target.tags and bool(images)


# Permutations between the two orders, which are views.


def order_of(node: torch.fx.Node) -> tuple[int, ...] | None:
    """The axes of a permutation, counted from the front; None for anything else."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    rank = value.dim()
    if node.target is aten.permute.default:
        return tuple(axis % rank for axis in node.args[1])
    if node.target is aten.transpose.int:
        order = list(range(rank))
        a, b = (axis % rank for axis in node.args[1:3])
        order[a], order[b] = b, a
        return tuple(order)
    return None


_RESHAPES = {
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
}


def joins_pixels(a: Shape, b: Shape) -> bool:
    """Whether ``[n, c, h * w]`` is made of ``[n, c, h, w]``, or the other way round."""
    return sorted((len(a), len(b))) == [3, 4] and a[:2] == b[:2]


def _reads_either(user: torch.fx.Node) -> bool:
    if user.target in _READ_EITHER or order_of(user) == to_last(4):
        return True
    return user.target in _RESHAPES and _joins_to_rows(user)


def _joins_to_rows(node: torch.fx.Node) -> bool:
    """Whether a reshape makes ``[n, c, h * w]`` of an image for nobody but who turns it to
    ``[n, h * w, c]``."""
    (image,) = node.all_input_nodes[:1]
    return (
        _is_image(image)
        and joins_pixels(_shape(image), _shape(node))
        and bool(node.users)
        and all(order_of(user) == (0, 2, 1) for user in _readers(node))
    )


def _turns_to_image(node: torch.fx.Node) -> bool:
    """Whether a node makes an image of ``[n, h, w, c]``, or of ``[n, h * w, c]`` that is turned for
    nothing else."""
    if order_of(node) == to_first(4):
        return True
    if node.target not in _RESHAPES or not _is_image(node):
        return False
    turn = _copied(node.all_input_nodes[0])
    return order_of(turn) == (0, 2, 1) and all(
        user.target in _RESHAPES and _is_image(user) and joins_pixels(_shape(user), _shape(turn))
        for user in _readers(turn)
    )


def _copied(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a copy of; the same values, and one value where the graph is lowered."""
    while node.target is aten.clone.default:
        node = node.all_input_nodes[0]
    return node


def _readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Those that use a node, or a copy of it."""
    for user in node.users:
        if user.target is aten.clone.default:
            yield from _readers(user)
        else:
            yield user


def _turned(node: torch.fx.Node) -> torch.fx.Node:
    """The permutation of what `_turns_to_image`."""
    return node if order_of(node) is not None else _copied(node.all_input_nodes[0])
