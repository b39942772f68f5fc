"""What an export would say, without compiling: the contract, the ops, every refusal at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ..artifacts.contract import Contract, Dim
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.levels import Levels, parse_levels
from ..lowering.survey import OpUse
from .advice import Advice, advise
from .derive import with_asserted
from .display import displayer, in_the_users_words, raised, relocated
from .graph_text import graph_text
from .indices import require_bounded
from .options import DimRequest, dynamic_from_python, parse_targets
from .source import Source, source_in_memory
from .stages import Progress, Stages
from .traced import traced_and_derived
from .words import Words, in_words


@dataclass(frozen=True)
class Findings:
    """What a check finds.

    Attributes:
        errors: what an export would refuse; empty where it would go on to compile.
        notes: notes and warnings, as an export would report them.
        contract, dims: None and empty where there is no trace.
        ops: which ops the graph holds, and which of them can be lowered; empty without a trace.
        stages: seconds of each stage.
        graph: the traced graph as text, where it was asked for; see `graph_text`.
        advice: whether an export is worth it; None where it would be refused.
    """

    errors: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    dims: tuple[Dim, ...]
    contract: Contract | None
    ops: tuple[OpUse, ...]
    stages: tuple[tuple[str, float], ...]
    graph: str | None = None
    advice: Advice | None = None


def check(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Any] | None = None,
    narrow: bool = False,
    error: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    lowerings: Mapping[str, Callable[..., Any]] | None = None,
    graph: bool = False,
    bench: str | os.PathLike[str] | None = None,
) -> Findings:
    """What `tcexport.export` would refuse or report of a module, without building anything.

    Args:
        module, args, kwargs, axes, dynamic, narrow, error, allow, lowerings: as `tcexport.export`.
        graph: give the traced graph, too, as text.
        bench: results of `tcexport bench -o`, for the advice.

    Raises:
        UsageError: the arguments do not fit each other.
    """
    return check_source(
        source_in_memory(module, args, kwargs, axes, lowerings),
        dynamic=dynamic_from_python(dynamic or {}),
        narrow=narrow,
        levels=parse_levels(error, allow, "{}="),
        graph=graph,
        bench=None if bench is None else Path(bench),
    )


def check_source(
    source: Source,
    *,
    dynamic: Mapping[str, DimRequest | None],
    narrow: bool = False,
    levels: Levels | None = None,
    graph: bool = False,
    bench: Path | None = None,
    progress: Progress | None = None,
) -> Findings:
    """The same for a source. ``progress``: see `export_source`."""
    stages, levels = Stages(progress), levels or Levels()
    try:
        with in_the_users_words(source, levels):
            traced, derived, notes = traced_and_derived(source, dynamic, narrow, stages)
    except ExportError as error:
        errors, notes = _parted(error.diagnostics)
        return Findings(errors, notes, (), None, (), tuple(stages.done))
    display = displayer(source)
    errors, notes = _parted(levels.applied(relocated(notes, display)))
    ops: tuple[OpUse, ...] = ()
    try:
        with in_the_users_words(source, levels), in_words(derived.words):
            from ..lowering.lower import survey
            from ..lowering.own_ops import own_kernels

            target = parse_targets(("cpu",))[0]
            with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
                own = own_kernels(traced.program, source.lowerings)
                found = survey(traced.program, target.name, Path(folder), stages.child, own)
            ops = tuple(_in_words(each, derived.words) for each in found.ops)
            derived = with_asserted(derived, traced, found.asserted)
            raised(found.errors)
            require_bounded(traced, found.indexing)
    except ExportError as error:
        errors += error.diagnostics
    contract = relocated(derived.contract, display)
    return Findings(
        errors,
        notes,
        contract.dims,
        contract,
        relocated(ops, display),
        tuple(stages.done),
        graph_text(traced, contract, derived.words, display) if graph else None,
        None if errors else advise(source, ops, contract, traced.sizes, bench),
    )


def _in_words(row: OpUse, words: Words) -> OpUse:
    return msgspec.structs.replace(row, reason=words.said(row.reason), tries=words.said(row.tries))


def _parted(
    found: Sequence[Diagnostic],
) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Refusals, and the rest."""
    errors = tuple(each for each in found if each.severity == "error")
    return errors, tuple(each for each in found if each.severity != "error")
