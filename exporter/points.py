"""The sizes at which a finished bundle is compared with eager."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..artifacts.contract import Contract, Dim, ValueSource
from ..artifacts.expr import Expr, ExprError, dims_of, evaluate
from .trace import Trace, symbol_of
from .translate import Untranslatable, to_expr

MAX_BYTES = 1 << 30  # of all intermediate results together
MAX_MULTIPLIES = 3e10
_OPEN_END = 4096  # how far a dim without an end is tried
_STEPS = 24


@dataclass(frozen=True)
class Point:
    """One size for every dim; ``why`` it was chosen."""

    why: str
    sizes: dict[str, int]


def choose(contract: Contract, traced: Trace, symbols: Mapping[str, Expr]) -> tuple[Point, ...]:
    """The smallest, the largest that is affordable, the traced and odd sizes, all in the contract."""
    axes = [dim for dim in contract.dims if not isinstance(dim.source, ValueSource)]
    cost = _Cost(traced, symbols)
    lowest = {dim.name: dim.lo for dim in axes}
    found: list[Point] = []
    for point in (
        Point("smallest", lowest),
        *_odd(axes),
        # Of a variant, the nearest that it serves.
        Point("traced", {dim.name: snapped(dim, traced.sizes[dim.name]) for dim in axes}),
        _largest(axes, cost),
    ):
        sizes = _completed(point.sizes, contract, traced)
        if sizes is None or any(sizes == other.sizes for other in found):
            continue
        if point.why == "smallest" or cost.affordable(sizes):
            found.append(Point(point.why, sizes))
    return tuple(found)


def snapped(dim: Dim, size: int) -> int:
    """The size that the dim serves nearest below ``size`` (its smallest, where there is none)."""
    size = max(dim.lo, size if dim.hi is None else min(size, dim.hi))
    return size - (size - dim.lo) % dim.step


def _odd(axes: Sequence[Dim]) -> Iterator[Point]:
    primes = (3, 5, 7, 11, 13, 17, 19)
    yield Point(
        "odd", {dim.name: snapped(dim, dim.lo + primes[i % 7] - 1) for i, dim in enumerate(axes)}
    )
    yield Point(
        "odd", {dim.name: snapped(dim, 37 if i % 2 else 2) for i, dim in enumerate(reversed(axes))}
    )


def _largest(axes: Sequence[Dim], cost: _Cost) -> Point:
    """The largest sizes, all dims the same part of their range, that fit the budget."""
    top = {dim.name: dim.hi if dim.hi is not None else max(dim.lo, _OPEN_END) for dim in axes}
    if cost.affordable(top):
        return Point("largest", {dim.name: snapped(dim, top[dim.name]) for dim in axes})

    def at(part: float) -> dict[str, int]:
        sizes = {}
        for dim in axes:
            low = max(dim.lo, 1)
            sizes[dim.name] = snapped(dim, int(low * (top[dim.name] / low) ** part))
        return sizes

    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cost.affordable(at(middle)) else (low, middle)
    return Point("largest affordable", at(low))


def _completed(sizes: dict[str, int], contract: Contract, traced: Trace) -> dict[str, int] | None:
    """The sizes with a value for every dim that is read from an input's value, all guards kept;
    None where the guards allow none of those tried."""
    values = [dim for dim in contract.dims if isinstance(dim.source, ValueSource)]
    complete = dict(sizes)
    for dim in values:
        leaf = traced.bound.leaves[dim.source.input][1]
        for candidate in (int(leaf.reshape(-1)[0]), 0, 1, 2, 3):
            trial = {**complete, dim.name: candidate}
            known = [
                guard
                for guard in contract.guards
                if dims_of(guard.expr) <= trial.keys() and dim.name in dims_of(guard.expr)
            ]
            if all(_holds(guard.expr, trial) for guard in known):
                complete = trial
                break
        else:
            return None
    ok = all(_holds(guard.expr, complete) for guard in contract.guards)
    return complete if ok else None


def _holds(expr: Expr, sizes: Mapping[str, int]) -> bool:
    try:
        return bool(evaluate(expr, sizes))
    except ExprError:
        return False


class _Cost:
    """Bytes and multiplications of the traced graph as functions of the dims."""

    def __init__(self, traced: Trace, symbols: Mapping[str, Expr]) -> None:
        self._terms: list[tuple[float, list[Expr]]] = []
        self._work: list[tuple[float, list[Expr]]] = []
        named = {
            symbol: symbols[str(symbol)]
            for node in traced.program.graph.nodes
            for value in _tensors(node.meta.get("val"))
            for size in value.shape
            for symbol in symbol_of(size).free_symbols
            if str(symbol) in symbols
        }
        for node in traced.program.graph.nodes:
            if node.op != "call_function":
                continue
            for value in _tensors(node.meta.get("val")):
                sizes = _sizes(value.shape, named)
                self._terms.append((float(value.element_size()), sizes))
                self._work.append((1.0, [*sizes, *_contraction(node, named)]))

    def affordable(self, sizes: Mapping[str, int]) -> bool:
        total = sum(scale * _volume(terms, sizes) for scale, terms in self._terms)
        work = sum(scale * _volume(terms, sizes) for scale, terms in self._work)
        return total <= MAX_BYTES and work <= MAX_MULTIPLIES


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for each in value if isinstance(each, torch.Tensor)]
    return []


def _sizes(shape: Any, named: Mapping[Any, Expr]) -> list[Expr]:
    sizes: list[Expr] = []
    for size in shape:
        try:
            sizes.append(to_expr(symbol_of(size), named))
        except Untranslatable:
            sizes.append(1)  # depends on data: not more than the tensors it comes from
    return sizes


def _contraction(node: torch.fx.Node, named: Mapping[Any, Expr]) -> list[Expr]:
    """The length of the sums behind each element of a result."""
    packet = str(getattr(node.target, "overloadpacket", ""))
    if not node.args or not isinstance(node.args[0], torch.fx.Node):
        return []
    operands = [each.meta.get("val") for each in node.args[:2] if isinstance(each, torch.fx.Node)]
    first, second = operands[0], operands[1] if len(operands) > 1 else None
    if packet in ("aten.linear", "aten.mm", "aten.bmm", "aten.matmul"):
        return _sizes(first.shape[-1:], named)
    if packet == "aten.addmm" and second is not None:
        return _sizes(second.shape[-1:], named)
    if packet == "aten.scaled_dot_product_attention" and second is not None:
        return [2, *_sizes(second.shape[-2:-1], named)]
    if "conv" in packet and second is not None:
        return _sizes(second.shape[1:], named)
    return []


def _volume(terms: Sequence[Expr], sizes: Mapping[str, int]) -> float:
    try:
        return math.prod(float(evaluate(term, sizes)) for term in terms)
    except (ExprError, KeyError):
        return 0.0
