"""The traced graph as a person reads it: the user's names, sizes over the dims, source lines."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from ..artifacts.contract import Contract
from ..artifacts.errors import Location
from ..lowering.locations import user_location
from .trace import Trace, symbol_of
from .words import Words

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}


def graph_text(
    traced: Trace, contract: Contract, words: Words, display: Callable[[str], str]
) -> str:
    """One line for each input, weight, op and output; above ops, where in the source they stand.

    Sizes are not shown as nodes of their own: where one is used, its expression stands.

    Args:
        display: a file as the user knows it.
    """
    program = traced.program
    names: dict[torch.fx.Node, str] = {}
    lines = []
    paths = dict(zip(traced.placeholders, (path for path, _ in traced.bound.leaves), strict=True))
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.input_specs:
        name = getattr(spec.arg, "name", "")
        if name not in nodes:
            continue
        kind = _KINDS.get(spec.kind, "constant")
        if spec.kind is InputKind.USER_INPUT:
            kind, spec_name = "input", paths.get(name, name)
        else:
            spec_name = str(spec.target)
        names[nodes[name]] = spec_name
        value = nodes[name].meta.get("val")
        if isinstance(value, (torch.Tensor, *_SYMBOLIC)):
            lines.append(f"{kind} {spec_name}: {_type(value, words)}")
        else:
            lines.append(f"{kind} {spec_name} = {getattr(spec.arg, 'value', value)!r}")
    lines += _body(program.graph_module, names, words, display, "")
    output = next(node for node in program.graph.nodes if node.op == "output")
    shown = [_argument(value, names, words) for value in output.args[0]]
    for each, value in zip(contract.outputs, shown, strict=True):
        lines.append(f"output {each.path} = {value}")
    return "\n".join(lines)


def _body(
    module: torch.fx.GraphModule,
    names: dict[torch.fx.Node, str],
    words: Words,
    display: Callable[[str], str],
    indent: str,
) -> Iterator[str]:
    before: Location | None = None
    taken = set(names.values())
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = getattr(module, str(node.target))
            names[node] = str(node.target)
            if isinstance(value, torch.fx.GraphModule):
                yield f"{indent}graph {node.target}:"
                yield from _inner(value, words, display, f"{indent}  ")
        if node.op != "call_function":
            continue
        value = node.meta.get("val")
        is_size = isinstance(value, _SYMBOLIC)
        names[node] = words.of(_expression(value)) if is_size else _free(node, taken)
        taken.add(names[node])
        if is_size and not node.meta.get("unbacked_bindings"):
            continue
        location = user_location(node.meta.get("stack_trace"))
        if location is not None and location != before:
            yield f"{indent}# {display(location.file)}:{location.line}   {location.text}"
            before = location
        result = "" if value is None else f"{names[node]}: {_type(value, words)} = "
        yield f"{indent}{result}{_call(node, names, words)}"


def _free(node: torch.fx.Node, taken: set[str]) -> str:
    """``mul``, ``mul_1``, …: in the order shown. Torch's own numbers count what is not, too."""
    base = re.sub(r"_\d+$", "", node.name)
    numbered = (f"{base}_{number}" for number in itertools.count(1))
    return base if base not in taken else next(name for name in numbered if name not in taken)


def _call(node: torch.fx.Node, names: Mapping[torch.fx.Node, str], words: Words) -> str:
    arguments = [_argument(each, names, words) for each in node.args]
    if node.target is operator.getitem:
        return f"{arguments[0]}[{arguments[1]}]"
    arguments += [f"{key}={_argument(each, names, words)}" for key, each in node.kwargs.items()]
    return f"{_op(node.target)}({', '.join(arguments)})"


def _inner(
    module: torch.fx.GraphModule, words: Words, display: Callable[[str], str], indent: str
) -> Iterator[str]:
    """The graph of a branch or a loop."""
    names: dict[torch.fx.Node, str] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            names[node] = f"operand{len(names)}"  # torch's own names say nothing
            yield f"{indent}input {names[node]}: {_type(node.meta.get('val'), words)}"
    yield from _body(module, names, words, display, indent)
    output = next(node for node in module.graph.nodes if node.op == "output")
    yield f"{indent}output {_argument(output.args[0], names, words)}"


def _op(target: Any) -> str:
    """``aten.linear``, without the overload that is the default."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    return str(getattr(target, "__name__", target))


def _type(value: Any, words: Words) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(words.of(symbol_of(size)) for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_type(each, words) for each in value)})"
    kinds = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
    return kinds.get(type(value), type(value).__name__)


def _expression(value: Any) -> Any:
    return value.node.expr


def _argument(value: Any, names: Mapping[torch.fx.Node, str], words: Words) -> str:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_argument(each, names, words) for each in value)}]"
    if isinstance(value, _SYMBOLIC):
        return words.of(_expression(value))
    if isinstance(value, str):
        return repr(words.said(value))
    return str(value).removeprefix("torch.")
