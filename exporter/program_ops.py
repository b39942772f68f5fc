"""The ops that a saved program names: torch can load it only where they are registered."""

from __future__ import annotations

import importlib
import re
import zipfile
from pathlib import Path

import torch

from ..artifacts.errors import Diagnostic, UsageError
from .userfile import shown_path

# What registers the ops of a namespace when it is imported: those of quantized models.
_REGISTERS = {
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
    "torchao": "torchao",
}
_TARGET = re.compile(rb'"torch\.ops\.(\w+)\.(\w+)')


def register_ops(path: Path) -> None:
    """Import what registers the ops that a saved program names, where it is known what does so.

    Raises:
        UsageError: TC001, a library that is not installed, or an op that nothing here registers.
    """
    named = _named(path)
    for namespace in sorted({namespace for namespace, _ in named} & _REGISTERS.keys()):
        module = _REGISTERS[namespace]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                Diagnostic(
                    "TC001",
                    f"{shown_path(path)} has ops of {namespace}, which cannot be imported: {error}",
                    tries=(f"pip install {module.partition('.')[0]}",),
                )
            ) from error
    unknown = sorted(f"{space}::{name}" for space, name in named if not _is_known(space, name))
    if unknown:
        raise UsageError(
            Diagnostic(
                "TC001",
                f"{shown_path(path)} has ops that nothing here registers: {', '.join(unknown)}",
                tries=(
                    "a model.py that imports what registers them, with "
                    f'model = torch.export.load("{path.name}").module()',
                ),
            )
        )


def _named(path: Path) -> set[tuple[str, str]]:
    """The ops of a program by namespace and name; none where the file is no archive of torch's."""
    found: set[tuple[str, str]] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if re.search(r"(^|/)models/[^/]+\.json$", member):
                    for space, name in _TARGET.findall(archive.read(member)):
                        found.add((space.decode(), name.decode()))
    except (OSError, zipfile.BadZipFile):
        return set()  # which torch says better
    return found


def _is_known(namespace: str, name: str) -> bool:
    if namespace == "higher_order":
        return True
    return hasattr(getattr(torch.ops, namespace), name)
