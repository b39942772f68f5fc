"""Sources that are not Python: saved torch.export programs, and the files that are refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import render
from .program_ops import register_ops
from .trace import symbol_of
from .translate import Untranslatable, to_expr
from .userfile import shown_path

_REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
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
    """A saved program as a module; ``args`` and ``kwargs`` are its example, if it has one.

    ``shapes`` are those of its inputs, in order, with torch's symbols where an axis is dynamic; None
    for an input that is no tensor.
    """

    module: torch.nn.Module
    has_example: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sha256: str
    shapes: tuple[tuple[Any, ...] | None, ...]


def load_program(path: Path) -> Program:
    """Load a .pt2 file that ``torch.export.save`` wrote.

    Raises:
        UsageError: TC001, another kind of file, one that torch cannot read, or one whose ops are not
            there.
    """
    shown = shown_path(path)
    if path.suffix != ".pt2":
        reason, tries = _REFUSED.get(
            path.suffix,
            (
                "a source is a .py file, file.py:ClassName, a saved .pt2 program or an .onnx file",
                (),
            ),
        )
        raise UsageError(
            Diagnostic(
                "TC001",
                f"{shown} cannot be exported: {reason}",
                tries=tuple(attempt.format(file=shown, name=path.name) for attempt in tries),
            )
        )
    register_ops(path)
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
        shapes=_shapes(program),
    )


def _shapes(program: torch.export.ExportedProgram) -> tuple[tuple[Any, ...] | None, ...]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = [values.get(str(name)) for name in program.graph_signature.user_inputs]
    return tuple(
        tuple(symbol_of(size) for size in value.shape) if isinstance(value, torch.Tensor) else None
        for value in inputs
    )


def program_axes(
    shapes: Sequence[tuple[Any, ...] | None], leaves: Sequence[tuple[str, Any]]
) -> dict[str, tuple[str | None, ...]]:
    """Names for the axes that are dynamic in a saved program, which has lost those that it was made
    with: ``x_0`` for axis 0 of ``x``, and for every axis that is as long.

    Args:
        leaves: the example call, path and value; as many as ``shapes``, else nothing is named.
    """
    if len(shapes) != len(leaves):
        return {}
    names: dict[sympy.Symbol, str] = {}
    for (path, _), shape in zip(leaves, shapes, strict=True):
        for axis, size in enumerate(shape or ()):
            if isinstance(size, sympy.Symbol) and size not in names:
                base = re.sub(r"\W+", "_", path).strip("_")
                names[size] = f"{base}_{axis}"

    def name(size: Any) -> str | None:
        try:
            return render(to_expr(size, names)) if not size.is_number else None
        except Untranslatable:
            return None

    return {
        path: tuple(name(size) for size in shape)
        for (path, _), shape in zip(leaves, shapes, strict=True)
        if shape is not None and any(name(size) is not None for size in shape)
    }
