"""What kernels require of the sizes of their operands, and torch checks only as they run.

Torch's shape functions leave some of it out: a convolution over another number of channels, a window
over nothing, values that do not fit where they are put. Eager raises; compiled code would read what
lies beside the operand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ..artifacts.expr import Expr

aten = torch.ops.aten

ToExpr: TypeAlias = "Callable[[Any], Expr]"
Condition: TypeAlias = "tuple[str, Expr, Expr]"

_CONVOLUTION = re.compile(r"aten\.conv(?P<transposed>_transpose)?(?P<rank>[123])d$")
_WINDOWS = re.compile(
    r"aten\._?(?:adaptive_)?(?:avg|max)_pool(?P<pool>[123])d(?:_with_indices)?$"
    r"|aten\._?upsample_[a-z_]*?(?P<resampled>[123])d(?:_aa)?$"
    r"|aten\.(?:reflection|replication)_pad(?P<padded>[123])d$"
)
_PADS_WITH_VALUES = ("reflect", "replicate", "circular")


def required(node: torch.fx.Node, expr: ToExpr) -> list[Condition]:
    """The conditions on sizes of one node; ``expr`` gives a size over the user's dims.

    Raises:
        Untranslatable: a size that hangs on data.
    """
    packet = getattr(node.target, "overloadpacket", None)
    name = str(packet)
    if packet is aten.convolution:
        transposed = bool(node.args[6])
        return _channels(node, expr, len(_shape(node.args[1])) - 2, transposed, node.args[8])
    match = _CONVOLUTION.match(name)
    if match is not None:
        groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
        return _channels(node, expr, int(match["rank"]), match["transposed"] is not None, groups)
    match = _WINDOWS.match(name)
    if match is not None:
        rank = int(match["pool"] or match["resampled"] or match["padded"])
        return _filled(node, expr, rank)
    if packet is aten.pad and len(node.args) > 2 and node.args[2] in _PADS_WITH_VALUES:
        return _filled(node, expr, len(node.args[1]) // 2)
    if packet in (aten.index_put, aten._unsafe_index_put):
        return _put(node, expr)
    if packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu):
        return _steps(node, expr)
    if packet is aten.arange:
        return _counted(node, expr)
    return []


def _shape(node: Any) -> Any:
    return node.meta["val"].shape


def _channels(
    node: torch.fx.Node, expr: ToExpr, rank: int, transposed: bool, groups: Any
) -> list[Condition]:
    """The operand has the channels that the weight is made for."""
    channels = _shape(node.args[0])[-(rank + 1)]
    weight = _shape(node.args[1])
    needed = weight[0] if transposed else weight[1] * groups
    return [("==", expr(channels), expr(needed))]


def _filled(node: torch.fx.Node, expr: ToExpr, rank: int) -> list[Condition]:
    """No axis but the batch's is empty."""
    shape = _shape(node.args[0])
    return [(">=", expr(size), 1) for size in shape[-(rank + 1) :]]


def _put(node: torch.fx.Node, expr: ToExpr) -> list[Condition]:
    """``x[indices] = values``: the values have the shape of ``x[indices]``, or are stretched to it
    along axes that are 1 in the trace."""
    target, values = _shape(node.args[0]), _shape(node.args[2])
    places = [axis for axis, index in enumerate(node.args[1]) if index is not None]
    indices = [node.args[1][axis] for axis in places]
    conditions: list[Condition] = []
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices):
        if len(indices) != 1:
            return []
        picked = list(target[places[0] + indices[0].meta["val"].dim() :])
    else:
        common, conditions = _common([_shape(index) for index in indices], expr)
        rest = [size for axis, size in enumerate(target) if axis not in places]
        adjacent = places == list(range(places[0], places[-1] + 1))
        front = places[0] if adjacent else 0
        picked = [*rest[:front], *common, *rest[front:]]
    # Of a mask, how many it picks is for the kernel to see.
    for size, whole in zip(reversed(values), reversed(picked), strict=False):
        if isinstance(size, torch.SymInt) or size != 1:
            conditions.append(("==", expr(size), expr(whole)))
    return conditions


def _common(shapes: Sequence[Any], expr: ToExpr) -> tuple[list[Any], list[Condition]]:
    """The common shape of some indices, and that they have it."""
    common: list[Any] = []
    conditions: list[Condition] = []
    for axis in range(1, max(len(shape) for shape in shapes) + 1):
        sizes = [shape[-axis] for shape in shapes if len(shape) >= axis]
        wide = [size for size in sizes if isinstance(size, torch.SymInt) or size != 1] or [1]
        common.insert(0, wide[0])
        conditions += [("==", expr(size), expr(wide[0])) for size in wide[1:]]
    return common, conditions


def _steps(node: torch.fx.Node, expr: ToExpr) -> list[Condition]:
    """A recurrent layer takes a step at least, and states for the batch that there is."""
    shape = _shape(node.args[0])
    batch_first = node.args[8]
    states = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
    steps, batch = (shape[1], shape[0]) if batch_first else (shape[0], shape[1])
    conditions: list[Condition] = [(">=", expr(steps), 1)]
    return conditions + [("==", expr(_shape(state)[1]), expr(batch)) for state in states]


def _counted(node: torch.fx.Node, expr: ToExpr) -> list[Condition]:
    """``arange(start, end, step)``: the end lies on the side that the steps lead to."""
    schema = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(schema, node.args, strict=False)), **node.kwargs}
    numbers = [given.get("start", 0), given["end"], given.get("step", 1)]
    start, end, step = (
        number.meta["val"] if isinstance(number, torch.fx.Node) else number for number in numbers
    )
    if not isinstance(step, int) or any(isinstance(each, float) for each in (start, end)):
        return []
    return [(">=" if step > 0 else "<=", expr(end), expr(start))]


def sizes_of(node: torch.fx.Node) -> list[Any]:
    """The sizes of a node's results: none is negative, whatever torch's arithmetic says."""
    value = node.meta.get("val")
    tensors = value if isinstance(value, (list, tuple)) else [value]
    return [
        size
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
        for size in tensor.shape
        if isinstance(size, torch.SymInt)
    ]
