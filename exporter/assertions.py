"""What the model and its ops assert of data, as checks that the compiled code makes.

An assertion on values stands in the graph, and becomes a check that the compiled code makes before it
gives back its results; what kernels assert of their data is a check of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.export.graph_signature import OutputKind, TensorArgument

from ..artifacts.contract import ComputedGuard, Origin
from ..artifacts.errors import Diagnostic, ExportError
from ..lowering.asserted import Asserted
from ..lowering.checks import ASSERTIONS, REQUIRE
from ..lowering.draws import HOLDS
from ..lowering.locations import user_location
from .trace import Trace

aten = torch.ops.aten


def data_assertions(traced: Trace, first: int) -> tuple[ComputedGuard, ...]:
    """Make every assertion on values a check in the compiled code: the graph is changed.

    Args:
        first: the number of the first check.

    Raises:
        ExportError: TC211, the model gives back no tensor for which a check could be made.
    """
    graph = traced.program.graph_module.graph
    found = [node for node in graph.nodes if node.target in ASSERTIONS]
    guards = []
    for number, node in enumerate(found, start=first):
        where = user_location(node.meta.get("stack_trace"))
        message = str(node.args[1]) if len(node.args) > 1 else ""
        require(traced, node.args[0], node, number)
        origin = Origin("an assertion of the model", where)
        guards.append(ComputedGuard(message, None, False, origin, assertion=True))
        graph.erase_node(node)
    if found:
        traced.program.graph_module.recompile()
    return tuple(guards)


def asserted_guards(
    traced: Trace, asserted: Sequence[Asserted], first: int
) -> tuple[ComputedGuard, ...]:
    """What kernels assert of their data, as guards of the contract.

    Args:
        first: how many computed guards there are without these.
    """
    nodes = {node.name: node for node in traced.program.graph.nodes}
    guards = []
    for place, each in enumerate(asserted, start=first):
        if each.number != place:
            raise AssertionError(f"the kernel of {each.node} has check {each.number}, not {place}")
        node = nodes[each.node]
        name = str(getattr(node.target, "_opname", node.target)).lstrip("_")
        name = "a random draw" if node.target is HOLDS else name
        where = user_location(node.meta.get("stack_trace"))
        origin = Origin(f"a condition of {name}", where)
        guards.append(ComputedGuard(each.what, None, False, origin, assertion=True))
    return tuple(guards)


def require(traced: Trace, condition: torch.fx.Node, assertion: torch.fx.Node, number: int) -> None:
    """Let the first tensor that the model gives back be there only if a condition holds: a tensor of
    one element, asserted at the line of ``assertion``.

    Raises:
        ExportError: TC211, the model gives back no tensor.
    """
    graph = traced.program.graph_module.graph
    output = next(node for node in graph.nodes if node.op == "output")
    results = list(output.args[0])
    specs = traced.program.graph_signature.output_specs
    tensors = [
        place
        for place, result in enumerate(results)
        if isinstance(result, torch.fx.Node) and isinstance(result.meta["val"], torch.Tensor)
    ]
    # Not at a state, where there is another: its update would lie in new memory.
    tensors.sort(key=lambda place: specs[place].kind is not OutputKind.USER_OUTPUT)
    if not tensors:
        raise ExportError(
            Diagnostic(
                "TC211",
                "an assertion on values can't be checked: the model gives back no tensor",
                location=user_location(assertion.meta.get("stack_trace")),
            )
        )
    place, result = tensors[0], results[tensors[0]]
    said = {
        key: assertion.meta[key]
        for key in ("stack_trace", "nn_module_stack")
        if key in assertion.meta
    }
    with graph.inserting_before(output):
        holds = condition
        if condition.meta["val"].dtype != torch.bool:
            holds = graph.call_function(aten.ne.Scalar, (condition, 0))
            holds.meta = {**said, "val": condition.meta["val"].to(torch.bool)}
        kept = graph.call_function(REQUIRE, (result, holds, number))
    kept.meta = {**said, "val": result.meta["val"]}
    results[place] = kept
    output.args = (tuple(results),)
    specs[place].arg = TensorArgument(kept.name)
