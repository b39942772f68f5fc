"""What a graph computes from sizes and weights alone: known once the sizes are.

Two graphs of one model may make such a value in two ways (`if seq > 1` before a causal mask, `if
patches == positions` before positions are interpolated), or one of them may leave out to add zeros.
With the sizes at hand both are computed and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind

Number = Callable[[Any], "int | None"]

_LARGEST = 1 << 20  # elements
_MOVED = (
    torch.ops.aten.expand.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten._to_copy.default,
)


def settled(
    program: torch.export.ExportedProgram, number: Number
) -> dict[torch.fx.Node, torch.Tensor]:
    """The nodes whose values hang on no input, no state and no size that is left open.

    Args:
        number: the value of a size, or of a node that computes one, at the sizes asked about; None
            where it is open.
    """
    known = dict(_weights(program))
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if not _is_computed(node) or not isinstance(value, torch.Tensor):
            continue
        shape = [number(size) for size in value.shape]
        arguments = _arguments((node.args, node.kwargs), known, number)
        if arguments is None or not _is_small(shape):
            continue
        args, kwargs = arguments
        try:
            with torch.no_grad():
                result = node.target(*args, **kwargs)
        except Exception:  # an op that refuses these sizes settles nothing
            continue
        if list(result.shape) == shape and result.dtype == value.dtype:
            known[node] = result
    return known


def _weights(
    program: torch.export.ExportedProgram,
) -> Iterator[tuple[torch.fx.Node, torch.Tensor]]:
    """The inputs of the graph that are no argument of the call, and that no call writes to."""
    written = {spec.target for spec in program.graph_signature.output_specs}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.find_nodes(op="placeholder"):
        spec = specs[node.name]
        if spec.kind is InputKind.USER_INPUT or spec.target in written:
            continue
        value = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.numel() <= _LARGEST:
            yield node, value.detach()


def _is_computed(node: torch.fx.Node) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "aten"
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def _is_small(shape: list[int | None]) -> bool:
    count = 1
    for size in shape:
        if size is None:
            return False
        count *= size
    return count <= _LARGEST


def _arguments(value: Any, known: Mapping[torch.fx.Node, torch.Tensor], number: Number) -> Any:
    """Arguments with their values in the place of nodes; None where one is open."""
    if isinstance(value, (tuple, list, dict)):
        items = value.values() if isinstance(value, dict) else value
        found = [_arguments(item, known, number) for item in items]
        if any(one is None and item is not None for one, item in zip(found, items, strict=True)):
            return None
        if isinstance(value, dict):
            return dict(zip(value, found, strict=True))
        return tuple(found) if isinstance(value, tuple) else found
    if isinstance(value, torch.fx.Node):
        return known[value] if value in known else number(value)
    return value


def adds_nothing(node: torch.fx.Node, known: Mapping[torch.fx.Node, torch.Tensor]) -> bool:
    """Whether a node is zeros, also repeated along axes of open size."""
    while node not in known:
        if node.target not in _MOVED or not isinstance(node.args[0], torch.fx.Node):
            return False
        node = node.args[0]
    return not bool(known[node].any())
