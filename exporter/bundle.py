"""Putting a bundle together: the contract, the binaries, the weights and the runtime they need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifacts.container import write_bundle
from ..artifacts.contract import Contract
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import Expr
from ..artifacts.manifest import (
    FORMAT_VERSION,
    WEIGHTS_NAME,
    Entry,
    Manifest,
    Provenance,
    RuntimeLibrary,
    Target,
)
from ..lowering.targets import CPU_TARGETS

if TYPE_CHECKING:
    from ..lowering.lower import Lowered

ENTRY_FUNCTION = "main"
_PINNED = ("torch", "apache-tvm", "apache-tvm-ffi", "numpy", "sympy")


def assemble(
    path: Path,
    *,
    model: str,
    source: str,
    source_sha256: str,
    options: Mapping[str, str],
    contract: Contract,
    lowered: Lowered,
    sizes: tuple[Expr, ...],
) -> Manifest:
    """Write the bundle to ``path``, whole or not at all; equal arguments give equal bytes.

    Raises:
        UsageError: TC012, it cannot be written; TC011, TVM's runtime library is not installed.
    """
    system, machine = "linux", platform.machine()
    members: list[tuple[str, Path | bytes]] = [(WEIGHTS_NAME, lowered.weights_file)]
    targets = []
    for name, library in lowered.libraries.items():
        level = CPU_TARGETS[name].level
        member = f"targets/cpu-{name}/model.so"
        members.append((member, library))
        targets.append(Target(f"cpu:{name}", system, level.machine, name, lowered.libc, member))
    runtime_library, license_text = _tvm_runtime()
    folder = f"runtime/{system}-{machine}"
    members += [
        (f"{folder}/libtvm_runtime.so", runtime_library),
        (f"{folder}/LICENSE", license_text),
    ]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        model=model,
        contract=contract,
        entry=Entry(ENTRY_FUNCTION, lowered.inputs, sizes, lowered.weights, lowered.results),
        targets=tuple(targets),
        runtimes=(
            RuntimeLibrary(
                system,
                machine,
                _version("apache-tvm"),
                _version("apache-tvm-ffi"),
                f"{folder}/libtvm_runtime.so",
                f"{folder}/LICENSE",
            ),
        ),
        provenance=Provenance(
            tcexport=_version("tcexport"),
            source=source,
            source_sha256=source_sha256,
            options=dict(options),
            versions={name: _version(name) for name in _PINNED},
            linker=lowered.linker,
        ),
        members=(),
    )
    write_bundle(path, manifest, members)
    return manifest


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _tvm_runtime() -> tuple[Path, Path]:
    """TVM's runtime library and its licence, found without importing TVM."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise UsageError(
            Diagnostic(
                "TC011", "apache-tvm is not installed", tries=("pip install 'tcexport[export]'",)
            )
        )
    folder = Path(spec.origin).parent
    return folder / "lib" / "libtvm_runtime.so", folder / "LICENSE"
