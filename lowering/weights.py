"""The constants of a program, and the file that holds those which the kernels use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.export.graph_signature import InputKind

from ..artifacts.manifest import Parameters, SourceTensor
from ..artifacts.recipes import Steps
from ..artifacts.steps import made, stepped_through
from ..artifacts.weights import Weight, fingerprint, same_bits
from .states import states
from .tensor import Constant


def constants(
    program: torch.export.ExportedProgram, *, private: bool = False
) -> dict[str, Constant]:
    """The parameters, buffers and lifted constants by the names of their placeholders.

    Values are cloned, so that nothing later can change them, unless the program is ``private``: read
    from a file, so that nothing else holds its tensors. Tensors that share their memory (tied weights)
    are one constant, under the name that comes first. State is none: it changes.
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
        key = _memory_of(spec.target, value)
        if key not in shared:
            value = value.detach()
            if private:
                dense = value.contiguous()
            else:
                dense = value.clone(memory_format=torch.contiguous_format)
            own = spec.target in program.state_dict
            shared[key] = Constant(
                spec.target,
                dense,
                spec.target if own else None,
                frozenset({spec.target} if own else ()),
            )
        found[spec.arg.name] = shared[key]
    return found


def _memory_of(name: str, value: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are one in the model."""
    if value.numel() == 0:  # no memory, hence no address of its own
        return (name,)
    return (
        value.untyped_storage().data_ptr(),
        value.storage_offset(),
        tuple(value.shape),
        value.stride(),
        value.dtype,
    )


def shared_constants(programs: Sequence[Mapping[str, Constant]]) -> list[dict[str, Constant]]:
    """The constants of several programs of one model: what is equal is one constant, and what has
    the name of another value gets a name of its own."""
    known: dict[str, Constant] = {}
    answer = []
    for number, found in enumerate(programs):
        ours = {}
        for placeholder, constant in found.items():
            first = known.setdefault(constant.name, constant)
            if first is not constant and not _equal(first.value, constant.value):
                name = f"{constant.name}@{number}"
                first = known.setdefault(name, replace(constant, name=name))
            ours[placeholder] = first
        answer.append(ours)
    return answer


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit: a NaN is equal to itself, and 0.0 is not -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def weight_of(value: torch.Tensor) -> Weight:
    """A constant as a weights file holds it: of a dtype that numpy lacks, the bits."""
    dtype = str(value.dtype).removeprefix("torch.")
    bits = value.view(torch.uint16) if value.dtype is torch.bfloat16 else value
    return Weight(bits.numpy(), dtype)


class WeightStore:
    """The constants that kernels use, in the order of their first use, each once.

    One store serves all functions for all targets. `derive` computes a packed form once. ``frozen``
    names the parameters whose values went into code or into a constant that no recipe tells, with the
    reason.
    """

    def __init__(self) -> None:
        self._derived: dict[str, Constant] = {}
        self._computed: dict[str, Constant] = {}
        self.kept: dict[str, Constant] = {}
        self.frozen: dict[str, str] = {}
        self.recorded = True

    def derive(self, name: str, constant: Constant, steps: Steps) -> Constant:
        if name not in self._derived:
            weight, recipe = stepped_through(weight_of(constant.value), steps), constant.recipe
            for kind, *more in steps:
                recipe = None if recipe is None else (kind, recipe, *more)
            value = torch.from_numpy(np.ascontiguousarray(weight.data)).view(constant.value.dtype)
            self._derived[name] = Constant(name, value, recipe, constant.sources)
        return self._derived[name]

    def computed(self, constant: Constant, function: str) -> Constant:
        """What a function computes of constants at export. Where another function has another value
        of this name, or the same by chance, it gets a name of its own."""
        for name in (constant.name, f"{constant.name}@{function}"):
            known = self._computed.setdefault(name, replace(constant, name=name))
            if known.recipe == constant.recipe and _equal(known.value, constant.value):
                return known
        raise ValueError(f"{function} computes two values of {constant.name}")

    def keep(self, constant: Constant) -> None:
        self.recorded = self.recorded and constant.sources is not None
        kept = self.kept.setdefault(constant.name, constant)
        if kept.value is not constant.value and not _equal(kept.value, constant.value):
            raise ValueError(f"two weights are called {constant.name}")

    def freeze(self, constant: Constant, reason: str) -> None:
        """The value of a constant goes where no recipe follows."""
        if constant.sources is None:
            self.recorded = False
            return
        for name in constant.sources:
            self.frozen.setdefault(name, reason)


def record(
    program: torch.export.ExportedProgram,
    values: Mapping[str, Constant],
    store: WeightStore,
) -> Parameters | None:
    """The state of a program and the recipes of what ``store`` keeps; None where some is not known.

    Args:
        values: what `constants` gave.

    Raises:
        AssertionError: a recipe does not make the tensor that is stored.
    """
    if not store.recorded:
        return None
    names: dict[tuple[object, ...], list[str]] = {}
    for name, value in program.state_dict.items():
        names.setdefault(_memory_of(name, value), []).append(name)
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    used = {
        spec.target
        for spec in program.graph_signature.input_specs
        if spec.arg.name in read and spec.kind is not InputKind.USER_INPUT
    }
    first = {constant.name for constant in values.values()}
    changed = {state.name for state in states(program)}
    sources, bits = [], {}
    for shared in names.values():
        shared.sort(key=lambda name: name not in first)  # stable: recipes use the first of them
        value = program.state_dict[shared[0]].detach()
        reason = _frozen(value, used.intersection(shared), store.frozen.get(shared[0], ""))
        if changed.intersection(shared):
            reason = "calls change it: what it starts as is the bundle's"
        weight = bits[shared[0]] = weight_of(value.contiguous())
        sources.append(
            SourceTensor(
                name=shared[0],
                dtype=weight.dtype,
                shape=tuple(value.shape),
                aliases=tuple(shared[1:]),
                frozen=fingerprint(weight) if reason else "",
                reason=reason,
            )
        )
    recipes = {
        name: constant.recipe
        for name, constant in store.kept.items()
        if constant.recipe is not None
    }
    for name, recipe in recipes.items():
        if not same_bits(made(recipe, bits), weight_of(store.kept[name].value)):
            raise AssertionError(f"the recipe of {name} makes another tensor")
    return Parameters(tuple(sources), recipes)


def _frozen(value: torch.Tensor, used: Collection[str], folded: str) -> str:
    """Why a tensor of the state may not change; "" where it may."""
    if not used:
        return ""
    if folded:
        return folded
    if not value.dtype.is_floating_point:
        return "not a float: the contract and the code may rest on its values"
    return "one number, which stands in the code" if value.numel() == 1 else ""
