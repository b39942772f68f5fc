"""Source → trace and contract, held against the model on the way; a refused range is told with one that
was tried and works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from torch.utils import _pytree as pytree

from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.logs import log
from .caches import are_caches
from .derive import Derived, contiguous_only, derive
from .examples import resized
from .faithful import require_faithful, require_repeatable
from .lasting import require_nothing_left
from .ones import Retrace
from .options import DimRequest
from .points import choose
from .prepare import Prepared, prepare
from .ranges import Request
from .rehearse import Rehearsal, kept_draws, lost_draws, refusal, rehearse, reseed
from .sessions import draws, require_states
from .source import Source
from .stages import Stages
from .state import preserved
from .trace import Trace, may_be_zero, trace
from .translate import substitute


def traced_and_derived(
    source: Source, dynamic: Mapping[str, DimRequest | None], narrow: bool, stages: Stages
) -> tuple[Trace, Derived, tuple[Diagnostic, ...]]:
    """The trace and its contract, with notes. The user's objects are afterwards as before."""
    prepared = prepare(source, dynamic)
    with preserved(source.module):
        with stages("run the model"):
            rehearsal = rehearse(
                source.module, prepared.bound, partial(are_caches, source.module, prepared)
            )
        return _traced(source, prepared, narrow, stages, rehearsal)


def _traced(
    source: Source, prepared: Prepared, narrow: bool, stages: Stages, rehearsal: Rehearsal
) -> tuple[Trace, Derived, tuple[Diagnostic, ...]]:
    if rehearsal.draws:
        prepared = replace(prepared, bound=replace(prepared.bound, draws=True))
    try:
        with stages("trace"), preserved(source.module):
            # What is refused already is only followed as far as it can name more to mend.
            traced = _first(source, prepared, decomposed=not rehearsal.errors)
    except ExportError as error:
        if all(each.code in _RANGES for each in error.diagnostics):
            raise ExportError(_with_tries(error, source, prepared)) from error
        raise refusal(error, source.module, prepared.bound, rehearsal) from error
    if rehearsal.errors:
        raise ExportError((*rehearsal.errors, *rehearsal.notes))
    kept = require_states(source.module, traced, rehearsal.states)
    drawn = rehearsal.draws
    if draws(traced):
        kept += kept_draws(rehearsal)
        drawn = lost_draws(rehearsal)
    with stages("compare the trace with the model"):
        require_faithful(source.module, traced, (*drawn, *rehearsal.suspects))
        if not traced.strict:
            with preserved(source.module):
                reseed(1)
                require_repeatable(traced, _trace(source, prepared, zeros=traced.zeros))
    try:
        with stages("derive the contract"):
            traced, derived = _derived(source, traced, prepared, narrow)
            example = _resized(traced, traced.sizes)
            for point in choose(derived.contract, traced, derived.symbols):
                leaves = _resized(traced, {**traced.sizes, **point.sizes})
                require_nothing_left(source.module, traced.bound, example, leaves, point.sizes)
    except ExportError as error:
        raise ExportError(_with_tries(error, source, prepared)) from error
    if any(note.code == "TC116" for note in rehearsal.notes):
        derived = replace(derived, contract=contiguous_only(derived.contract))
    return traced, derived, (*source.notes, *rehearsal.notes, *kept, *derived.notes)


def _derived(
    source: Source, traced: Trace, prepared: Prepared, narrow: bool
) -> tuple[Trace, Derived]:
    """The contract; where a trace with sizes of 0 needs what can't be checked, of one without."""
    retrace = _retracer(source, traced, prepared.requests)
    try:
        return traced, derive(traced, prepared.requests, retrace, narrow=narrow)
    except ExportError as error:
        if not traced.zeros or any(each.code != "TC211" for each in error.diagnostics):
            raise
        try:
            traced = _trace(source, prepared, zeros=False)
            retrace = _retracer(source, traced, prepared.requests)
            narrowed = derive(traced, prepared.requests, retrace, narrow=True)
        except ExportError:  # sizes of 0 are not the reason
            raise error from None
        if narrow:
            return traced, narrowed
        traced = _trace(source, prepared, zeros=False)  # the other has checks in its graph
        retrace = _retracer(source, traced, prepared.requests)
        return traced, derive(traced, prepared.requests, retrace, narrow=False)


_RANGES = ("TC201", "TC210")  # refusals of a range, not of the model


def _first(source: Source, prepared: Prepared, *, decomposed: bool = True) -> Trace:
    """A trace with sizes of 0, where the ranges hold them; without, where torch cannot take them:
    its shape functions may not know what ``x[:, :1]`` broadcasts to."""
    try:
        return _trace(source, prepared, decomposed=decomposed)
    except ExportError as error:
        of_ranges = all(each.code in _RANGES for each in error.diagnostics)
        if of_ranges or not decomposed or not may_be_zero(prepared.shapes, prepared.requests):
            raise
        try:
            return _trace(source, prepared, zeros=False)
        except ExportError:  # sizes of 0 are not the reason
            raise error from None


def _trace(
    source: Source, prepared: Prepared, *, decomposed: bool = True, zeros: bool = True
) -> Trace:
    return trace(
        source.module,
        prepared.bound,
        prepared.shapes,
        prepared.sizes,
        prepared.requests,
        decomposed=decomposed,
        zeros=zeros,
        own_ops=source.lowerings,
    )


def _retracer(source: Source, traced: Trace, requests: Mapping[str, Request]) -> Retrace:
    """Traces the same call again with some dims fixed at a size."""

    examples = _resized(traced, traced.sizes)

    def retrace(point: Mapping[str, int]) -> Trace:
        sizes = {**traced.sizes, **point}
        leaves = _resized(traced, sizes)
        _, spec = pytree.tree_flatten((traced.bound.args, traced.bound.kwargs))
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        paths = [path for path, _ in traced.bound.leaves]
        bound = replace(
            traced.bound,
            leaves=tuple(zip(paths, leaves, strict=True)),
            args=args,
            kwargs=kwargs,
        )
        shapes = [
            None if axes is None else tuple(substitute(axis, point) for axis in axes)
            for axes in traced.shapes
        ]
        rest = {name: request for name, request in requests.items() if name not in point}
        listener = log("variants")
        if listener is not None:
            at = ", ".join(f"{name}={size}" for name, size in point.items())
            listener.info("traced again with %s", at)
        fixed = {name: sizes[name] for name in rest}
        own = source.lowerings
        require_nothing_left(source.module, traced.bound, examples, leaves, point)
        with preserved(source.module):  # a trace fills the model's caches, too
            return trace(source.module, bound, shapes, fixed, rest, zeros=traced.zeros, own_ops=own)

    return retrace


def _resized(traced: Trace, sizes: Mapping[str, int]) -> list[Any]:
    """The example's leaves at other sizes."""
    return [
        leaf if axes is None else resized(leaf, axes, traced.example_sizes, sizes)
        for (_, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True)
    ]


def _with_tries(error: ExportError, source: Source, prepared: Prepared) -> tuple[Diagnostic, ...]:
    """A refused range with a ``--dynamic`` that was tried: traced again, and proved."""
    if not all(each.code in _RANGES for each in error.diagnostics):
        return error.diagnostics
    try:
        traced = _first(source, prepared)
        retrace = _retracer(source, traced, prepared.requests)
        narrowed = derive(traced, prepared.requests, retrace, narrow=True)
        smaller = {
            name: replace(request, span=narrowed.fit.spans[name])
            for name, request in prepared.requests.items()
        }
    except ExportError:
        return error.diagnostics
    typed = ",".join(
        f"{name}={request.span}" if prepared.requests[name].given else name
        for name, request in smaller.items()
    )
    tried = f"--dynamic {typed}   (tried, works)   or --narrow"
    try:
        again = Prepared(prepared.bound, prepared.shapes, prepared.sizes, smaller)
        traced = _first(source, again)
        derive(traced, smaller, _retracer(source, traced, smaller), narrow=False)
    except ExportError:  # no box of sizes holds all that can be served
        tried = "--narrow   (tried, works: what is needed is checked at every call)"
    return tuple(
        msgspec.structs.replace(each, tries=(tried,)) if each.code == "TC210" else each
        for each in error.diagnostics
    )
