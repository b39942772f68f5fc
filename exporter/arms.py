"""A source with `--cover`: the model is traced at other sizes of a dim, too, until all are covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch.utils import _pytree as pytree

from ..artifacts.errors import Diagnostic, UsageError
from .cover import Covered, cover
from .derive import Derived
from .examples import resized
from .options import DimRequest
from .prepare import prepare
from .profiles import Variants
from .prove import Span
from .source import Source
from .stages import Stages
from .trace import Trace
from .traced import traced_and_derived


def with_cover(
    dynamic: Mapping[str, DimRequest | None], name: str, request: DimRequest
) -> dict[str, DimRequest | None]:
    """The dynamic dims with the one that is covered.

    Raises:
        UsageError: TC008, it has another range there.
    """
    given = dynamic.get(name)
    if given not in (None, request):
        raise UsageError(
            Diagnostic(
                "TC008",
                f"{name} has the range {given} in --dynamic, and {request} in --cover",
                tries=(f"leave {name} out of --dynamic",),
            )
        )
    return {**dynamic, name: request}


def covered_arms(
    source: Source,
    dynamic: Mapping[str, DimRequest | None],
    variants: Variants,
    narrow: bool,
    stages: Stages,
) -> tuple[Covered, tuple[Diagnostic, ...]]:
    """Every arm of the model's branches on a dim, with notes.

    Raises:
        ExportError: as `cover`, and what refuses the trace of the example.
    """
    assert variants.cover is not None
    name, asked = variants.cover
    prepared = prepare(source, dynamic)
    others = {each: request for each, request in dynamic.items() if each != name}

    def trace_at(size: int, within: Span | None) -> tuple[Trace, Derived, tuple[Diagnostic, ...]]:
        at = {**prepared.sizes, name: size}
        leaves = [
            leaf if axes is None else resized(leaf, axes, prepared.sizes, at)
            for (_, leaf), axes in zip(prepared.bound.leaves, prepared.shapes, strict=True)
        ]
        _, spec = pytree.tree_flatten((prepared.bound.args, prepared.bound.kwargs))
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        there = replace(source, args=tuple(args), kwargs=dict(kwargs))
        # A promise is kept by all arms together, so that each of them may be narrower.
        ranges = dict(others)
        if within is not None:
            ranges[name] = DimRequest(within.lo, within.hi, within.step)
        found = traced_and_derived(there, ranges, True, stages)
        return *found[:2], _without_narrowing(found[2], name)

    traced, derived, notes = traced_and_derived(source, dynamic, True, stages)
    span = Span(asked.lo, asked.hi, asked.step)
    covered = cover(name, span, (traced, derived), trace_at, variants.limit, narrow)
    notes = tuple(dict.fromkeys((*_without_narrowing(notes, name), *covered.notes)))
    return covered, notes


def _without_narrowing(notes: Sequence[Diagnostic], name: str) -> tuple[Diagnostic, ...]:
    """Without the notes that an arm serves but a part of the covered range."""
    return tuple(
        note for note in notes if note.code != "TC210" or not note.message.startswith(f"{name}=")
    )
