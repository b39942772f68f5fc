"""Sources that are not Python: saved torch.export programs, and the files that are refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, UsageError
from .userfile import shown_path

_REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    ".onnx": (
        "no converter from ONNX to PyTorch keeps every operator's numbers, so none is used",
        ("export the PyTorch model that the file was made from: tcexport model.py",),
    ),
    ".tcpkg": (
        "it is a finished bundle",
        ("tcexport inspect {file}", "tcexport run {file}"),
    ),
    **dict.fromkeys(
        (".pt", ".pth", ".ckpt", ".bin", ".safetensors"),
        (
            "it holds weights, not the model's code",
            (
                "a model.py that makes the model and loads the weights: "
                'model = MyNet(); model.load_state_dict(torch.load("{name}"))',
            ),
        ),
    ),
}


@dataclass(frozen=True)
class Program:
    """A saved program as a module; ``args`` and ``kwargs`` are its example, if it has one."""

    module: torch.nn.Module
    has_example: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sha256: str


def load_program(path: Path) -> Program:
    """Load a .pt2 file that ``torch.export.save`` wrote.

    Raises:
        UsageError: TC001, another kind of file, or one that torch cannot read.
    """
    shown = shown_path(path)
    if path.suffix != ".pt2":
        reason, tries = _REFUSED.get(
            path.suffix,
            ("a source is a .py file, file.py:ClassName or a saved .pt2 program", ()),
        )
        raise UsageError(
            Diagnostic(
                "TC001",
                f"{shown} cannot be exported: {reason}",
                tries=tuple(attempt.format(file=shown, name=path.name) for attempt in tries),
            )
        )
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises whatever its archive reader meets
        message = str(error).strip().splitlines() or [""]
        raise UsageError(
            Diagnostic(
                "TC001",
                f"{shown} is not a program that torch {torch.__version__} can load",
                notes=(f"{type(error).__name__}: {message[0]}",),
                tries=(f'torch.export.save(torch.export.export(model, args), "{path.name}")',),
            )
        ) from error
    module = program.module()
    for part in module.modules():
        part.training = False  # its eval() refuses, and the mode was decided when it was traced
    example = program.example_inputs
    args, kwargs = example if example is not None else ((), {})
    return Program(
        module=module,
        has_example=example is not None,
        args=tuple(args),
        kwargs=dict(kwargs),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
