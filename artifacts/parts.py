"""Parts of what a bundle serves, as conditions on its sizes."""

from __future__ import annotations

from collections.abc import Sequence

from .contract import Contract, Dim
from .expr import Expr
from .prove import Box, Span, proved_by_intervals

_ALWAYS: Expr = ("==", 0, 0)


def box_of(dims: Sequence[Dim]) -> dict[str, Span]:
    """The ranges of dims, for a proof."""
    return {dim.name: Span(dim.lo, dim.hi, dim.step) for dim in dims}


def takes(contract: Contract, box: Box) -> Expr:
    """The ranges and guards of a contract, as far as the sizes of a box do not meet them anyway.
    (Values of tensors are not sizes.)"""
    conditions: list[Expr] = []
    for dim in contract.dims:
        conditions.append((">=", dim.name, dim.lo))
        if dim.hi is not None:
            conditions.append(("<=", dim.name, dim.hi))
        if dim.step != 1:
            conditions.append(("==", ("%", ("-", dim.name, dim.lo), dim.step), 0))
    conditions += [guard.expr for guard in contract.guards]
    needed = [each for each in conditions if not proved_by_intervals(each, box)]
    return ("and", *needed, _ALWAYS) if needed else _ALWAYS


def one_takes(contracts: Sequence[Contract], box: Box) -> Expr:
    """At least one of several contracts is met."""
    if len(contracts) == 1:
        return takes(contracts[0], box)
    return ("or", *(takes(each, box) for each in contracts))
