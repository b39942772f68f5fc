"""Variants: the parts of what a bundle serves that get code of their own, and the order of trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ..artifacts import manifest
from ..artifacts.contract import Contract, Dim, Origin, ValueSource
from ..artifacts.errors import Diagnostic, ExportError, UsageError
from ..artifacts.expr import dims_of, evaluate, render
from ..artifacts.manifest import GENERAL
from ..artifacts.names import suggestions
from ..artifacts.parts import box_of
from ..artifacts.prove import Box, Span, holds
from ..lowering.answer import Called, Function
from ..lowering.lower import Lowered
from ..lowering.variants import ENTRY
from .derive import Derived, over_dims, used_symbols, with_asserted
from .profiles import Profile, span_text, spans_text
from .trace import Trace


@dataclass(frozen=True)
class Arm:
    """A trace of the model with its contract: all that the bundle serves, or the part of the sizes
    that one arm of the model's branches is for."""

    name: str
    traced: Trace
    derived: Derived


@dataclass(frozen=True)
class Planned:
    """A variant that will be built: of an arm (its place in the plan), with ``sizes`` of torch's
    symbols as numbers. ``function`` is its name in the library, ``spans`` what was asked for."""

    name: str
    function: str
    arm: int
    derived: Derived
    sizes: dict[str, int]
    spans: dict[str, Span]

    @property
    def contract(self) -> Contract:
        return self.derived.contract


@dataclass(frozen=True)
class Plan:
    """``variants`` in the order of trial, the most specialized first; ``notes`` for the user."""

    arms: tuple[Arm, ...]
    variants: tuple[Planned, ...]
    notes: tuple[Diagnostic, ...] = ()

    @property
    def made(self) -> tuple[Planned, ...]:
        """The variants in which sizes are fixed."""
        return tuple(each for each in self.variants if each.sizes)

    @property
    def functions(self) -> tuple[Function, ...]:
        """What the library holds: the arms first, ``main`` before all."""
        arms = [each for each in self.variants if not each.sizes]
        arms.sort(key=lambda each: each.arm)
        return tuple(Function(each.function, each.arm, each.sizes) for each in (*arms, *self.made))


def plan(arms: Sequence[Arm], profiles: Sequence[Profile], limit: int) -> Plan:
    """Which variants are built for what is asked, and in which order a call tries them.

    Args:
        arms: at least one; without profiles each of them is a variant.
        limit: how many profiles and further arms there may be.

    Raises:
        UsageError: TC006, a dim that is not there or is not dynamic.
        ExportError: TC220, sizes that are not served; TC221, more than ``limit``.
    """
    if len(profiles) + len(arms) - 1 > limit:
        raise ExportError(_too_many(len(profiles) + len(arms) - 1, limit))
    named = [GENERAL] if len(arms) == 1 else [arm.name for arm in arms]
    whole = [
        Planned(name, ENTRY if number == 0 else f"arm{number}_main", number, arm.derived, {}, {})
        for number, (name, arm) in enumerate(zip(named, arms, strict=True))
    ]
    made: list[Planned] = []
    notes: list[Diagnostic] = []
    for profile in profiles:
        number = _arm_of(profile, arms)
        derived = _narrowed(profile, arms[number].derived)
        sizes = _fixed(derived)
        if sizes:
            function = f"v{len(made) + 1}_main"
            made.append(
                Planned(profile.name, function, number, derived, sizes, dict(profile.spans))
            )
        else:
            notes.append(_no_gain(profile))
    made.sort(key=lambda each: _points(each.contract))
    whole.sort(key=lambda each: _points(each.contract))
    notes += _overlaps(made)
    return Plan(tuple(arms), (*made, *whole), tuple(notes))


def _too_many(count: int, limit: int) -> Diagnostic:
    return Diagnostic(
        "TC221",
        f"{count} variants are asked for, and the limit is {limit}",
        tries=(f"--variant-limit {count}", "fewer sizes; `tcexport advise` says which pay"),
    )


def _arm_of(profile: Profile, arms: Sequence[Arm]) -> int:
    """The arm that serves the sizes of a profile."""
    refused: list[Diagnostic] = []
    for number, arm in enumerate(arms):
        problem = _unserved(profile, arm.derived.contract)
        if problem is None:
            return number
        refused.append(problem)
    if len(arms) == 1:
        raise ExportError(refused)
    raise ExportError(
        Diagnostic(
            "TC220",
            f"the variant {profile.name} lies in none of the parts that were traced",
            notes=tuple(
                f"{arm.name}: {each.message}" for arm, each in zip(arms, refused, strict=True)
            ),
            tries=("sizes that lie in one of these parts",),
        )
    )


def _unserved(profile: Profile, contract: Contract) -> Diagnostic | None:
    dims = {dim.name: dim for dim in contract.dims if not isinstance(dim.source, ValueSource)}
    for name, span in profile.spans.items():
        if name not in dims:
            known = ", ".join(dims) or "none: every axis is fixed"
            close = suggestions(name, dims)[:1]
            raise UsageError(
                Diagnostic(
                    "TC006",
                    f"the variant {profile.name}: there is no dynamic dim {name}",
                    notes=(f"dynamic dims: {known}",),
                    tries=tuple(f"--specialize {each}={span_text(span)}" for each in close)
                    or (f"--dynamic {name}, if it is the name of an axis",),
                )
            )
        dim = dims[name]
        inside = dim.lo <= span.lo and (dim.hi is None or (span.hi or span.lo) <= dim.hi)
        on_steps = (span.lo - dim.lo) % dim.step == 0 and (
            span.lo == span.hi or span.step % dim.step == 0
        )
        if not inside or not on_steps:
            origin = dim.hi_from if inside or span.lo >= dim.lo else dim.lo_from
            return Diagnostic(
                "TC220",
                f"{name}={span_text(span)} is not served: {name} is {dim.span()}",
                location=origin.location,
                notes=() if origin.location else (f"from: {origin}",),
                tries=("a size that the bundle serves", "a wider --dynamic"),
            )
    return None


def _narrowed(profile: Profile, derived: Derived) -> Derived:
    """The contract for the sizes of a profile alone: narrower ranges, and the guards that these do
    not hold already.

    Raises:
        ExportError: TC220, a guard holds at none of the sizes.
    """
    contract = derived.contract
    asked = Origin(f"the variant {profile.name}")
    dims: list[Dim] = []
    for dim in contract.dims:
        span = profile.spans.get(dim.name)
        if span is None:
            dims.append(dim)
            continue
        dims.append(
            msgspec.structs.replace(
                dim,
                lo=span.lo,
                hi=span.hi,
                step=span.step,
                lo_from=asked,
                hi_from=asked,
                step_from=None if span.step == 1 else asked,
            )
        )
    box = box_of(dims)
    guards = []
    for guard in contract.guards:
        verdict = holds(guard.expr, box)
        if verdict.share == 0:
            raise ExportError(
                Diagnostic(
                    "TC220",
                    f"the variant {profile.name} serves nothing: the bundle needs "
                    f"{render(guard.expr)}",
                    location=guard.origin.location,
                )
            )
        if verdict.status != "proved":
            guards.append(guard)
    narrower = msgspec.structs.replace(contract, dims=tuple(dims), guards=tuple(guards))
    return replace(derived, contract=narrower)


def _fixed(derived: Derived) -> dict[str, int]:
    """The symbols that are numbers where some dims have one size."""
    sizes = {dim.name: dim.lo for dim in derived.contract.dims if dim.lo == dim.hi}
    return {
        symbol: evaluate(expr, sizes)
        for symbol, expr in derived.symbols.items()
        if dims_of(expr) and dims_of(expr) <= sizes.keys()
    }


def _no_gain(profile: Profile) -> Diagnostic:
    return Diagnostic(
        "TC222",
        f"the variant {profile.name} was left out: no size is fixed in it, so that its code would be "
        "the general one",
        tries=("fix one of the dims: `--profile NAME:batch=1,seq=1..128`",),
        severity="note",
    )


def _points(contract: Contract) -> float:
    """How many combinations of sizes a contract admits, guards aside."""
    return math.prod(float(span.count()) for span in box_of(contract.dims).values())


def _overlaps(made: Sequence[Planned]) -> list[Diagnostic]:
    """Variants that share sizes without one of them being a part of the other."""
    notes = []
    for position, first in enumerate(made):
        for second in made[position + 1 :]:
            shared = intersection(box_of(first.contract.dims), box_of(second.contract.dims))
            if shared is None or shared == box_of(first.contract.dims):
                continue
            named = {name: shared[name] for name in (*first.spans, *second.spans)}
            notes.append(
                Diagnostic(
                    "TC223",
                    f"{first.name} and {second.name} both take {spans_text(named)}: "
                    f"{first.name} is tried first",
                    severity="note",
                )
            )
    return notes


def intersection(first: Box, second: Box) -> Box | None:
    """The sizes that two boxes share; None where there are none."""
    shared: dict[str, Span] = {}
    for name, a in first.items():
        b = second[name]
        step = math.lcm(a.step, b.step)
        lowest = max(a.lo, b.lo)
        highest = min(end for end in (a.hi, b.hi, lowest + step) if end is not None)
        lo = next((size for size in range(lowest, highest + 1) if size in a and size in b), None)
        if lo is None:
            return None
        ends = [end for end in (a.hi, b.hi) if end is not None]
        hi = min(ends) if ends else None
        shared[name] = Span(lo, None if hi is None else hi - (hi - lo) % step, step)
    return shared


def entry_of(function: Called, derived: Derived) -> manifest.Entry:
    """How a function is called, as the manifest has it."""
    return manifest.Entry(
        function.name,
        function.inputs,
        used_symbols(function.sizes, derived),
        function.weights,
        function.results,
        function.into,
        function.given,
    )


def on_gpu(planned: Plan, lowered: Lowered) -> tuple[manifest.Entry, ...]:
    """How the functions for a GPU are called, in the order of trial; none where there are none."""
    if lowered.gpu is None:
        return ()
    called = {each.name: each for each in lowered.gpu.functions}
    return tuple(entry_of(called[each.function], each.derived) for each in planned.variants)


def built(planned: Plan, lowered: Lowered) -> tuple[tuple[Planned, manifest.Variant], ...]:
    """The variants as the manifest has them, with what the kernels of each assert of their data.

    The last one's contract is the bundle's own, where there is one arm.
    """
    called = {each.name: each for each in lowered.functions}
    found = []
    for each in planned.variants:
        function = called[each.function]
        arm = planned.arms[each.arm]
        derived = with_asserted(each.derived, arm.traced, function.asserted)
        entry = entry_of(function, derived)
        general = len(planned.arms) == 1 and not each.sizes
        contract = None if general else derived.contract
        made = replace(each, derived=derived)
        memory = over_dims(function.memory, derived)
        found.append((made, manifest.Variant(each.name, entry, contract, memory)))
    return tuple(found)
