"""Tensors without an element, which GPU code does not take: CUDA launches no empty grid.

A range in which some size may be 0 is refused before anything is compiled, with the range that works.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..artifacts.contract import Contract, TensorInput
from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, dims_of, render
from ..artifacts.parts import box_of
from ..lowering.locations import user_location
from .derive import Derived
from .prove import Box, Span, holds
from .trace import Trace, symbol_of
from .translate import Untranslatable, to_expr

_MOST_TRIED = 64


def require_no_empty(traced: Trace, derived: Derived, target: str) -> None:
    """No tensor of a trace may be empty at a size that is promised, as far as sizes tell.

    Args:
        target: the label of the target, for the message.

    Raises:
        ExportError: TC210, for each size that may be 0, with the dims and the ranges to give.
    """
    contract = derived.contract
    box = box_of(contract.dims)
    refused: dict[Expr, Diagnostic] = {}
    for size, where in _sizes(traced, derived):
        if size in refused or not dims_of(size) or not dims_of(size) <= box.keys():
            continue
        found = holds(_never_empty(size, contract), box)
        if found.status == "refuted":
            refused[size] = _refused(size, found.counterexample or {}, contract, target, where)
    if refused:
        raise ExportError(refused.values())


def _sizes(traced: Trace, derived: Derived) -> Iterator[tuple[Expr, Location | None]]:
    """The sizes of all tensors over the dims, each with the line that makes it; none that is data."""
    for item in derived.contract.inputs:
        if isinstance(item, TensorInput):
            yield from ((size, None) for size in item.shape)
    for node in traced.program.graph.nodes:
        value = node.meta.get("val")
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if node.op != "call_function" or not isinstance(each, torch.Tensor):
                continue
            for size in each.shape:
                expression = symbol_of(size)
                names = {
                    symbol: derived.symbols[symbol.name]
                    for symbol in expression.free_symbols
                    if symbol.name in derived.symbols
                }
                try:
                    over_dims = to_expr(expression, names)
                except Untranslatable:
                    continue
                yield over_dims, user_location(node.meta.get("stack_trace"))


def _never_empty(size: Expr, contract: Contract) -> Expr:
    """That a size is at least 1 wherever the guards hold."""
    elsewhere: list[Expr] = [("not", guard.expr) for guard in contract.guards]
    claim: Expr = (">=", size, 1)
    return ("or", claim, *elsewhere) if elsewhere else claim


def _refused(
    size: Expr, point: dict[str, int], contract: Contract, target: str, where: Location | None
) -> Diagnostic:
    box = box_of(contract.dims)
    names = sorted(dims_of(size))
    asked = ", ".join(f"{name}={box[name]}" for name in names)
    at = ", ".join(f"{name}={point[name]}" for name in names if name in point)
    larger = _larger(size, contract, box)
    tries = () if larger is None else (f"--dynamic {larger}",)
    return Diagnostic(
        "TC210",
        f"{asked} can't be served on {target}: {render(size)} may be 0, and GPU code takes no empty "
        "tensors",
        location=where,
        notes=(f"it is at {at}",) if at and size not in names else (),
        tries=(*tries, "--target cpu"),
    )


def _larger(size: Expr, contract: Contract, box: Box) -> str | None:
    """The first larger start of a range at which a size is never 0, as it is typed."""
    for name in sorted(dims_of(size)):
        span = box[name]
        for lo in range(span.lo, span.lo + _MOST_TRIED * span.step, span.step):
            smaller = Span(lo, span.hi, span.step)
            if span.hi is not None and lo > span.hi:
                break
            if holds(_never_empty(size, contract), {**box, name: smaller}).status == "proved":
                return f"{name}={smaller}"
    return None
