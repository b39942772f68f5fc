"""Caches: what calls leave behind in Python, and no answer hangs on.

``if seq != self.seq: self.cos, self.seq = …`` is no state that anyone needs: a bundle computes what is
cached anew at every call. Whether it is only that shows in calls. At several sizes of the ranges asked
for, in an order that grows, shrinks and repeats, and with other values each time, a model that
remembers must answer bit by bit as one that does not; and a further call with the same sizes must leave
behind what is there already. A count does not. Nor may anything of the inputs' values be in what is
kept, whether it shows in these calls or not: masks of ones hide it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .eager import quietly, run_eager
from .examples import drawn, resized
from .flow import Flow, Reads
from .prepare import Prepared
from .prove import Span
from .settled import same_bits
from .state import Change, Snapshot, preserved

_OPEN_END = 4  # times the example, where a range has no end
_GROWTH = 16.0  # of all sizes together, beyond the example's


def are_caches(module: torch.nn.Module, prepared: Prepared, changes: Sequence[Change]) -> bool:
    """Whether no answer hangs on what changes. The model is afterwards as before.

    Args:
        changes: what one call was seen to change.
    """
    if any(change.kind not in ("attributes", "items") for change in changes):
        return False  # a list or a set is a record, kept for others to read
    generator = torch.Generator().manual_seed(0)
    answered = 0
    with preserved(module) as beginning, quietly():
        for sizes in _walk(prepared):
            for repeated in (False, True):
                leaves = list(_drawn(prepared, sizes, generator))
                before = Snapshot(module)
                beginning.restore()
                try:
                    expected = run_eager(module, prepared.bound, leaves)
                except Exception:  # the model does not run at these sizes, or with such values
                    before.restore()
                    break
                before.restore()
                flow = Flow(leaves)
                try:
                    with flow, Reads(flow):
                        found = run_eager(module, prepared.bound, leaves)
                except Exception:  # it does without what it remembers
                    return False
                if not same_answers(found, expected) or (repeated and before.changes()):
                    return False
                if flow.read or flow.reaches(kept_since(module, beginning)):
                    return False
                answered += 1
    return answered > 2


def kept_since(module: torch.nn.Module, beginning: Snapshot) -> list[torch.Tensor]:
    """The tensors of the state that were not there in the beginning."""
    there = set(map(id, beginning.held))
    return [each for each in Snapshot(module).held if id(each) not in there]


def _walk(prepared: Prepared) -> Iterator[Mapping[str, int]]:
    """The example's sizes, the ends and the middle of the ranges, in an order that goes up and down;
    then each dim alone at the ends and beside the example's size: what is kept for the others' sizes
    may be made of this one's."""
    example = prepared.sizes
    spans = {name: request.span for name, request in prepared.requests.items()}
    low = {name: span.lo for name, span in spans.items()}
    high = _high(spans, example)
    middle = {
        name: low[name] + (high[name] - low[name]) // 2 // span.step * span.step
        for name, span in spans.items()
    }
    yield from (example, high, low, middle, high, example, low)
    for name, span in spans.items():
        yield example
        size = example[name]
        for other in dict.fromkeys((size + span.step, size - span.step, low[name], high[name])):
            if other != size and low[name] <= other <= high[name]:
                yield {**example, name: other}


def _high(spans: Mapping[str, Span], example: Mapping[str, int]) -> dict[str, int]:
    """The ends of the ranges, or nearer to the example where a call there could take for ever: the
    sizes together grow by `_GROWTH` at most. What lies beyond is for the guards of the trace."""
    ends = {name: _end(span, example[name]) for name, span in spans.items()}
    growth = {name: end / max(1, example[name]) for name, end in ends.items()}
    whole = math.prod(growth.values())
    part = 1.0 if whole <= _GROWTH else math.log(_GROWTH) / math.log(whole)
    return {
        name: ends[name] if part == 1.0 else _snapped(span, example[name] * growth[name] ** part)
        for name, span in spans.items()
    }


def _end(span: Span, size: int) -> int:
    return _snapped(span, _OPEN_END * size) if span.hi is None else span.hi


def _snapped(span: Span, size: float) -> int:
    return span.lo + max(0, int(size) - span.lo) // span.step * span.step


def _drawn(
    prepared: Prepared, sizes: Mapping[str, int], generator: torch.Generator
) -> Iterator[Any]:
    """The leaves of a call at these sizes, with values like those of the example."""
    for (_, leaf), axes in zip(prepared.bound.leaves, prepared.shapes, strict=True):
        if axes is None:
            yield leaf
        else:
            shape = resized(leaf, axes, prepared.sizes, sizes).shape
            yield drawn(leaf, shape, generator)


def same_answers(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Whether two calls gave the same flat outputs, bit by bit."""
    return len(one) == len(two) and all(
        same_bits(a, b) if isinstance(a, torch.Tensor) else type(a) is type(b) and a == b
        for a, b in zip(one, two, strict=True)
    )
