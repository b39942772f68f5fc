"""What an export will build: the model traced, what it serves, and the variants that are planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..artifacts.contract import Contract
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.manifest import GENERAL
from ..lowering import compilers
from ..lowering.cuda.toolchain import find_toolchain
from ..lowering.own_ops import OwnKernel, own_kernels
from ..lowering.targets import GpuTarget, Target
from .arms import covered_arms, with_cover
from .bundle import platforms
from .empty import require_no_empty
from .options import DimRequest
from .profiles import Variants
from .served import require_served
from .source import Source
from .stages import Stages
from .traced import traced_and_derived
from .tvm_runtime import tvm_runtime
from .variants import Arm, Plan, plan


@dataclass(frozen=True)
class Outline:
    """What an export will build: the plan with the arms that were traced, the contract of all of them
    together where there are several, the dims as they were asked for, and the notes of the traces."""

    plan: Plan
    whole: Contract | None
    dynamic: Mapping[str, DimRequest | None]
    traced_notes: tuple[Diagnostic, ...]

    @property
    def notes(self) -> tuple[Diagnostic, ...]:
        """All that is to be said."""
        return self.traced_notes + self.plan.notes


def outlined(
    source: Source,
    dynamic: Mapping[str, DimRequest | None],
    targets: Sequence[Target],
    narrow: bool,
    variants: Variants,
    stages: Stages,
) -> Outline:
    """Trace a source, derive what it serves, and plan what is built for it. What the targets lack on
    this machine is said before that work.

    Raises:
        ExportError, UsageError: as `export`.
    """
    for platform in platforms(target.name for target in targets):
        tvm_runtime(platform)
    if any(isinstance(target, GpuTarget) for target in targets):
        find_toolchain()
    compilers.start()
    whole: Contract | None = None
    if variants.cover is None:
        traced, derived, notes = traced_and_derived(source, dynamic, narrow, stages)
        arms: tuple[Arm, ...] = (Arm(GENERAL, traced, derived),)
    else:
        dynamic = with_cover(dynamic, *variants.cover)
        covered, notes = covered_arms(source, dynamic, variants, narrow, stages)
        arms = covered.arms
        if len(arms) > 1:
            whole = covered.whole
    several = [arm.derived.contract for arm in arms] if len(arms) > 1 else []
    require_served(source, whole or arms[0].derived.contract, several)
    for target in targets:
        if isinstance(target, GpuTarget):
            for arm in arms:
                require_no_empty(arm.traced, arm.derived, target.label)
    planned = plan(arms, variants.profiles, variants.limit)
    return Outline(planned, whole, dynamic, notes)


def own_kernels_of(source: Source, arms: Sequence[Arm]) -> tuple[OwnKernel, ...]:
    """The kernels of the model's own ops.

    Raises:
        ExportError: TC224, there are some, and several arms; as `own_kernels`.
    """
    own = own_kernels(arms[0].traced.program, source.lowerings)
    if own and len(arms) > 1:
        raise ExportError(
            Diagnostic(
                "TC224",
                f"the arms of a branch cannot share {own[0].op}, an op of the model's own",
                tries=("an export without --cover",),
            )
        )
    return own
