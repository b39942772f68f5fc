"""What a model gives back: the shape of each output over the dims, and the structure around them."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from ..artifacts.contract import (
    PLAIN_TYPES,
    DictNode,
    Fixed,
    Leaf,
    ListNode,
    NamedTupleNode,
    Node,
    SizeOutput,
    TensorOutput,
    TupleNode,
    child_path,
)
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import Expr
from ..lowering.locations import user_location
from .assumptions import Assumptions
from .computed import tries_for
from .trace import Trace, symbol_of
from .translate import Untranslatable, to_expr


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def outputs(
    traced: Trace, assumptions: Assumptions
) -> tuple[TensorOutput | SizeOutput | Fixed, ...]:
    """What a call gives back, leaf by leaf, in the order of the structure.

    Raises:
        ExportError: TC211, a number that is computed from data, or a size that a guard cannot hold.
    """
    program = traced.program
    nodes = {node.name: node for node in program.graph.nodes}
    paths = _result_paths(result_structure(traced))
    found: list[TensorOutput | SizeOutput | Fixed] = []
    results = 0
    specs = [
        spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
    ]
    for spec, path in zip(specs, paths, strict=True):
        argument = spec.arg
        if isinstance(argument, TensorArgument):
            node = nodes[argument.name]
            shape = tuple(_size(size, node, assumptions) for size in node.meta["val"].shape)
            found.append(TensorOutput(path, dtype_name(node.meta["val"].dtype), shape, results))
            results += 1
        elif isinstance(argument, SymIntArgument):
            node = nodes[argument.name]
            expr = _size(node.meta["val"], node, assumptions)
            if expr is None:
                raise ExportError(_computed_number(path, node))
            found.append(SizeOutput(path, expr))
        elif isinstance(argument, ConstantArgument) and type(argument.value) in PLAIN_TYPES:
            found.append(Fixed.of(path, argument.value))
        else:
            raise ExportError(
                Diagnostic("TC211", f"the output {path} is a {type(argument).__name__}")
            )
    return tuple(found)


def _computed_number(path: str, node: torch.fx.Node) -> Diagnostic:
    where = user_location(node.meta.get("stack_trace"))
    message = f"the output {path} is a number computed from data"
    return Diagnostic("TC211", message, location=where, tries=("return it as a tensor",))


def _size(size: Any, node: torch.fx.Node, assumptions: Assumptions) -> Expr | None:
    """A size of a result over the dims; None where it depends on data."""
    expression = symbol_of(size)
    try:
        return to_expr(expression, assumptions.symbols)
    except Untranslatable as error:
        if expression.free_symbols <= assumptions.symbols.keys():
            words = assumptions.words
            message = f"the model gives back a size of {words.of(expression)}"
            raise ExportError(
                Diagnostic(
                    "TC211",
                    message,
                    location=user_location(node.meta.get("stack_trace")),
                    notes=(words.why(error),),
                    tries=tries_for(expression),
                )
            ) from None
        return None


def result_structure(traced: Trace) -> Any:
    """How the outputs lie in tuples, lists, dicts and named tuples.

    Raises:
        ExportError: TC005, a class that cannot be restored.
    """
    spec = traced.program.call_spec.out_spec
    assert spec is not None
    return _structure(spec, iter(range(spec.num_leaves)), "the output")


def _structure(spec: pytree.TreeSpec, indices: Any, path: str) -> Node:
    if spec.is_leaf():
        return Leaf(next(indices))
    kind, context = spec.type, spec.context
    if kind is namedtuple:  # torch keeps the class beside it
        kind = context
    children = spec.children()
    items = tuple(_structure(child, indices, path) for child in children)
    if kind is tuple:
        return TupleNode(items)
    if kind is list:
        return ListNode(items)
    if pytree.is_namedtuple_class(kind):
        return NamedTupleNode(kind.__name__, tuple(kind._fields), items)
    if pytree.is_structseq_class(kind):  # what x.max(1) gives
        return NamedTupleNode(kind.__name__, tuple(kind.__match_args__), items)
    if isinstance(kind, type) and issubclass(kind, dict):
        # dict, OrderedDict and the ModelOutput of transformers: all come back as a dict.
        keys = tuple(context[1] if kind is defaultdict else context)
        if len(keys) == len(items) and all(type(key) in (str, int) for key in keys):
            return DictNode(keys, items)
    raise ExportError(
        Diagnostic(
            "TC005",
            f"{path} holds a {getattr(kind, '__name__', kind)}, which cannot be restored "
            "without its class",
            tries=("return tensors in tuples, lists, dicts or named tuples",),
        )
    )


def _result_paths(node: Node) -> list[str]:
    paths: dict[int, str] = {}

    def walk(node: Node, path: str) -> None:
        if isinstance(node, Leaf):
            paths[node.index] = path or "result"
        elif isinstance(node, DictNode):
            for key, item in zip(node.keys, node.items, strict=True):
                walk(item, child_path(path, key).removeprefix("."))
        elif isinstance(node, NamedTupleNode):
            for field, item in zip(node.fields, node.items, strict=True):
                walk(item, f"{path}.{field}".removeprefix("."))
        elif isinstance(node, (TupleNode, ListNode)):
            for index, item in enumerate(node.items):
                walk(item, f"{path}[{index}]")

    walk(node, "")
    return [paths[index] for index in sorted(paths)]
