"""Writes to a part of a tensor: what a graph says in several steps, as one.

``k[0, :, p] = x`` is functional in the graph: a select of a slice, a copy, and one scatter back for
each of the views. As a chain it would copy the views; as one write it touches what ``x`` covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class Level:
    """Along ``axis``, of ``size`` elements, of what the level before gives: the positions ``start``,
    ``start + step``, …; with ``drops`` the one position ``start``, without its axis."""

    axis: int
    size: Any
    start: Any
    step: int
    drops: bool


@dataclass(frozen=True)
class RegionWrite:
    """``base`` with ``source`` in the part that ``levels`` describe, the outermost first."""

    base: torch.fx.Node
    source: torch.fx.Node
    levels: tuple[Level, ...]


def find(graph: torch.fx.Graph) -> dict[torch.fx.Node, RegionWrite]:
    """The writes of a graph by their last node."""
    found: dict[torch.fx.Node, RegionWrite] = {}
    for node in graph.nodes:
        if node.target is aten.slice_scatter.default:
            write = _write(node)
            if write is not None:
                found[node] = write
    return found


def _write(node: torch.fx.Node) -> RegionWrite | None:
    base, source, axis, start, end, step = _arguments(node)
    if not isinstance(step, int) or not isinstance(base, torch.fx.Node):
        return None
    rank = base.meta["val"].dim()
    axis %= rank
    size = base.meta["val"].shape[axis]
    inner, dropped = source, False
    if source.target is aten.unsqueeze.default and source.args[1] % rank == axis:
        inner, dropped = source.args[0], True
    outer = Level(axis, size, start or 0, step, False)
    if inner.target is aten.slice_scatter.default and len(inner.users) == 1:
        view = _arguments(inner)[0]
        if dropped:
            same = view.target is aten.select.int and _selects(view, base, axis, start)
        else:
            same = view.target is aten.slice.Tensor and _slices(
                view, (base, axis, start, end, step)
            )
        nested = _write(inner) if same else None
        if nested is not None:
            levels = (Level(axis, size, start or 0, step, dropped), *nested.levels)
            return RegionWrite(base, nested.source, levels)
    return RegionWrite(base, source, (outer,))


def _arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    """The arguments of a slice or of a slice_scatter, with the schema's defaults."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given = [*node.args]
    for argument in node.target._schema.arguments[len(given) :]:
        given.append(node.kwargs.get(argument.name, argument.default_value))
    return tuple(given)


def _selects(view: torch.fx.Node, base: torch.fx.Node, axis: int, index: Any) -> bool:
    source, at, which = view.args
    size = base.meta["val"].shape[axis]
    if isinstance(which, int) and isinstance(size, int):
        which %= size
    return source is base and at % base.meta["val"].dim() == axis and which == index


def _slices(view: torch.fx.Node, wanted: tuple[Any, ...]) -> bool:
    source, axis, start, end, step = _arguments(view)
    size = source.meta["val"].shape[axis]

    def plain(value: Any, default: Any) -> Any:
        if value is None:
            return default
        return min(value, size) if isinstance(value, int) and isinstance(size, int) else value

    base, at, first, last, stride = wanted
    return (
        source is base
        and axis % base.meta["val"].dim() == at
        and plain(start, 0) == plain(first, 0)
        and plain(end, size) == plain(last, size)
        and step == stride
    )
