"""The arguments of one call as data: bound to ``forward``, with a path for every leaf.

The contract, the trace and the runtime all speak of arguments by the same paths: ``input_ids``,
``batch.ids``, ``xs[0]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..artifacts.contract import (
    PLAIN_TYPES,
    AbsentNode,
    DictNode,
    Leaf,
    ListNode,
    NamedTupleNode,
    Node,
    Parameter,
    TupleNode,
    child_path,
)
from ..artifacts.errors import Diagnostic, Location, UsageError
from ..lowering.locations import location_of_frames
from .userfile import shown_path

_KINDS: dict[Any, Any] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.VAR_POSITIONAL: "positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "keyword",
}
_ALLOWED = "tensors, None, bool, int, float and str in tuples, lists, dicts and named tuples"


@dataclass(frozen=True)
class Bound:
    """One call, bound to the parameters of ``forward``.

    Attributes:
        parameters: what the contract says of each parameter; a `Leaf` in them indexes ``leaves``.
        leaves: path and value (a tensor or a plain value) of every leaf, in the order in which
            ``(args, kwargs)`` hold them.
        args, kwargs: the same call in one normal form: positional as far as can be, keywords in
            the order of the signature, plain defaults written out.
        draws: random numbers are drawn in it, which are those of a bundle (`drawing`).
    """

    parameters: tuple[Parameter, ...]
    leaves: tuple[tuple[str, Any], ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draws: bool = False

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor leaves by path."""
        return {path: leaf for path, leaf in self.leaves if isinstance(leaf, torch.Tensor)}


@dataclass(frozen=True)
class _Argument:
    name: str
    kind: Any
    value: Any
    default: bool = False  # it was left out
    is_default: bool = False  # it was given, as what it is when left out


def bind(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Bind a call to ``module.forward``. Equal calls give equal leaves, however they are written.

    A parameter left at a plain default becomes optional leaves fixed at that default; one left at
    another default must stay left out (`AbsentNode`).

    Raises:
        UsageError: TC005, the arguments do not fit the signature or hold what a contract cannot.
    """
    arguments = _bound_arguments(module, args, kwargs)
    leaves: list[tuple[str, Any]] = []
    parameters = []
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    # Behind functools.wraps the true signature is the wrapper's, which may look for keywords by
    # name; a saved program wants exactly the keywords it was saved with. What was not given by
    # position stays a keyword there.
    by_name = hasattr(module.forward, "__wrapped__") or isinstance(module, torch.fx.GraphModule)
    may_be_positional = True
    for number, argument in enumerate(arguments):
        absent = argument.default and not _is_plain(argument.value)
        structure = AbsentNode() if absent else _structure(argument.value, argument.name, leaves)
        optional = argument.default or argument.is_default
        parameters.append(Parameter(argument.name, _KINDS[argument.kind], structure, optional))
        may_be_positional &= not absent and argument.kind not in (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_KEYWORD,
        )
        if by_name and number >= len(args):
            may_be_positional = False
        if may_be_positional:
            positional.append(argument.value)
        elif not absent:
            keywords[argument.name] = argument.value
    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        raise _unfit(module, "two arguments of forward have the same name")
    return Bound(tuple(parameters), tuple(leaves), tuple(positional), keywords)


def _bound_arguments(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[_Argument]:
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise _unfit(module, str(error)) from None
    arguments: list[_Argument] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += [
                _Argument(f"{name}[{index}]", parameter.kind, value)
                for index, value in enumerate(bound.arguments.get(name, ()))
            ]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            # Sorted: the order in which a caller writes keywords means nothing.
            arguments += [
                _Argument(key, parameter.kind, value)
                for key, value in sorted(bound.arguments.get(name, {}).items())
            ]
        elif name in bound.arguments:
            value = bound.arguments[name]
            same = (
                _is_plain(value)
                and type(value) is type(parameter.default)
                and repr(value) == repr(parameter.default)
            )
            arguments.append(_Argument(name, parameter.kind, value, is_default=same))
        else:
            arguments.append(_Argument(name, parameter.kind, parameter.default, default=True))
    return arguments


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN_TYPES


def _structure(value: Any, path: str, leaves: list[tuple[str, Any]]) -> Node:
    """The structure of one argument; its leaves are appended in order."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            raise _foreign(path, f"a {value.layout} tensor", "only dense tensors can be exported")
        leaves.append((path, value))
        return Leaf(len(leaves) - 1)
    if _is_plain(value):
        leaves.append((path, value))
        return Leaf(len(leaves) - 1)
    if kind is dict:
        for key in value:
            if type(key) not in (str, int):
                raise _foreign(path, f"a dict with the key {key!r}", "keys must be str or int")
        return DictNode(
            tuple(value),
            tuple(_structure(item, child_path(path, key), leaves) for key, item in value.items()),
        )
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        fields = tuple(kind._fields)
        items = tuple(
            _structure(item, f"{path}.{field}", leaves)
            for field, item in zip(fields, value, strict=True)
        )
        return NamedTupleNode(kind.__name__, fields, items)
    if kind in (tuple, list):
        items = tuple(
            _structure(item, f"{path}[{index}]", leaves) for index, item in enumerate(value)
        )
        return TupleNode(items) if kind is tuple else ListNode(items)
    raise _foreign(path, f"of type {_type_name(kind)}", *_mend(value))


def _type_name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _mend(value: Any) -> tuple[str, ...]:
    if type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        return (f"an example is allowed to hold {_ALLOWED}", "torch.from_numpy(…) or .item()")
    if isinstance(value, Mapping):
        return (f"an example is allowed to hold {_ALLOWED}", "dict(…)")
    if isinstance(value, tuple):
        return (f"an example is allowed to hold {_ALLOWED}", "tuple(…)")
    return (f"an example is allowed to hold {_ALLOWED}",)


def _foreign(path: str, what: str, note: str, *tries: str) -> UsageError:
    return UsageError(
        Diagnostic("TC005", f"example inputs: {path} is {what}", notes=(note,), tries=tuple(tries))
    )


class _Elided:
    def __repr__(self) -> str:
        return "…"


_ELIDED = _Elided()


def signature_text(module: torch.nn.Module) -> str:
    """``forward(ids, mask=None)`` as the user wrote it, without annotations and long defaults."""
    signature = inspect.signature(module.forward)
    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(
            annotation=empty,
            default=parameter.default
            if parameter.default is empty or _is_plain(parameter.default)
            else _ELIDED,
        )
        for parameter in signature.parameters.values()
    ]
    return f"forward{inspect.Signature(parameters)}"


def forward_location(module: torch.nn.Module) -> Location | None:
    """The line on which ``forward`` starts; None where it has no source."""
    code = getattr(inspect.unwrap(module.forward), "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return None
    found = location_of_frames([(code.co_filename, code.co_firstlineno)])
    return found and Location(shown_path(found.file), found.line, found.text)


def _unfit(module: torch.nn.Module, reason: str) -> UsageError:
    return UsageError(
        Diagnostic(
            "TC005",
            f"the example inputs do not fit {signature_text(module)} of "
            f"{type(module).__name__}: {reason}",
            location=forward_location(module),
        )
    )
