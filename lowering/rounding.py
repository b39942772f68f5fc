"""`math.ceil` and `math.floor` of numbers in a graph, which torch 2.13 can't save: by `math.trunc`."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

_BEYOND = {math.floor: operator.lt, math.ceil: operator.gt}


def write_roundings(graph: torch.fx.Graph) -> None:
    """Replace each rounding by: cut off towards zero, and one further where that went too far."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _BEYOND:
            continue
        (number,) = node.args
        with graph.inserting_before(node):
            cut = _call(graph, math.trunc, number)
            beyond = _call(graph, _BEYOND[node.target], number, cut)
            one = -1 if node.target is math.floor else 1
            further = _call(graph, operator.add, cut, one)
            rounded = _call(graph, torch.sym_ite, beyond, further, cut)
        rounded.meta = dict(node.meta)  # what it is to everything that asks: the same number
        node.replace_all_uses_with(rounded)
        graph.erase_node(node)


def _call(graph: torch.fx.Graph, function: Any, *args: Any) -> torch.fx.Node:
    node = graph.call_function(function, args)
    node.meta["val"] = function(
        *(each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in args)
    )
    return node
