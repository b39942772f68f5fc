"""The export, from a source to a verified file: what `tcexport.export` and the command line call."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch.utils import _pytree as pytree

from ..artifacts.container import publish
from ..artifacts.contract import Contract, Dim
from ..artifacts.errors import Diagnostic, ExportError, UsageError
from ..artifacts.external import moved_outside
from ..artifacts.levels import Levels, parse_levels
from ..artifacts.logs import log
from ..artifacts.manifest import GENERAL
from ..lowering.cuda.toolchain import find_toolchain
from ..lowering.own_ops import own_kernels
from ..lowering.survey import OpUse
from ..lowering.targets import GpuTarget, target_named
from .advice import Advice, advise
from .auto import AUTO, require_served, with_auto
from .axes import check_axes, check_dynamic_names, dim_sizes, parse_axis
from .bundle import assemble, machines
from .cover import Covered, cover
from .derive import (
    Derived,
    contiguous_only,
    derive,
    over_dims,
    relocated,
    used_symbols,
    with_asserted,
)
from .examples import AxisExprs, resized
from .faithful import require_faithful, require_repeatable
from .indices import require_bounded
from .limits import DEFAULT_LIMIT
from .ones import Retrace
from .options import DimRequest, dynamic_from_python, parse_targets
from .profiles import (
    Variants,
    cover_from_python,
    profiles_from_python,
    sizes_text,
)
from .prove import Span
from .ranges import Request
from .rehearse import Rehearsal, refusal, rehearse, reseed
from .repository import commit_of
from .sessions import require_states
from .signature import Bound, bind
from .source import Source, has_modes, source_in_memory
from .state import preserved
from .trace import Trace, trace
from .translate import substitute
from .tvm_runtime import tvm_runtime
from .variants import Arm, Plan, built, plan
from .verify import Checked, Part, verify
from .words import in_words

Progress = Callable[[str, "float | None"], None]
Weights = Literal["inside", "external"]


@dataclass(frozen=True)
class Report:
    """What an export did. ``stages``: seconds for each; ``verified``: where the file was compared
    with eager; ``notes``: what the user should know, as diagnostics; ``ops`` and ``advice``: see
    `OpUse`, `Advice`; ``variants``: what code there is beside the general one, in the order of
    trial."""

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


@dataclass(frozen=True)
class CheckReport:
    """What a trace alone shows."""

    dims: tuple[Dim, ...]
    contract: Contract
    notes: tuple[Diagnostic, ...]
    stages: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class _Prepared:
    bound: Bound
    shapes: tuple[AxisExprs | None, ...]
    sizes: dict[str, int]
    requests: dict[str, Request]


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
    examples: Sequence[Any] = (),
    weights: Weights = "inside",
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
        examples: further example inputs, each a tuple of arguments or a dict of keyword arguments.
        weights: ``"external"`` puts them into a file beside ``out``, named by its digest.

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
            profiles_from_python(specialize, profiles), variant_limit, cover_from_python(cover)
        ),
        weights=weights,
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
            source, dynamic, targets, Path(out), narrow, levels, variants, weights, stages
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
    stages: Stages,
) -> Report:
    from ..lowering.lower import lower

    wanted = parse_targets(targets)
    _require_writable(path)
    for machine in machines(target.name for target in wanted):
        tvm_runtime(machine)  # what is missing is said before the work, not after it
    if any(isinstance(target, GpuTarget) for target in wanted):
        if variants.profiles or variants.cover is not None:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    "variants are built for the CPU: GPU code has one function for all sizes",
                    tries=("--target cpu", "no --specialize, --profile or --cover"),
                )
            )
        find_toolchain()
    whole: Contract | None = None
    if variants.cover is None:
        traced, derived, notes = traced_and_derived(source, dynamic, narrow, stages)
        arms: tuple[Arm, ...] = (Arm(GENERAL, traced, derived),)
    else:
        dynamic = _with_cover(dynamic, *variants.cover)
        covered, notes = _covered(source, dynamic, variants, narrow, stages)
        arms = covered.arms
        traced, derived = arms[0].traced, arms[0].derived
        if len(arms) > 1:
            whole = covered.whole
    planned = plan(arms, variants.profiles, variants.limit)
    notes += planned.notes
    raised(levels.applied(notes))
    with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
        workdir = Path(folder)
        with in_words(derived.words):
            own = own_kernels(traced.program, source.lowerings)
            if own and len(arms) > 1:
                raise ExportError(
                    Diagnostic(
                        "TC224",
                        f"the arms of a branch cannot share {own[0].op}, an op of the model's own",
                        tries=("an export without --cover",),
                    )
                )
            lowered = lower(
                traced.program,
                tuple(target.name for target in wanted),
                workdir,
                stages.child,
                own,
                others=[arm.traced.program for arm in arms[1:]],
                functions=planned.functions,
            )
        listener = log("variants")
        if listener is not None:
            for name, library in lowered.libraries.items():
                size = library.stat().st_size
                listener.info("built %s, %d bytes", target_named(name).label, size)
        require_bounded(traced, lowered.indexing)
        for wanted_function, function in zip(planned.functions, lowered.functions, strict=True):
            require_bounded(arms[wanted_function.program].traced, function.indexing)
        derived = with_asserted(derived, traced, lowered.asserted)
        require_served(source, whole or derived.contract)
        contract = relocated(whole or derived.contract, displayer(source))
        made = built(planned, lowered) if len(planned.variants) > 1 else ()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.unverified")
        try:
            with stages("write the bundle"):
                assemble(
                    draft,
                    model=source.name,
                    source=Path(source.file).name if source.file else "",
                    source_sha256=source.sha256,
                    commit=commit_of(Path(source.file) if source.file else None),
                    options=_options(dynamic, targets, narrow, planned),
                    contract=contract,
                    lowered=lowered,
                    sizes=used_symbols(lowered.sizes, derived),
                    memory=None if made else over_dims(lowered.memory, derived),
                    gpu_sizes=used_symbols(lowered.gpu.sizes if lowered.gpu else (), derived),
                    variants=relocated(tuple(each for _, each in made), displayer(source)),
                )
            # What is verified is what is published: with its weights where they will be.
            outside = moved_outside(draft) if weights == "external" else nullcontext()
            with outside:
                with stages("verify against eager"):
                    parts = [Part("", traced, derived)]
                    parts += [
                        Part(each.name, arms[each.arm].traced, each.derived) for each, _ in made
                    ]
                    verified = verify(draft, source.module, parts, wanted, workdir)
                weights_size = lowered.weights_file.stat().st_size
                publish(draft, path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
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
        variants=tuple(each.name for each in planned.variants) if made else (),
    )


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


# --- stages ---------------------------------------------------------------------------------------


class Stages:
    """Runs the stages and keeps their times."""

    def __init__(self, progress: Progress | None) -> None:
        self.done: list[tuple[str, float]] = []
        self._progress = progress

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._tell(name, None)
        start = time.perf_counter()
        yield
        self._finish(name, time.perf_counter() - start)

    def child(self, name: str, seconds: float | None) -> None:
        """A stage of the compiler's process."""
        if seconds is None:
            self._tell(name, None)
        else:
            self._finish(name, seconds)

    def _finish(self, name: str, seconds: float) -> None:
        self.done.append((name, seconds))
        self._tell(name, seconds)

    def _tell(self, name: str, seconds: float | None) -> None:
        if self._progress is not None:
            self._progress(name, seconds)


def _prepare(source: Source, dynamic: Mapping[str, DimRequest | None]) -> _Prepared:
    """The example call with every axis as a number or an expression over the dynamic dims."""
    if not source.train or source.file is None:
        _require_eval_mode(source.module)
    dynamic = {**dict.fromkeys(source.dynamic), **dynamic}
    bound = bind(source.module, source.args, source.kwargs)
    plain = [path for path, leaf in bound.leaves if not isinstance(leaf, torch.Tensor)]
    axes = check_axes(source.axes, bound.tensors, plain)
    check_dynamic_names(dynamic, axes)
    everything = dim_sizes(axes, bound.tensors)
    fixed = {name: size for name, size in everything.items() if name not in dynamic}
    shapes = tuple(
        tuple(
            substitute(parse_axis(name), fixed) if isinstance(name, str) else int(size)
            for name, size in zip(axes[path], leaf.shape, strict=True)
        )
        if isinstance(leaf, torch.Tensor)
        else None
        for path, leaf in bound.leaves
    )
    requests = {
        name: Request(Span(1, None), given=False)
        if asked is None
        else Request(Span(asked.lo, asked.hi, asked.step), given=True)
        for name, asked in dynamic.items()
    }
    for name, request in requests.items():
        if everything[name] not in request.span and request.given:
            raise UsageError(
                Diagnostic(
                    "TC212",
                    f"{name} is {everything[name]} in the example inputs, outside of "
                    f"--dynamic {name}={request.span}",
                    tries=(f"example inputs with {name}={request.span.lo}",),
                )
            )
    return _Prepared(bound, shapes, {name: everything[name] for name in dynamic}, requests)


def _require_eval_mode(module: torch.nn.Module) -> None:
    if not has_modes(module):
        return
    training = [name or "the model" for name, each in module.named_modules() if each.training]
    if training:
        raise UsageError(
            Diagnostic(
                "TC010",
                f"{training[0]} is in training mode",
                notes=(f"{len(training)} modules are",) if len(training) > 1 else (),
                tries=("model.eval()",),
            )
        )


def traced_and_derived(
    source: Source, dynamic: Mapping[str, DimRequest | None], narrow: bool, stages: Stages
) -> tuple[Trace, Derived, tuple[Diagnostic, ...]]:
    """The trace and its contract, with notes. The user's objects are afterwards as before."""
    prepared = _prepare(source, dynamic)
    with preserved(source.module):
        with stages("run the model"):
            rehearsal = rehearse(source.module, prepared.bound)
        return _traced(source, prepared, narrow, stages, rehearsal)


def _traced(
    source: Source, prepared: _Prepared, narrow: bool, stages: Stages, rehearsal: Rehearsal
) -> tuple[Trace, Derived, tuple[Diagnostic, ...]]:
    try:
        with stages("trace"), preserved(source.module):
            # What is refused already is only followed as far as it can name more to mend.
            traced = _trace(source, prepared, decomposed=not rehearsal.errors)
    except ExportError as error:
        if all(each.code in _RANGES for each in error.diagnostics):
            raise ExportError(_with_tries(error, source, prepared)) from error
        raise refusal(error, source.module, prepared.bound, rehearsal) from error
    if rehearsal.errors:
        raise ExportError((*rehearsal.errors, *rehearsal.notes))
    kept = require_states(source.module, traced, rehearsal.states)
    with stages("compare the trace with the model"):
        require_faithful(source.module, traced, (*rehearsal.draws, *rehearsal.suspects))
        if not traced.strict:
            with preserved(source.module):
                reseed(1)
                require_repeatable(traced, _trace(source, prepared))
    try:
        with stages("derive the contract"):
            traced, derived = _derived(source, traced, prepared, narrow)
    except ExportError as error:
        raise ExportError(_with_tries(error, source, prepared)) from error
    if any(note.code == "TC116" for note in rehearsal.notes):
        derived = replace(derived, contract=contiguous_only(derived.contract))
    return traced, derived, (*source.notes, *rehearsal.notes, *kept, *derived.notes)


def _derived(
    source: Source, traced: Trace, prepared: _Prepared, narrow: bool
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


def _with_cover(
    dynamic: Mapping[str, DimRequest | None], name: str, request: DimRequest
) -> dict[str, DimRequest | None]:
    if dynamic.get(name, request) != request:
        raise UsageError(
            Diagnostic("TC008", f"{name} has one range in --dynamic, and another in --cover")
        )
    return {**dynamic, name: request}


def _covered(
    source: Source,
    dynamic: Mapping[str, DimRequest | None],
    variants: Variants,
    narrow: bool,
    stages: Stages,
) -> tuple[Covered, tuple[Diagnostic, ...]]:
    """Every arm of the model's branches on a dim."""
    assert variants.cover is not None
    name, asked = variants.cover
    prepared = _prepare(source, dynamic)
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


_RANGES = ("TC201", "TC210")  # refusals of a range, not of the model


def _trace(
    source: Source, prepared: _Prepared, *, decomposed: bool = True, zeros: bool = True
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

    def retrace(point: Mapping[str, int]) -> Trace:
        sizes = {**traced.sizes, **point}
        leaves = [
            leaf if axes is None else resized(leaf, axes, traced.example_sizes, sizes)
            for (_, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True)
        ]
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
        return trace(source.module, bound, shapes, fixed, rest, zeros=traced.zeros, own_ops=own)

    return retrace


def _with_tries(error: ExportError, source: Source, prepared: _Prepared) -> tuple[Diagnostic, ...]:
    """A refused range with a ``--dynamic`` that was tried: traced again, and proved."""
    if not all(each.code in _RANGES for each in error.diagnostics):
        return error.diagnostics
    try:
        traced = _trace(source, prepared)
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
        again = _Prepared(prepared.bound, prepared.shapes, prepared.sizes, smaller)
        traced = _trace(source, again)
        derive(traced, smaller, _retracer(source, traced, smaller), narrow=False)
    except ExportError:  # no box of sizes holds all that can be served
        tried = "--narrow   (tried, works: what is needed is checked at every call)"
    return tuple(
        msgspec.structs.replace(each, tries=(tried,)) if each.code == "TC210" else each
        for each in error.diagnostics
    )


def raised(found: Sequence[Diagnostic]) -> None:
    """Refuse the export where some of what was found is an error, which is then told first."""
    if any(each.severity == "error" for each in found):
        raise ExportError(sorted(found, key=lambda each: each.severity != "error"))


@contextmanager
def in_the_users_words(source: Source, levels: Levels) -> Iterator[None]:
    """Lets errors of an export name files as the user knows them, and have the levels asked for."""
    try:
        yield
    except (ExportError, UsageError) as error:
        found = relocated(error.diagnostics, displayer(source))
        raise type(error)(levels.applied(found)) from error.__cause__


def displayer(source: Source) -> Callable[[str], str]:
    """Files as the user knows them: relative to the source's folder, or to where packages live."""
    home = Path(source.file).resolve().parent if source.file else Path.cwd()

    def display(file: str) -> str:
        path = Path(file)
        for marker in ("site-packages", "dist-packages"):
            if marker in path.parts:
                return "/".join(path.parts[path.parts.index(marker) + 1 :])
        with suppress(ValueError, OSError):
            return path.resolve().relative_to(home).as_posix()
        return path.name

    return display


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
        options["variants"] = json.dumps({each.name: sizes_text(each.spans) for each in made})
    return options
