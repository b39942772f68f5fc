"""What an export would say, without compiling: the contract, the ops, every refusal at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from ..artifacts.contract import Contract, Dim
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.levels import Levels, parse_levels
from ..lowering.survey import OpUse
from .advice import Advice, advise
from .auto import AUTO, with_auto
from .derive import with_asserted
from .display import displayer, in_the_users_words, raised, relocated
from .graph_text import graph_text
from .indices import require_bounded
from .limits import DEFAULT_LIMIT
from .options import DimRequest, dynamic_from_python, parse_targets
from .outline import outlined, own_kernels_of
from .profiles import Variants, cover_from_python, profiles_from_python
from .source import Source, source_in_memory
from .stages import Progress, Stages
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
        variants: what code there would be beside the general one, in the order of trial.
    """

    errors: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    dims: tuple[Dim, ...]
    contract: Contract | None
    ops: tuple[OpUse, ...]
    stages: tuple[tuple[str, float], ...]
    graph: str | None = None
    advice: Advice | None = None
    variants: tuple[str, ...] = ()


def check(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Any] | Literal["auto"] | None = None,
    targets: Sequence[str] = ("cpu",),
    narrow: bool = False,
    error: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    lowerings: Mapping[str, Callable[..., Any]] | None = None,
    specialize: Mapping[str, Any] | None = None,
    profiles: Mapping[str, Any] | None = None,
    cover: Mapping[str, Any] | None = None,
    variant_limit: int = DEFAULT_LIMIT,
    examples: Sequence[Any] = (),
    graph: bool = False,
    bench: str | os.PathLike[str] | None = None,
) -> Findings:
    """What `tcexport.export` would refuse or report of a module, without building anything.

    Args:
        module, args, kwargs, axes, dynamic, targets, narrow, error, allow, lowerings, specialize,
            profiles, cover, variant_limit, examples: as `tcexport.export`.
        graph: give the traced graph, too, as text.
        bench: results of `tcexport bench -o`, for the advice.

    Raises:
        UsageError: the arguments do not fit each other.
    """
    source = source_in_memory(module, args, kwargs, axes, lowerings, examples)
    ranges: Any = {AUTO: None} if dynamic == AUTO else dynamic
    source, asked = with_auto(source, dynamic_from_python(ranges or {}))
    return check_source(
        source,
        dynamic=asked,
        targets=targets,
        narrow=narrow,
        levels=parse_levels(error, allow, "{}="),
        variants=Variants(
            profiles_from_python(specialize, profiles), variant_limit, cover_from_python(cover)
        ),
        graph=graph,
        bench=None if bench is None else Path(bench),
    )


def check_source(
    source: Source,
    *,
    dynamic: Mapping[str, DimRequest | None],
    targets: Sequence[str] = ("cpu",),
    narrow: bool = False,
    levels: Levels | None = None,
    variants: Variants | None = None,
    graph: bool = False,
    bench: Path | None = None,
    progress: Progress | None = None,
) -> Findings:
    """The same for a source. ``progress``: see `export_source`."""
    stages, levels = Stages(progress), levels or Levels()
    wanted = parse_targets(targets)
    try:
        with in_the_users_words(source, levels):
            outline = outlined(source, dynamic, wanted, narrow, variants or Variants(), stages)
    except ExportError as error:
        errors, notes = _parted(error.diagnostics)
        return Findings(errors, notes, (), None, (), tuple(stages.done))
    planned, notes = outline.plan, outline.notes
    arms = planned.arms
    traced, derived = arms[0].traced, arms[0].derived
    display = displayer(source)
    errors, notes = _parted(levels.applied(relocated(notes, display)))
    ops: tuple[OpUse, ...] = ()
    try:
        with in_the_users_words(source, levels), in_words(derived.words):
            from ..lowering.lower import survey

            with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
                found = survey(
                    [arm.traced.program for arm in arms],
                    tuple(target.name for target in wanted),
                    Path(folder),
                    stages.child,
                    own_kernels_of(source, arms),
                    functions=planned.functions,
                )
            ops = tuple(_in_words(each, derived.words) for each in found.ops)
            derived = with_asserted(derived, traced, found.functions[0].asserted)
            raised(found.errors)
            for function, looked in zip(planned.functions, found.functions, strict=True):
                require_bounded(arms[function.program].traced, looked.indexing)
    except ExportError as error:
        errors += error.diagnostics
    contract = relocated(outline.whole or derived.contract, display)
    return Findings(
        errors,
        notes,
        contract.dims,
        contract,
        relocated(ops, display),
        tuple(stages.done),
        graph_text(traced, contract, derived.words, display) if graph else None,
        None if errors else advise(source, ops, contract, traced.sizes, bench),
        tuple(each.name for each in planned.variants) if len(planned.variants) > 1 else (),
    )


def _in_words(row: OpUse, words: Words) -> OpUse:
    return msgspec.structs.replace(row, reason=words.said(row.reason), tries=words.said(row.tries))


def _parted(
    found: Sequence[Diagnostic],
) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Refusals, and the rest."""
    errors = tuple(each for each in found if each.severity == "error")
    return errors, tuple(each for each in found if each.severity != "error")
