"""All examples of the user's must be calls that the bundle serves, values included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..artifacts.contract import (
    AxisSource,
    Contract,
    Fixed,
    Guard,
    IndexGuard,
    Origin,
    TensorInput,
    ValueSource,
)
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import ExprError, dims_of, evaluate, render
from .auto import example_leaves, shown
from .results import dtype_name
from .source import Source


def require_served(source: Source, contract: Contract, arms: Sequence[Contract] = ()) -> None:
    """All examples of the user's must be calls that the bundle serves.

    Args:
        contract: of the bundle.
        arms: the contracts of its variants, where the model is traced more than once: one of them must
            take the example, too.

    Raises:
        ExportError: TC212.
    """
    for number, (args, kwargs) in enumerate(source.more, 2):
        leaves = list(example_leaves(source, args, kwargs).items())
        found = [_unserved(each, leaves, number) for each in (contract, *arms)]
        if found[0] is not None:
            raise ExportError(found[0])
        if arms and None not in found[1:]:
            raise ExportError(each for each in found[1:] if each is not None)


def _unserved(
    contract: Contract, leaves: Sequence[tuple[str, Any]], number: int
) -> Diagnostic | None:
    """Why a contract does not take an example, or None where it does."""
    paths = [item.path for item in contract.inputs]
    if [path for path, _ in leaves] != paths:
        given = ", ".join(path for path, _ in leaves)
        return _not_served(f"the inputs are {given}", number, ", ".join(paths))
    values = [leaf for _, leaf in leaves]
    for item, leaf in zip(contract.inputs, values, strict=True):
        if isinstance(item, Fixed):
            if isinstance(leaf, torch.Tensor) or not item.admits(leaf):
                return _not_served(f"{item.path} is {shown(leaf)}", number, repr(item.value))
        elif not isinstance(leaf, torch.Tensor) or (dtype_name(leaf.dtype), leaf.dim()) != (
            item.dtype,
            len(item.shape),
        ):
            needs = f"{item.dtype} of {len(item.shape)} axes"
            return _not_served(f"{item.path} is {shown(leaf)}", number, needs)
    sizes: dict[str, int] = {}
    for dim in contract.dims:
        size = sizes[dim.name] = _read(dim.source, values)
        above = dim.hi is not None and size > dim.hi
        if size < dim.lo or above or (size - dim.lo) % dim.step:
            origin = dim.hi_from if above else dim.lo_from
            return _not_served(f"{dim.name} is {size}", number, dim.span(), origin)
    for item, leaf in zip(contract.inputs, values, strict=True):
        for axis, size in enumerate(item.shape if isinstance(item, TensorInput) else ()):
            if evaluate(size, sizes) != leaf.shape[axis]:
                what = f"{item.path} axis {axis} is {leaf.shape[axis]}"
                return _not_served(what, number, render(size))
    for guard in contract.guards:
        if not _met(guard, sizes):
            at = ", ".join(f"{name} is {sizes[name]}" for name in sorted(dims_of(guard.expr)))
            return _not_served(at, number, render(guard.expr), guard.origin)
    for bounded in contract.index_guards:
        lo, hi = evaluate(bounded.lo, sizes), evaluate(bounded.hi, sizes)
        read = _part(values[bounded.input], bounded, sizes)
        if read.numel() and not (lo <= int(read.min()) and int(read.max()) <= hi):
            what = f"{paths[bounded.input]} holds {int(read.min())} to {int(read.max())}"
            return _not_served(what, number, f"{lo} to {hi}", bounded.origin)
    return None


def _read(place: AxisSource | ValueSource, values: Sequence[Any]) -> int:
    leaf = values[place.input]
    if isinstance(place, ValueSource):
        return int(leaf)
    return int((leaf.shape[place.axis] - place.offset) // place.scale)


def _met(guard: Guard, sizes: Mapping[str, int]) -> bool:
    try:
        return bool(evaluate(guard.expr, sizes))
    except ExprError:  # a division by what is not positive
        return False


def _part(leaf: torch.Tensor, bounded: IndexGuard, sizes: Mapping[str, int]) -> torch.Tensor:
    """The values that an index guard looks at."""
    slices = [slice(None)] * leaf.dim()
    for part in bounded.parts:
        slices[part.axis] = slice(evaluate(part.start, sizes), evaluate(part.stop, sizes))
    return leaf[tuple(slices)]


def _not_served(what: str, number: int, serves: str, origin: Origin | None = None) -> Diagnostic:
    return Diagnostic(
        "TC212",
        f"{what} in example {number}, and the bundle serves {serves}",
        location=None if origin is None else origin.location,
        notes=() if origin is None else (f"from: {origin}",),
        tries=() if origin is not None else ("--dynamic auto, or the name of the axis",),
    )
