"""Writes whose effect hangs on whether `contiguous` or `reshape` gave a copy, or what was there before.

Which of them it is may change with the sizes: rows of length 1 that were turned are contiguous, and an
image that needed no padding is. A trace that takes a copy at all sizes says the same but for what is
written to one of the two and read from the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

aten = torch.ops.aten


def write_beside_copies(module: torch.fx.GraphModule) -> torch.fx.Node | None:
    """The first write to a tensor that is, at some sizes, another one that is read later; None where
    there is none.

    Args:
        module: a trace that is not functional yet, with a clone of a memory format where it may be
            that there was none.
    """
    groups: dict[int, set[int]] = {}  # memory that may be one, by its address
    writes: dict[int, torch.fx.Node] = {}  # what may have been written to under another name
    lasting = {
        each for node in module.graph.find_nodes(op="placeholder") for each in _memory([node])
    }
    for node in _in_order(module):
        for each in _memory(node.all_input_nodes):
            if each in writes:
                return writes[each]
        for each in _memory(_written(node)):
            for other in groups.get(each, set()) - {each}:
                if other in lasting:
                    return node
                writes[other] = node
        if node.target is aten.clone.default and "memory_format" in node.kwargs:
            pair = set(_memory([node, node.args[0]]))
            joined = pair.union(*(groups.get(each, set()) for each in pair))
            groups.update(dict.fromkeys(joined, joined))
    return None


def _in_order(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The nodes of a graph, those of the regions and branches in it before what runs them."""
    for node in module.graph.nodes:
        if node.op != "get_attr":
            for each in node.all_input_nodes:
                inner = getattr(module, str(each.target), None) if each.op == "get_attr" else None
                if isinstance(inner, torch.fx.GraphModule):
                    yield from _in_order(inner)
        yield node


def _memory(nodes: Any) -> Iterator[int]:
    for node in nodes:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                yield plain(each).untyped_storage()._cdata


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, out of what `torch.vmap` wraps around it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _written(node: torch.fx.Node) -> list[Any]:
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable:
        return []
    found: list[Any] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        found += value if isinstance(value, (tuple, list)) else [value]
    return found
