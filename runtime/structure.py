"""Arguments to a flat list of leaves, and results back to their structure. Strict both ways."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from ..artifacts.contract import (
    AbsentNode,
    Contract,
    ContractError,
    DictNode,
    Fixed,
    Leaf,
    ListNode,
    NamedTupleNode,
    Parameter,
    TupleNode,
    child_path,
    leaves,
)
from ..artifacts.errors import Diagnostic, GuardError

Flat = tuple[Any, ...]


def is_plain(parameters: Sequence[Parameter]) -> bool:
    """Whether a call with every argument by position is its own flat list of leaves."""
    return all(
        isinstance(parameter.structure, Leaf)
        and parameter.structure.index == index
        and parameter.kind != "keyword"
        for index, parameter in enumerate(parameters)
    )


def bind(contract: Contract, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flat:
    """The leaves of a call, in the order of ``contract.inputs``.

    Raises:
        GuardError: TC302, an argument is missing, unexpected or given twice, or its structure is
            not the exported one.
    """
    flat: list[Any] = [None] * len(contract.inputs)
    names = {p.name for p in contract.parameters if p.kind != "positional"}
    for name in kwargs:
        if name not in names:
            _refuse(name, "is not a parameter of this model", "needs to be left out", contract)
    rest = dict(kwargs)
    taken = 0
    for parameter in contract.parameters:
        name = parameter.name
        by_position = parameter.kind != "keyword" and taken < len(args)
        by_name = parameter.kind != "positional" and name in rest
        if by_position and by_name:
            _refuse(name, "got two values, by position and by name", "needs one", contract)
        if by_position:
            value = args[taken]
            taken += 1
        elif by_name:
            value = rest.pop(name)
        elif parameter.optional:
            _fill_defaults(contract, parameter, flat)
            continue
        else:
            _refuse(name, "is missing", f"needs {_shape_of(parameter.structure)}", contract)
        if isinstance(parameter.structure, AbsentNode):
            _refuse(name, f"got {_kind(value)}", "needs to be left at its default", contract)
        _flatten(parameter.structure, value, name, flat, contract)
    if taken < len(args):
        count = sum(parameter.kind != "keyword" for parameter in contract.parameters)
        _refuse(
            "the call", f"got {len(args)} arguments by position", f"needs at most {count}", contract
        )
    return tuple(flat)


def _fill_defaults(contract: Contract, parameter: Parameter, flat: list[Any]) -> None:
    for index in leaves(parameter.structure):
        fixed = contract.inputs[index]
        if not isinstance(fixed, Fixed):
            raise ContractError(f"{parameter.name} is optional but holds a tensor")
        flat[index] = fixed.value


def _flatten(node: Any, value: Any, path: str, flat: list[Any], contract: Contract) -> None:
    if isinstance(node, Leaf):
        flat[node.index] = value
        return
    if isinstance(node, DictNode):
        if not isinstance(value, dict):
            _refuse(path, f"got {_kind(value)}", f"needs {_shape_of(node)}", contract)
        missing = [key for key in node.keys if key not in value]
        extra = [key for key in value if key not in node.keys]
        if missing or extra:
            found = f"got keys {', '.join(map(repr, value))}" if value else "got no keys"
            _refuse(path, found, f"needs {_shape_of(node)}", contract)
        for key, item in zip(node.keys, node.items, strict=True):
            _flatten(item, value[key], child_path(path, key), flat, contract)
        return
    if isinstance(node, NamedTupleNode):
        fits = isinstance(value, tuple) and getattr(value, "_fields", None) == node.fields
        if not fits:
            _refuse(path, f"got {_kind(value)}", f"needs {_shape_of(node)}", contract)
        for field, item, part in zip(node.fields, node.items, value, strict=True):
            _flatten(item, part, f"{path}.{field}", flat, contract)
        return
    wanted = tuple if isinstance(node, TupleNode) else list
    if not isinstance(value, wanted) or hasattr(value, "_fields"):
        _refuse(path, f"got {_kind(value)}", f"needs {_shape_of(node)}", contract)
    if len(value) != len(node.items):
        _refuse(path, f"got {len(value)} items", f"needs {len(node.items)}", contract)
    for index, (item, part) in enumerate(zip(node.items, value, strict=True)):
        _flatten(item, part, f"{path}[{index}]", flat, contract)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"a {name} with fields {value._fields}" if hasattr(value, "_fields") else f"a {name}"


def _shape_of(node: Any) -> str:
    """A node in words."""
    if isinstance(node, DictNode):
        return f"a dict with keys {', '.join(map(repr, node.keys)) or '(none)'}"
    if isinstance(node, NamedTupleNode):
        return f"a {node.name} with fields {', '.join(node.fields)}"
    if isinstance(node, (TupleNode, ListNode)):
        return f"a {'tuple' if isinstance(node, TupleNode) else 'list'} of {len(node.items)}"
    return "one argument" if isinstance(node, Leaf) else "nothing"


def signature(contract: Contract) -> str:
    """The parameters as they are called: ``(x, k=2, *, flag)``."""
    parts: list[str] = []
    starred = False
    for parameter in contract.parameters:
        if parameter.kind == "keyword" and not starred:
            starred = True
            parts.append("*")
        default = ""
        if parameter.optional:
            node = parameter.structure
            fixed = contract.inputs[node.index] if isinstance(node, Leaf) else None
            default = f"={fixed.value!r}" if isinstance(fixed, Fixed) else "=…"
        parts.append(parameter.name + default)
    return f"({', '.join(parts)})"


def _refuse(path: str, got: str, needs: str, contract: Contract) -> NoReturn:
    raise GuardError(
        Diagnostic(
            "TC302", f"{path}: {got}, {needs}", notes=(f"the call is {signature(contract)}",)
        ),
        argument=path,
        got=got.removeprefix("got "),
        needs=needs.removeprefix("needs "),
        guard="the arguments and their structure",
    )


def call_of(
    contract: Contract, values: Sequence[Any], given: Collection[int] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, by position as far as can be, from the values of its leaves.

    Args:
        given: the leaves that were given, by index (None: all). An optional parameter of which none
            was is left out.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_position = True
    for parameter in contract.parameters:
        below = leaves(parameter.structure)
        left_out = parameter.optional and given is not None and not set(below) & set(given)
        if left_out or isinstance(parameter.structure, AbsentNode):
            by_position = False
            continue
        value = builder(parameter.structure)(values)
        if by_position and parameter.kind != "keyword":
            args.append(value)
        else:
            kwargs[parameter.name] = value
    return args, kwargs


def leaves_of(node: Any, value: Any) -> list[Any]:
    """The leaves of a result of the structure ``node``, by their index."""
    found: dict[int, Any] = {}

    def walk(node: Any, value: Any) -> None:
        if isinstance(node, Leaf):
            found[node.index] = value
            return
        parts = [value[key] for key in node.keys] if isinstance(node, DictNode) else list(value)
        for item, part in zip(node.items, parts, strict=True):
            walk(item, part)

    walk(node, value)
    return [found[index] for index in sorted(found)]


def builder(node: Any) -> Callable[[Sequence[Any]], Any]:
    """A function that puts a flat list of results into the structure ``node``, one that
    `contract.checked` has passed."""
    if isinstance(node, Leaf):
        index = node.index
        return lambda flat: flat[index]
    parts = [builder(item) for item in node.items]
    if isinstance(node, DictNode):
        pairs = list(zip(node.keys, parts, strict=True))
        return lambda flat: {key: part(flat) for key, part in pairs}
    if isinstance(node, ListNode):
        return lambda flat: [part(flat) for part in parts]
    if isinstance(node, NamedTupleNode):
        made = namedtuple(node.name, node.fields)  # type: ignore[misc]
        return lambda flat: made(*(part(flat) for part in parts))
    return lambda flat: tuple(part(flat) for part in parts)
