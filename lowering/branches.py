"""torch.cond without branches: both sides are computed, and each result is taken from one of them.

The sides are functional, so that computing both changes no number. It costs the time of both. What a
side asserts holds where it is taken; what its kernels need (an index in range, a divisor that is not 0,
an element) holds for every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export.graph_signature import TensorArgument

from .checks import ASSERTIONS

COND = torch.ops.higher_order.cond


def inline_branches(program: torch.export.ExportedProgram) -> None:
    """Replace every torch.cond of a graph whose sides give tensors of the same sizes, in place.

    One that is decided by sizes, or whose sides differ, is left: no op is lowered that has its name.
    """
    renamed: dict[str, str] = {}
    _inline(program.graph_module, renamed)
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, TensorArgument) and spec.arg.name in renamed:
            spec.arg = TensorArgument(renamed[spec.arg.name])


def _inline(module: torch.fx.GraphModule, renamed: dict[str, str]) -> None:
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not COND:
            continue
        condition, first, second, operands = node.args
        if not isinstance(condition, torch.fx.Node) or not _is_tensor(condition):
            continue
        sides = [getattr(module, each.target) for each in (first, second)]
        for side in sides:
            _inline(side, {})
        if not _alike(*(_results(side) for side in sides)):
            continue
        with graph.inserting_before(node):
            otherwise = _made(graph, node, torch.ops.aten.logical_not.default, condition)
            yes = _copied(graph, sides[0], operands, otherwise)
            no = _copied(graph, sides[1], operands, condition)
            for user in list(node.users):
                index = user.args[1]
                taken = graph.call_function(
                    torch.ops.aten.where.self, (condition, yes[index], no[index])
                )
                taken.meta = dict(user.meta)
                renamed[user.name] = taken.name
                user.replace_all_uses_with(taken)
                graph.erase_node(user)
        graph.erase_node(node)
        for each in (first, second):
            if not each.users:
                graph.erase_node(each)
    graph.lint()
    module.recompile()


def _made(graph: torch.fx.Graph, at: torch.fx.Node, op: Any, *args: torch.fx.Node) -> torch.fx.Node:
    """A node of tensors, with what ``at`` says of its line."""
    made = graph.call_function(op, args)
    values = [each.meta["val"] for each in args]
    with values[0].fake_mode:
        made.meta = {**at.meta, "val": op(*values)}
    return made


def _copied(
    graph: torch.fx.Graph,
    side: torch.fx.GraphModule,
    operands: Sequence[Any],
    otherwise: torch.fx.Node,
) -> Sequence[torch.fx.Node]:
    """The nodes of one side put into the graph; its results. What is asserted in it may be false
    where the other side is taken."""
    inputs = [node for node in side.graph.nodes if node.op == "placeholder"]
    values: dict[torch.fx.Node, Any] = dict(zip(inputs, operands, strict=True))
    for node in side.graph.nodes:
        if node.op == "call_function":
            values[node] = copy = graph.node_copy(node, values.__getitem__)
            if node.target in ASSERTIONS:
                with graph.inserting_before(copy):
                    either = torch.ops.aten.logical_or.default
                    holds = _made(graph, copy, either, copy.args[0], otherwise)
                copy.args = (holds, *copy.args[1:])
    return [values[node] for node in _results(side)]


def _results(side: torch.fx.GraphModule) -> Sequence[Any]:
    (output,) = (node for node in side.graph.nodes if node.op == "output")
    results = output.args[0]
    return results if isinstance(results, (list, tuple)) else (results,)


def _alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two sides give tensors of the same sizes and dtypes."""
    return len(one) == len(other) and all(
        _is_tensor(a) and _is_tensor(b) and _form(a) == _form(b)
        for a, b in zip(one, other, strict=True)
    )


def _form(node: torch.fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return (value.dtype, *map(str, value.shape))


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
