"""How much arithmetic a node is, at the sizes of the trace.

Counted by torch.utils.flop_counter, a multiplication and an addition as two: matrix products,
convolutions and attention. Everything else counts for nothing there, and so it does here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

_PRODUCTS = frozenset(
    {
        *("aten.linear", "aten.matmul", "aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"),
        *("aten.mv", "aten.addmv", "aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"),
        *("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d"),
        "aten.scaled_dot_product_attention",
    }
)


def flops(node: torch.fx.Node) -> int:
    """The floating-point operations of one call. All sizes must be known from the inputs."""
    if str(node.target).rpartition(".")[0] not in _PRODUCTS:
        return 0
    args, kwargs = tree_map(_stand_in, (node.args, node.kwargs))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        node.target(*args, **kwargs)
    return int(counter.get_total_flops())


def _stand_in(argument: Any) -> Any:
    """A tensor without memory, or a number, as the trace had it."""
    value = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
    if isinstance(value, torch.Tensor):
        shape = [_number(size) for size in value.shape]
        return torch.empty(shape, dtype=value.dtype, device="meta")
    return _number(value) if isinstance(value, torch.SymInt) else value


def _number(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
