"""Putting a bundle together: the contract, the binaries, the weights and the runtime they need."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..artifacts.container import write_bundle
from ..artifacts.contract import Contract
from ..artifacts.expr import Expr
from ..artifacts.manifest import (
    FORMAT_VERSION,
    WEIGHTS_NAME,
    CudaCode,
    Entry,
    Manifest,
    Provenance,
    RuntimeLibrary,
    Target,
    Variant,
)
from ..artifacts.platforms import Platform
from ..lowering.cuda import toolchain
from ..lowering.draws import GENERATOR
from ..lowering.targets import GpuTarget, target_named
from .repository import Commit
from .tvm_runtime import TvmRuntime, library_name, tvm_runtime

if TYPE_CHECKING:
    from ..lowering.answer import OnGpu
    from ..lowering.lower import Lowered

ENTRY_FUNCTION = "main"
# What decides what a bundle holds.
_PINNED = ("torch", "apache-tvm", "apache-tvm-ffi", "numpy", "sympy", "z3-solver")


def assemble(
    path: Path,
    *,
    model: str,
    source: str,
    source_sha256: str,
    commit: Commit,
    options: Mapping[str, str],
    contract: Contract,
    lowered: Lowered,
    sizes: tuple[Expr, ...],
    memory: tuple[Expr, ...] | None,
    on_gpu: tuple[Entry, ...] = (),
    variants: tuple[Variant, ...] = (),
) -> Manifest:
    """Write the bundle to ``path``, whole or not at all; equal arguments give equal bytes.

    ``sizes`` are those that the function for the CPU takes; ``variants`` are in the order of trial, and
    ``on_gpu`` are their functions for a GPU, or the one that there is.

    Raises:
        UsageError: TC012, it cannot be written; TC011, TC506, as `tvm_runtime`.
    """
    members: list[tuple[str, Path | bytes]] = [(WEIGHTS_NAME, lowered.weights_file)]
    runtimes_for = {each.platform: each for each in _runtimes(lowered)}
    entry = Entry(
        ENTRY_FUNCTION,
        lowered.main.inputs,
        sizes,
        lowered.main.weights,
        lowered.main.results,
        lowered.main.into,
        lowered.main.given,
    )
    targets = []
    for name, library in lowered.libraries.items():
        target = target_named(name)
        level = target.level
        member = f"targets/{target.folder}/{target.library}"
        members.append((member, library))
        needs = max(lowered.libc[name], runtimes_for[level.platform].libc, key=_version_key)
        made = Target(target.label, *level.platform, level.name, needs, member)
        if isinstance(target, GpuTarget):
            assert lowered.gpu is not None
            made = msgspec.structs.replace(made, cuda=_cuda_code(target, lowered.gpu))
            if not variants and on_gpu != (entry,):
                made = msgspec.structs.replace(made, entry=on_gpu[0])
            elif variants and on_gpu != tuple(each.entry for each in variants):
                made = msgspec.structs.replace(made, entries=on_gpu)
        targets.append(made)
    runtimes = []
    for platform, runtime in runtimes_for.items():
        folder = f"runtime/{platform.system}-{platform.machine}"
        files = (f"{folder}/{library_name(platform)}", f"{folder}/LICENSE")
        members += zip(files, (runtime.library, runtime.license), strict=True)
        versions = _version("apache-tvm"), _version("apache-tvm-ffi")
        for_gpu = ""
        if lowered.gpu is not None and runtime.cuda is not None:
            for_gpu = f"{folder}/{library_name(platform, '_cuda')}"
            members.append((for_gpu, runtime.cuda))
        runtimes.append(RuntimeLibrary(*platform, *versions, *files, for_gpu))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        model=model,
        contract=contract,
        entry=variants[-1].entry if variants else entry,
        targets=tuple(targets),
        runtimes=tuple(runtimes),
        provenance=Provenance(
            tcexport=_version("tcexport"),
            source=source,
            source_sha256=source_sha256,
            options=dict(options),
            versions={name: _version(name) for name in _PINNED},
            linker=lowered.linker,
            commit=commit.id,
            commit_state=commit.state,
        ),
        members=(),
        states=lowered.states,
        parameters=lowered.parameters,
        memory=memory,
        variants=variants,
        generator=GENERATOR if any(row.name == GENERATOR for row in lowered.states) else "",
    )
    write_bundle(path, manifest, members, bill=True)
    return manifest


def _cuda_code(target: GpuTarget, built: OnGpu) -> CudaCode:
    return CudaCode(
        architectures=target.architectures,
        ptx=target.ptx,
        driver=toolchain.DRIVER if target.architectures else "",
        ptx_driver=toolchain.PTX_DRIVER if target.ptx else "",
        compiler=toolchain.VERSION,
        kernels=built.kernels,
    )


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _runtimes(lowered: Lowered) -> list[TvmRuntime]:
    return [tvm_runtime(platform) for platform in platforms(lowered.libraries)]


def _version_key(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def platforms(targets: Iterable[str]) -> list[Platform]:
    """The platforms that targets (by name) are for, each once, in order."""
    return sorted({target_named(name).level.platform for name in targets})
