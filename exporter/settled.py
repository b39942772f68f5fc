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

from ..lowering.checks import ASSERTIONS, CHECK_INDEX, REQUIRE

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


def graphs_of(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Graph]:
    """The graph of a program, and the bodies of branches and loops in it."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield module.graph


def settled(
    program: torch.export.ExportedProgram, number: Number
) -> dict[torch.fx.Node, torch.Tensor]:
    """The nodes whose values hang on no input, no state and no size that is left open.

    Args:
        number: the value of a size, or of a node that computes one, at the sizes asked about; None
            where it is open.
    """
    known = dict(_weights(program))
    for node in (node for graph in graphs_of(program) for node in graph.nodes):
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
        and not node.target._schema.is_mutable
        and "empty" not in node.target._opname  # whatever lies there
    )


def passing(
    program: torch.export.ExportedProgram,
    known: Mapping[torch.fx.Node, torch.Tensor],
    number: Number,
) -> frozenset[torch.fx.Node]:
    """The checks whose values are all known, and hold; and those of dtype, device and layout alone,
    which a graph has as it is traced."""
    found = []
    for node in (node for graph in graphs_of(program) for node in graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default and _has_form(node):
            found.append(node)
        if node.target not in (CHECK_INDEX, REQUIRE, *ASSERTIONS):
            continue
        arguments = _arguments((node.args, node.kwargs), known, number)
        if arguments is None:
            continue
        args, kwargs = arguments
        try:
            node.target(*args, **kwargs)
        except Exception:  # a check that fails stays one
            continue
        found.append(node)
    return frozenset(found)


def _has_form(node: torch.fx.Node) -> bool:
    """Whether the operand of an assertion of its form has that dtype, device and layout; one of sizes
    or strides is none."""
    names = [argument.name for argument in node.target._schema.arguments]
    expected = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    value = expected.pop("a").meta["val"]
    if expected.pop("size", None) is not None or expected.pop("stride", None) is not None:
        return False
    return all(each in (None, getattr(value, name)) for name, each in expected.items())


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
    values = _values(node, known)
    return values is not None and not bool(values.any())


def masks_nothing(node: torch.fx.Node, known: Mapping[torch.fx.Node, torch.Tensor]) -> bool:
    """Whether an attention's mask leaves all as it is: what is True is seen, or zeros are added."""
    if node.meta["val"].dtype != torch.bool:
        return adds_nothing(node, known)
    values = _values(node, known)
    return values is not None and values.dtype == torch.bool and bool(values.all())


def _values(
    node: torch.fx.Node, known: Mapping[torch.fx.Node, torch.Tensor]
) -> torch.Tensor | None:
    """What a node is made of: all of its values are among these, perhaps in another dtype."""
    while node not in known:
        if node.target not in _MOVED or not isinstance(node.args[0], torch.fx.Node):
            return None
        node = node.args[0]
    return known[node]


def same_bits(one: Any, two: Any) -> bool:
    """Whether two tensors have the same type and hold the same bits: 0.0 is not -0.0, and a NaN is
    itself. What is no plain tensor is the same only as itself."""
    plain = (torch.Tensor, torch.nn.Parameter)
    if type(one) not in plain or type(two) not in plain:
        return one is not None and one is two
    if any(each.layout is not torch.strided or each.is_quantized for each in (one, two)):
        return one is two
    if (one.dtype, one.device, one.shape) != (two.dtype, two.device, two.shape):
        return False
    if one.data_ptr() == two.data_ptr() and one.stride() == two.stride():
        return True
    sides = [each.detach().resolve_conj().resolve_neg() for each in (one, two)]
    # A clone, for torch calls one element contiguous whatever its stride.
    dense = [each.clone(memory_format=torch.contiguous_format).reshape(-1) for each in sides]
    bits = [each.view(torch.uint8) for each in dense]
    return torch.equal(*bits)
