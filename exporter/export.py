"""The export, from a source to a verified file: what `tcexport.export` and the command line call."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..artifacts.container import publish
from ..artifacts.contract import Contract, Dim
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.external import moved_outside
from ..artifacts.levels import Levels, parse_levels
from ..artifacts.logs import log
from ..lowering.survey import OpUse
from ..lowering.targets import Target, target_named
from .advice import Advice, advise
from .auto import AUTO, with_auto
from .bundle import assemble
from .derive import over_dims, used_symbols, with_asserted
from .display import displayer, in_the_users_words, raised, relocated
from .indices import require_bounded
from .limits import DEFAULT_LIMIT
from .onnx.emit import Draft, copy_of, emitted, require_emittable
from .options import DimRequest, dynamic_from_python, parse_targets
from .outline import outlined, own_kernels_of
from .profiles import Variants, cover_from_python, profiles_from_python, spans_text
from .repository import commit_of
from .source import Source, source_in_memory
from .stages import Progress, Stages
from .state import preserved
from .traced import traced_and_derived
from .variants import Plan, built, on_gpu, plan
from .verify import Checked, Part, verify
from .words import in_words
from .worth import Raced, left_out, raced

Weights = Literal["inside", "external"]

if TYPE_CHECKING:
    from ..lowering.lower import Lowered


@dataclass(frozen=True)
class Report:
    """What an export did. ``stages``: seconds for each; ``verified``: where the file was compared
    with eager; ``notes``: what the user should know, as diagnostics; ``ops`` and ``advice``: see
    `OpUse`, `Advice`; ``variants``: what code there is beside the general one, in the order of
    trial; ``races``: how it was measured beside that one; ``onnx``: the ONNX copy, if one was asked
    for."""

    path: str
    size: int
    weights_size: int
    dims: tuple[Dim, ...]
    targets: tuple[str, ...]
    contract: Contract
    notes: tuple[Diagnostic, ...]
    verified: tuple[Checked, ...]
    stages: tuple[tuple[str, float], ...]
    ops: tuple[OpUse, ...]
    advice: Advice
    variants: tuple[str, ...] = ()
    races: tuple[Raced, ...] = ()
    onnx: str = ""


@dataclass(frozen=True)
class CheckReport:
    """What a trace alone shows."""

    dims: tuple[Dim, ...]
    contract: Contract
    notes: tuple[Diagnostic, ...]
    stages: tuple[tuple[str, float], ...]


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Any] | Literal["auto"] | None = None,
    out: str | os.PathLike[str],
    targets: Sequence[str] = ("cpu",),
    narrow: bool = False,
    error: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    lowerings: Mapping[str, Callable[..., Any]] | None = None,
    specialize: Mapping[str, Any] | None = None,
    profiles: Mapping[str, Any] | None = None,
    cover: Mapping[str, Any] | None = None,
    variant_limit: int = DEFAULT_LIMIT,
    keep_variants: bool = False,
    examples: Sequence[Any] = (),
    weights: Weights = "inside",
    emit_onnx: bool = False,
) -> Report:
    """Export a module to one file that runs without PyTorch.

    Args:
        module: the model, in eval mode.
        args, kwargs: example inputs: tensors and plain values in tuples, lists and dicts.
        axes: a parameter's path → a name, an expression over names, or None for each axis:
            ``{"input_ids": ("batch", "seq")}``.
        dynamic: a dim's name → ``(lo, hi)``, ``(lo, hi, step)``, or None for the widest range that
            the trace proves. A range that is given is a promise: kept, or the export is refused.
            ``"auto"``: the dims that ``args`` and ``examples`` differ in.
        out: the file to write.
        targets: what to build for, such as ``"cpu"``, ``"cpu:x86-64-v3"`` or
            ``"cuda:sm_80+sm_90+ptx"``.
        narrow: take the provable part of a range in place of refusing.
        error: codes whose notes and warnings refuse the export: ``"TC106"``, or several.
        allow: codes whose notes are left out of the report.
        lowerings: functions of TVM for ops that are not torch's, by their names
            (``{"mylib::gelu": lower_gelu}``): see docs/custom-ops.md.
        specialize: sizes that get code of their own, beside the general code: a dim's name → a size,
            a range ``(lo, hi)``, or a list of them; of several dims, every combination.
        profiles: the same by name, each a variant of its own:
            ``{"small": {"batch": 1, "seq": (1, 128)}}``.
        cover: a dim's name → ``(lo, hi)``: all of its sizes are served, also where the model branches
            on them: each arm is traced, and becomes a variant.
        variant_limit: how many variants there may be.
        keep_variants: measure nothing, and leave no variant out for being slower than the general code.
        examples: further example inputs, each a tuple of arguments or a dict of keyword arguments.
        weights: ``"external"`` puts them into a file beside ``out``, named by its digest.
        emit_onnx: put an ONNX copy beside ``out``, compared with ONNX Runtime: see docs/onnx.md.

    Returns:
        A report with ``.path``.

    Raises:
        ExportError: the model cannot be exported as asked; nothing was written.
        UsageError: the arguments do not fit each other.
    """
    source = source_in_memory(module, args, kwargs, axes, lowerings, examples)
    ranges: Any = {AUTO: None} if dynamic == AUTO else dynamic
    asked = dynamic_from_python(ranges or {})
    source, asked = with_auto(source, asked)
    return export_source(
        source,
        dynamic=asked,
        targets=targets,
        out=out,
        narrow=narrow,
        levels=parse_levels(error, allow, "{}="),
        variants=Variants(
            profiles_from_python(specialize, profiles),
            variant_limit,
            cover_from_python(cover),
            keep_variants,
        ),
        weights=weights,
        emit_onnx=emit_onnx,
    )


def export_source(
    source: Source,
    *,
    dynamic: Mapping[str, DimRequest | None],
    targets: Sequence[str] = ("cpu",),
    out: str | os.PathLike[str],
    narrow: bool = False,
    levels: Levels | None = None,
    progress: Progress | None = None,
    variants: Variants | None = None,
    weights: Weights = "inside",
    emit_onnx: bool = False,
) -> Report:
    """Export a source. See `export`; ``progress`` is called with a stage's name and None where it
    starts, and with its seconds where it ends."""
    levels = levels or Levels()
    variants = variants or Variants()
    if weights not in ("inside", "external"):
        raise UsageError(
            Diagnostic(
                "TC008", f"weights={weights!r:.40}", tries=('weights="inside" or "external"',)
            )
        )
    with in_the_users_words(source, levels):
        stages = Stages(progress)
        return _export(
            source,
            dynamic,
            targets,
            Path(out),
            narrow,
            levels,
            variants,
            weights,
            emit_onnx,
            stages,
        )


def _export(
    source: Source,
    dynamic: Mapping[str, DimRequest | None],
    targets: Sequence[str],
    path: Path,
    narrow: bool,
    levels: Levels,
    variants: Variants,
    weights: Weights,
    emit_onnx: bool,
    stages: Stages,
) -> Report:
    wanted = parse_targets(targets)
    _require_writable(path)
    if emit_onnx:
        require_emittable(source, path)
        _require_writable(copy_of(path))
    outline = outlined(source, dynamic, wanted, narrow, variants, stages)
    dynamic, planned, whole, notes = outline.dynamic, outline.plan, outline.whole, outline.notes
    traced = planned.arms[0].traced
    raised(levels.applied(notes))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.unverified")
    races: tuple[Raced, ...] = ()
    try:
        with tempfile.TemporaryDirectory(prefix="tcexport-") as folder, ExitStack() as outside:
            references = [] if source.reference is None else [source.reference]
            copy: Draft | None = None
            if emit_onnx:
                copy = outside.enter_context(emitted(source, planned.arms, path, stages))
                references.append(copy.reference)
            while True:
                workdir = Path(folder) / f"{len(planned.variants)}"
                workdir.mkdir()
                asked = _options(dynamic, targets, narrow, planned)
                made = _build(source, planned, whole, wanted, asked, workdir, draft, stages)
                # What is verified is what is published: with its weights where they will be.
                drop = (
                    outside.enter_context(moved_outside(draft)) if weights == "external" else None
                )
                with stages("verify against eager"), preserved(source.module):
                    verified = verify(draft, source.module, made.parts, wanted, workdir, references)
                here = any(not each.skipped for each in verified)
                if variants.keep or races or not here:
                    break
                with stages("measure the variants") if planned.made else nullcontext():
                    races = raced(draft, planned, workdir / "verify")
                found = left_out(races)
                if not found:
                    break
                if drop is not None:
                    drop()
                slower = {each.variant for each in races if each.slower}
                kept = [each for each in variants.profiles if each.name not in slower]
                planned = plan(planned.arms, kept, variants.limit)
                notes = (*outline.traced_notes, *planned.notes, *found)
                raised(levels.applied(notes))
            weights_size = made.lowered.weights_file.stat().st_size
            with ExitStack() as beside:
                shown = ""
                if copy is not None:
                    copy.require_compared(verified, made.contract)
                    shown = str(beside.enter_context(copy.published(path.parent)))
                publish(draft, path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    contract, lowered = made.contract, made.lowered
    return Report(
        path=str(path),
        size=path.stat().st_size,
        weights_size=weights_size,
        dims=contract.dims,
        targets=tuple(target.label for target in wanted),
        contract=contract,
        notes=levels.applied(relocated(notes, displayer(source))),
        verified=verified,
        stages=tuple(stages.done),
        ops=relocated(lowered.ops, displayer(source)),
        advice=advise(source, lowered.ops, contract, traced.sizes, path.with_suffix(".bench.json")),
        variants=tuple(each.name for each in planned.variants) if len(made.parts) > 1 else (),
        races=races,
        onnx=shown,
    )


@dataclass(frozen=True)
class _Built:
    """A file that is written, not verified yet: what it serves, and the parts to verify."""

    lowered: Lowered
    contract: Contract
    parts: tuple[Part, ...]


def _build(
    source: Source,
    planned: Plan,
    whole: Contract | None,
    targets: Sequence[Target],
    options: Mapping[str, str],
    workdir: Path,
    draft: Path,
    stages: Stages,
) -> _Built:
    """Compile what is planned, and write it to ``draft``."""
    from ..lowering.lower import lower

    arms = planned.arms
    traced, derived = arms[0].traced, arms[0].derived
    with in_words(derived.words):
        lowered = lower(
            traced.program,
            tuple(target.name for target in targets),
            workdir,
            stages.child,
            own_kernels_of(source, arms),
            others=[arm.traced.program for arm in arms[1:]],
            functions=planned.functions,
        )
    listener = log("variants")
    if listener is not None:
        for name, library in lowered.libraries.items():
            size = library.stat().st_size
            listener.info("built %s, %d bytes", target_named(name).label, size)
    require_bounded(traced, lowered.main.indexing)
    for wanted, function in zip(planned.functions, lowered.functions, strict=True):
        require_bounded(arms[wanted.program].traced, function.indexing)
    derived = with_asserted(derived, traced, lowered.main.asserted)
    contract = relocated(whole or derived.contract, displayer(source))
    made = built(planned, lowered) if len(planned.variants) > 1 else ()
    with stages("write the bundle"):
        assemble(
            draft,
            model=source.name,
            source=Path(source.file).name if source.file else "",
            source_sha256=source.sha256,
            commit=commit_of(Path(source.file) if source.file else None),
            options=options,
            contract=contract,
            lowered=lowered,
            sizes=used_symbols(lowered.main.sizes, derived),
            memory=None if made else over_dims(lowered.main.memory, derived),
            on_gpu=on_gpu(planned, lowered),
            variants=relocated(tuple(each for _, each in made), displayer(source)),
        )
    parts = [Part("", traced, derived)]
    parts += [Part(each.name, arms[each.arm].traced, each.derived) for each, _ in made]
    return _Built(lowered, contract, tuple(parts))


def check(
    source: Source,
    *,
    dynamic: Mapping[str, DimRequest | None],
    narrow: bool = False,
    progress: Progress | None = None,
) -> CheckReport:
    """Trace a source and derive its contract, and look no further: see `check.check_source`.

    Raises:
        ExportError, UsageError: as `export`.
    """
    stages = Stages(progress)
    with in_the_users_words(source, Levels()):
        _, derived, notes = traced_and_derived(source, dynamic, narrow, stages)
    contract = relocated(derived.contract, displayer(source))
    notes = relocated(notes, displayer(source))
    return CheckReport(contract.dims, contract, notes, tuple(stages.done))


def _require_writable(path: Path) -> None:
    """Refuse before the work, not after it, where the bundle can't be written."""
    folder = path.parent
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK):
        reason = f"the folder {folder} is not writable"
    else:
        return
    raise UsageError(Diagnostic("TC012", f"cannot write {path}: {reason}"))


def _options(
    dynamic: Mapping[str, DimRequest | None], targets: Sequence[str], narrow: bool, planned: Plan
) -> dict[str, str]:
    asked = [name if span is None else f"{name}={span}" for name, span in dynamic.items()]
    options = {
        "dynamic": ",".join(asked),
        "targets": json.dumps(list(targets)),
        "narrow": str(narrow).lower(),
    }
    if len(planned.arms) > 1:
        options["arms"] = json.dumps([arm.name for arm in planned.arms])
    made = [each for each in planned.variants if each.spans]
    if made:
        options["variants"] = json.dumps({each.name: spans_text(each.spans) for each in made})
    return options
