"""Numbers that only data says: where a graph computes them, and of what.

``x.sum().item()`` is a number, and so is the size of ``x[mask]``. Torch calls them by symbols of their
own, until the model says what they are equal to: then by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from torch.export.exported_program import _get_shape_env
from torch.fx.experimental.symbolic_shapes import RuntimeAssert
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatPow,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    OpaqueUnaryFn_sqrt,
    RoundToInt,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type

aten = torch.ops.aten

ITEMS = (aten.item.default, aten._local_scalar_dense.default)
OF_A_TENSOR = ("assert it of a tensor: assert (x > 0).all()",)
OF_INTEGERS = (
    "compute it of integers: 4 * n // 5 for int(n * 0.8)",
    "let an axis of an input have this size",
)
_UNKNOWN = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)


def bound_numbers(
    program: torch.export.ExportedProgram,
) -> Iterator[tuple[sympy.Symbol, torch.fx.Node]]:
    """The symbols of numbers that the graph computes, each with the node that gives it; also those
    that torch has replaced by what the model says that they are equal to."""
    return _numbers_in(program.graph.nodes)


def _numbers_in(nodes: Iterable[torch.fx.Node]) -> Iterator[tuple[sympy.Symbol, torch.fx.Node]]:
    seen: set[sympy.Symbol] = set()
    for node in nodes:
        bound = [*(node.meta.get("unbacked_bindings") or ())]
        if not bound and node.op == "call_function" and number_of(node) is not None:
            bound = [*_unknown_symbols(node.meta.get("val"))]
        for symbol in bound:
            if symbol not in seen:
                seen.add(symbol)
                yield symbol, node


def _unknown_symbols(value: Any) -> Iterator[sympy.Symbol]:
    """The symbols of a number, or of sizes, that stand for what only data says."""
    if isinstance(value, torch.Tensor):
        for size in value.shape:
            yield from _unknown_symbols(size)
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        # Not `expr`, in which replacements are made.
        yield from sorted(_unknown(value.node._expr), key=str)


def _unknown(expression: Any) -> set[sympy.Symbol]:
    return {each for each in expression.free_symbols if symbol_is_type(each, _UNKNOWN)}


def tries_for(expression: Any) -> tuple[str, ...]:
    """What to do about an expression without a form: of sizes alone, it is one that goes through a
    float, such as ``int(n * 0.8)`` and ``int(n**0.5)``; else a number of the model's is in it."""
    return (
        OF_A_TENSOR if _unknown(expression) else OF_INTEGERS if expression.atoms(*_FLOATS) else ()
    )


_FLOATS = (
    *(ToFloat, IntTrueDiv, FloatTrueDiv, FloatPow, OpaqueUnaryFn_sqrt),
    *(CeilToInt, FloorToInt, TruncToInt, RoundToInt, sympy.Float),
)


def is_float(symbol: sympy.Symbol) -> bool:
    """Whether a symbol stands for a float that the graph computes."""
    return symbol_is_type(symbol, SymT.UNBACKED_FLOAT)


def lost_assertions(program: torch.export.ExportedProgram) -> list[RuntimeAssert]:
    """What the model asserts of numbers that the graph of a fresh trace does not have.

    A strict trace of torch 2.13 leaves out ``torch._check(mask.any().item())`` where nothing else
    uses the number: once it is known to be 1, nothing is left to ask of it.
    """
    env = _get_shape_env(program.graph_module)
    if env is None:
        return []
    asserted = [each for every in env.deferred_runtime_asserts.values() for each in every]
    symbols = {symbol for each in asserted for symbol in _unknown(each.expr)}
    needed = Counter(env.replace(symbol) for symbol in symbols)
    found = Counter(env.replace(symbol) for symbol, _ in _numbers_in(nodes_of(program)))
    lost = {
        symbol for symbol in symbols if found[env.replace(symbol)] < needed[env.replace(symbol)]
    }
    return [each for each in asserted if lost & _unknown(each.expr)]


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """The nodes of the graph and of all graphs within it: regions, such as those under autocast, and
    sides of branches."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


@dataclass(frozen=True)
class Number:
    """A number as the graph has it before anything is sized by it: the value of the argument of
    ``node`` at ``place`` (or of what that list has ``within``), how many of it hit, or its sum."""

    node: torch.fx.Node
    place: int
    kind: Literal["value", "hits", "sum"]
    within: int | None = None

    @property
    def source(self) -> torch.fx.Node:
        argument: Any = self.node.args[self.place]
        source = argument if self.within is None else argument[self.within]
        assert isinstance(source, torch.fx.Node)
        return source

    def replace(self, source: torch.fx.Node) -> None:
        """Let the node take something else in the place of its source."""
        args = list(self.node.args)
        if self.within is None:
            args[self.place] = source
        else:
            listed: Any = list(args[self.place])
            listed[self.within] = source
            args[self.place] = listed
        self.node.args = tuple(args)


def number_of(node: torch.fx.Node) -> Number | None:
    """How the number that a node gives can be had before; None where it cannot."""
    if node.target in ITEMS:
        return Number(node, 0, "value")
    if node.target is aten.nonzero.default:
        return Number(node, 0, "hits")
    if node.target is aten.repeat_interleave.Tensor:
        return Number(node, 0, "sum")
    arguments: Any = node.args
    if node.target is aten.masked_select.default:
        shapes = searched(node)
        return Number(node, 1, "hits") if shapes[0] == shapes[1] else None
    if node.target is aten.index.Tensor:
        kinds = [None if each is None else each.meta["val"].dtype for each in arguments[1]]
        if kinds.count(torch.bool) == 1:
            return Number(node, 1, "hits", kinds.index(torch.bool))
    return None


def searched(node: torch.fx.Node) -> tuple[torch.Size, ...]:
    """The shapes that are broadcast to that of the mask of which an op counts the hits; none of an op
    that counts no hits."""
    if node.target is aten.masked_select.default:
        arguments: Any = node.args
        return tuple(each.meta["val"].shape for each in arguments[:2])
    number = number_of(node)
    if number is None or number.kind != "hits":
        return ()
    return (number.source.meta["val"].shape,)
