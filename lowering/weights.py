"""The constants of a program, and the file that holds those which the kernels use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.export.graph_signature import InputKind

from ..artifacts.weights import Weight
from .states import states
from .tensor import Constant


def constants(program: torch.export.ExportedProgram) -> dict[str, Constant]:
    """The parameters, buffers and lifted constants by the names of their placeholders.

    Values are cloned, so that nothing later can change them; tensors that share their memory (tied
    weights) are one constant, under the name that comes first. State is none: it changes.
    """
    changing = {state.placeholder for state in states(program)}
    shared: dict[tuple[object, ...], Constant] = {}
    found: dict[str, Constant] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT or spec.arg.name in changing:
            continue
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.persistent is not False:
            value = program.state_dict[spec.target]
        else:
            value = program.constants[spec.target]
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"constant {spec.target} is a {type(value).__name__}")
        key: tuple[object, ...] = (
            value.untyped_storage().data_ptr(),
            value.storage_offset(),
            tuple(value.shape),
            value.stride(),
            value.dtype,
        )
        if value.numel() == 0:  # no memory, hence no address of its own
            key = (spec.target,)
        if key not in shared:
            copy = value.detach().clone(memory_format=torch.contiguous_format)
            shared[key] = Constant(spec.target, copy)
        found[spec.arg.name] = shared[key]
    return found


def weight_of(value: torch.Tensor) -> Weight:
    """A constant as a weights file holds it: of a dtype that numpy lacks, the bits."""
    dtype = str(value.dtype).removeprefix("torch.")
    bits = value.view(torch.uint16) if value.dtype is torch.bfloat16 else value
    return Weight(bits.numpy(), dtype)


class WeightStore:
    """The constants that kernels use, in the order of their first use, each once.

    One store serves all targets. `derive` computes a packed form once.
    """

    def __init__(self) -> None:
        self._derived: dict[str, torch.Tensor] = {}
        self.kept: dict[str, torch.Tensor] = {}

    def derive(
        self, name: str, value: torch.Tensor, make: Callable[[np.ndarray], np.ndarray]
    ) -> torch.Tensor:
        if name not in self._derived:
            made = np.ascontiguousarray(make(weight_of(value).data))
            self._derived[name] = torch.from_numpy(made).view(value.dtype)
        return self._derived[name]

    def keep(self, constant: Constant) -> None:
        value = self.kept.setdefault(constant.name, constant.value)
        if value is not constant.value and not torch.equal(value, constant.value):
            raise ValueError(f"two weights are called {constant.name}")
