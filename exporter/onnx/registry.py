"""The allow-list: which ONNX operators are read, since which opset, and by which function of torch.

A function takes the node's inputs by position, in the order of the specification, and its attributes
by keyword, with the specification's defaults; None is an input that is left out. What a function does
not take is refused by name. It gives one value; or, where it has a keyword ``outputs``, a tuple of
that many.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...artifacts.names import suggestions

OLDEST, NEWEST = 13, 23  # opsets that are read

Function = Callable[..., Any]


class Unreadable(Exception):
    """A use of an operator that is not read: ``reason`` follows its name; ``instead`` is what is."""

    def __init__(self, reason: str, instead: str = "") -> None:
        super().__init__(reason)
        self.reason, self.instead = reason, instead


@dataclass(frozen=True)
class Operator:
    """One operator as some opsets define it.

    ``least`` and ``most`` inputs (``most`` None: any number); ``attributes``: the names it takes;
    ``several``: it gives a tuple.
    """

    name: str
    since: int
    function: Function
    least: int
    most: int | None
    attributes: frozenset[str]
    several: bool


OPERATORS: dict[str, list[Operator]] = {}


def operator(*names: str, since: int = 1) -> Callable[[Function], Function]:
    """Register a function for operators as they are from opset ``since`` on."""

    def register(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        inputs = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        attributes = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
        any_number = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        for name in names:
            entry = Operator(
                name,
                since,
                function,
                sum(each.default is each.empty for each in inputs),
                None if any_number else len(inputs),
                frozenset(attributes - {"outputs"}),
                "outputs" in attributes,
            )
            known = OPERATORS.setdefault(name, [])
            if any(each.since == since for each in known):
                raise ValueError(f"{name} of opset {since} has two functions")
            known.append(entry)
            known.sort(key=lambda each: each.since)
        return function

    return register


def find(name: str, opset: int) -> Operator:
    """The operator as the opset defines it.

    Raises:
        Unreadable: it is not on the list, with the nearest that is.
    """
    found = [each for each in OPERATORS.get(name, []) if each.since <= opset]
    if found:
        return found[-1]
    if name in OPERATORS:
        first = OPERATORS[name][0].since
        raise Unreadable(f"of opset {opset} is not read, of {first} and later it is")
    if name in _INSTEAD:
        raise Unreadable("is not read", _INSTEAD[name])
    close = suggestions(name, OPERATORS)
    raise Unreadable("is not read", f"{close[0]}, the nearest that is" if close else "")


_RANDOM = "an input with the numbers, or the PyTorch model, whose draws a bundle makes itself"
_LOOP = "the PyTorch model that the file was made from, whose loops can be kept"
_SEQUENCES = "tensors: an export with torch.onnx.export(…, dynamo=True) makes no sequences"
_INSTEAD = {
    **dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"),
        _RANDOM,
    ),
    "Multinomial": _RANDOM,
    "Loop": _LOOP,
    "Scan": _LOOP,
    "Unique": "sorted values, whose size is known",
    "NonMaxSuppression": "the boxes and scores as outputs, and the suppression after the call",
    "MaxUnpool": "ScatterElements",
    "QLinearConv": "Conv between DequantizeLinear and QuantizeLinear (quantize in QDQ format)",
    "QLinearMatMul": "MatMul between DequantizeLinear and QuantizeLinear (quantize in QDQ format)",
    **dict.fromkeys(
        (
            "SequenceConstruct",
            "SequenceAt",
            "SequenceEmpty",
            "SequenceInsert",
            "SequenceMap",
            "ConcatFromSequence",
            "SplitToSequence",
        ),
        _SEQUENCES,
    ),
}
