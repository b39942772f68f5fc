"""The source of a bundle exported again, as the bundle was, with variants to try."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..artifacts.contract import AxisSource
from ..artifacts.errors import Diagnostic, ExportError, UsageError
from ..artifacts.manifest import Manifest


@dataclass(frozen=True)
class Again:
    """A source, and what was typed about it at the export. A bundle says the rest: dims, targets and
    whether ranges were narrowed."""

    source: str
    inputs: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    train: bool = False


def export_with(
    again: Again, manifest: Manifest, sizes: Sequence[Mapping[str, int]], out: Path
) -> None:
    """Export the source of a bundle to ``out`` with a variant for each of ``sizes``, in a process of
    its own. All of them are kept, since they are to be measured.

    Raises:
        ExportError, UsageError: what that export says.
    """
    options = manifest.provenance.options
    targets = json.loads(options.get("targets", '["cpu"]'))
    targets = [each for each in targets if not each.strip().startswith("cuda")]
    if not targets:
        raise UsageError(
            Diagnostic(
                "TC008",
                "the bundle is for GPUs alone, and variants are tried on the CPU",
                tries=("a bundle that was exported with --target cpu, too",),
            )
        )
    command = [sys.executable, "-m", "tcexport", "export", again.source, "-q", "--format", "json"]
    command += ["-o", str(out), "--keep-variants"]
    if options.get("dynamic"):
        command += ["--dynamic", options["dynamic"]]
    for target in targets:
        command += ["--target", target]
    if options.get("narrow") == "true":
        command.append("--narrow")
    for option, values in (("--input", again.inputs), ("--axes", again.axes)):
        for value in values:
            command += [option, value]
    if again.train:
        command.append("--train")
    profiles = _profiles(manifest, sizes)
    command += ["--variant-limit", str(len(profiles))]
    for number, profile in enumerate(profiles):
        command += ["--profile", f"at_{number}:{profile}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise _failure(done)


def _profiles(manifest: Manifest, sizes: Sequence[Mapping[str, int]]) -> list[str]:
    """Each once. A dim that is the value of an input has none: variants are for sizes."""
    axes = [dim.name for dim in manifest.contract.dims if isinstance(dim.source, AxisSource)]
    texts = (",".join(f"{name}={each[name]}" for name in axes) for each in sizes)
    return [text for text in dict.fromkeys(texts) if text]


def _failure(done: subprocess.CompletedProcess[str]) -> ExportError | UsageError:
    """What the export said, as its own error."""
    try:
        told = json.loads(done.stdout)["error"]["diagnostics"]
        found = msgspec.convert(told, tuple[Diagnostic, ...])
    except (ValueError, KeyError, TypeError, msgspec.ValidationError):
        ended = f"ended with exit status {done.returncode}"
        last = tuple(done.stderr.strip().splitlines()[-6:])
        found = (Diagnostic("TC503", f"the export of the variants to try {ended}", notes=last),)
    return (UsageError if done.returncode == UsageError.exit_status else ExportError)(found)
