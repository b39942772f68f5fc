"""The traced program against the model: the same answers from the same state, or no export.

What torch.export takes without a word and gets wrong shows here: the program is run op by op on the
example, and on other values of the same sizes, and held against the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..artifacts.errors import Diagnostic, ExportError
from ..lowering.draws import GENERATOR, generator_of
from .drawing import SEED
from .eager import quietly, run_eager
from .examples import axis_sizes, drawn, resized
from .rehearse import differing
from .state import preserved
from .trace import Trace


def require_faithful(
    module: torch.nn.Module, traced: Trace, suspects: Sequence[Diagnostic]
) -> None:
    """Compare a trace with the model on the example and on drawn values.

    Args:
        suspects: what is to blame where they differ, if anything was seen.

    Raises:
        ExportError: TC117, an output differs or the program fails.
    """
    example = [
        leaf if axes is None else resized(leaf, axes, traced.example_sizes, traced.sizes)
        for (_, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    others = [
        leaf if axes is None else drawn(leaf, axis_sizes(axes, traced.sizes), generator)
        for leaf, axes in zip(example, traced.shapes, strict=True)
    ]
    with preserved(module), quietly():
        found = _difference(module, traced, example, "on the example")
        if found is None and _answers(module, traced, others):
            found = _difference(module, traced, others, "on other values than the example's")
    if found is not None and suspects:
        raise ExportError(
            msgspec.structs.replace(each, notes=(*each.notes, found.message)) for each in suspects
        )
    if found is not None:
        raise ExportError(found)


def require_repeatable(first: Trace, second: Trace) -> None:
    """Two traces of one model, made under other seeds and at another time, must be one graph. (A
    strict trace has seen every line of the user's Python; the other kind may freeze what it ran.)

    Raises:
        ExportError: TC117.
    """
    one, two = first.program, second.program
    same = one.graph_module.code == two.graph_module.code
    same = same and one.constants.keys() == two.constants.keys()
    for name, constant in one.constants.items():
        if same and isinstance(constant, torch.Tensor):
            same = torch.equal(constant, two.constants[name])
    if not same:
        raise ExportError(
            Diagnostic(
                "TC117",
                "two traces of the model are not the same graph",
                notes=("a value that differs from run to run was frozen into each",),
            )
        )


def _answers(module: torch.nn.Module, traced: Trace, leaves: Sequence[Any]) -> bool:
    """Whether the model itself takes these values; where it does not, they show nothing."""
    try:
        run_eager(module, traced.bound, leaves)
    except Exception:
        return False
    return True


def _difference(
    module: torch.nn.Module, traced: Trace, leaves: Sequence[Any], where: str
) -> Diagnostic | None:
    want = run_eager(module, traced.bound, leaves)
    try:
        got = run_program(traced.program, leaves)
    except Exception as error:  # whatever the ops raise
        return Diagnostic(
            "TC117",
            f"the traced program fails {where}, and the model does not",
            notes=(f"{type(error).__name__}: {error}".splitlines()[0],),
        )
    for position, (a, b) in enumerate(zip(want, got, strict=True)):
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        if tensors and (a.dtype, a.shape) != (b.dtype, b.shape):
            told = f"output {position} is {_described(b)}, not {_described(a)}"
            return Diagnostic("TC117", f"the traced program is not the model {where}: {told}")
    difference = differing(want, got)
    if difference is None:
        return None
    position, size = difference
    return Diagnostic(
        "TC117",
        f"the traced program is not the model {where}: output {position} differs by {size:.3g}",
    )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def run_program(program: torch.export.ExportedProgram, leaves: Sequence[Any]) -> list[Any]:
    """The flat outputs of a functional program on the leaves of a call."""
    signature = program.graph_signature
    rest = iter(leaves)
    inputs = []
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            leaf = next(rest)
            inputs.append(leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
        elif spec.target == GENERATOR:
            inputs.append(generator_of(SEED))
        elif spec.target in program.state_dict:
            inputs.append(program.state_dict[spec.target])
        else:
            inputs.append(program.constants[spec.target])
    with torch.no_grad():
        outputs = torch.fx.Interpreter(program.graph_module).run(*inputs)
    return [
        value
        for value, spec in zip(outputs, signature.output_specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]
