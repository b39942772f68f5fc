"""The sizes at which a bundle is timed, and inputs of these sizes within its contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ..artifacts.contract import AxisSource, Contract, Dim, TensorInput, ValueSource
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import ExprError, evaluate, render
from ..artifacts.names import suggestions
from ..runtime.tensors import bits_of

Sizes: TypeAlias = "dict[str, int]"

_OPEN_END = 4096  # how far a dim without an end is tried
_STEPS = 10
_MAX_BYTES = 256 << 20  # of all inputs of a default size
_SLOW = 0.1  # seconds of a call beyond which no larger default size is tried
_TOO_SLOW = 0.5


def sizes_text(sizes: Mapping[str, int]) -> str:
    """``batch=1, seq=16``; a bundle without dims has one size, which is fixed."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed"


# --- sizes that are given ---------------------------------------------------------------------------


def parse_sizes(text: str, contract: Contract) -> Sizes:
    """Read ``batch=1,seq=16`` and hold it against the contract.

    Raises:
        UsageError: TC008, it cannot be read, leaves a dim open or lies outside of the contract;
            TC006, there is no such dim.
    """
    dims = {dim.name: dim for dim in contract.dims}
    given: Sizes = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not number.isdecimal() or name in given:
            raise _unreadable(f"cannot read --sizes {text}", contract)
        if name not in dims:
            raise UsageError(
                Diagnostic(
                    "TC006",
                    f"--sizes {text}: the bundle has no dim {name}",
                    notes=(f"dims: {', '.join(dims) or 'none'}",),
                    tries=tuple(f"--sizes {each}={number}" for each in suggestions(name, dims)[:1]),
                )
            )
        given[name] = int(number)
    sizes = {
        name: given.get(name, dim.lo)
        for name, dim in dims.items()
        if name in given or dim.lo == dim.hi
    }
    open_dims = [name for name in dims if name not in sizes]
    if open_dims:
        raise _unreadable(f"--sizes {text} leaves {', '.join(open_dims)} open", contract)
    reason = misfit(contract, sizes)
    if reason:
        raise _unreadable(f"--sizes {text}: the bundle serves {reason}", contract)
    return sizes


def _unreadable(message: str, contract: Contract) -> UsageError:
    smallest = ",".join(f"{dim.name}={dim.lo}" for dim in contract.dims)
    return UsageError(
        Diagnostic("TC008", message, tries=(f"--sizes {smallest}",) if smallest else ())
    )


def misfit(contract: Contract, sizes: Mapping[str, int]) -> str:
    """The range or guard that sizes do not meet, as text; "" when they lie in the contract."""
    for dim in contract.dims:
        size = sizes[dim.name]
        if size < dim.lo or (dim.hi is not None and size > dim.hi) or (size - dim.lo) % dim.step:
            return f"{dim.name}={dim.span()}"
    for guard in contract.guards:
        try:
            held = bool(evaluate(guard.expr, sizes))
        except ExprError:
            held = False  # a guard without a value refuses the call
        if not held:
            return render(guard.expr)
    return ""


# --- sizes by default -------------------------------------------------------------------------------


def sizes_of_shapes(contract: Contract, shapes: Sequence[Sequence[int] | None]) -> Sizes | None:
    """The sizes of inputs with these shapes (None where it is no tensor), if the contract serves
    them; a dim that is the value of an input takes its lowest."""
    sizes: Sizes = {}
    for dim in contract.dims:
        shape = shapes[dim.source.input]
        if isinstance(dim.source, AxisSource) and shape is not None:
            sizes[dim.name] = (shape[dim.source.axis] - dim.source.offset) // dim.source.scale
        else:
            sizes[dim.name] = dim.lo
    return None if misfit(contract, sizes) else sizes


def default_sizes(
    contract: Contract, example: Sizes | None, seconds_at: Callable[[Sizes], float]
) -> list[Sizes]:
    """The smallest size, the example's, a medium one and the largest that is affordable.

    Args:
        example: the sizes of the source's example, where there is one.
        seconds_at: how long one call takes; asked from the smallest size up, until it is slow.

    Raises:
        UsageError: TC008, the guards admit none of the sizes tried.
    """
    affordable: list[Sizes] = []
    for sizes in _ladder(contract):
        seconds = seconds_at(sizes)
        if not affordable or seconds < _TOO_SLOW:
            affordable.append(sizes)
        if seconds > _SLOW:
            break
    if not affordable:
        raise _unreadable("the bundle's guards admit none of the usual sizes", contract)
    chosen = [affordable[0], affordable[len(affordable) // 2], affordable[-1]]
    if example is not None:
        chosen.insert(1, example)
    return [sizes for number, sizes in enumerate(chosen) if sizes not in chosen[:number]]


def _ladder(contract: Contract) -> Iterator[Sizes]:
    """Sizes from the smallest to the largest, each dim by the same part of its range."""
    before = None
    for step in range(_STEPS + 1):
        sizes = {dim.name: _size_at(dim, step / _STEPS) for dim in contract.dims}
        if sizes == before or misfit(contract, sizes):
            continue
        before = sizes
        if step and _bytes(contract, sizes) > _MAX_BYTES:
            return
        yield sizes


def _size_at(dim: Dim, part: float) -> int:
    if isinstance(dim.source, ValueSource) or part == 0:
        return dim.lo
    low = max(dim.lo, 1)
    high = dim.hi if dim.hi is not None else max(low, _OPEN_END)
    size = round(low * (max(high, 1) / low) ** part)
    size = max(dim.lo, min(size, high))
    return size - (size - dim.lo) % dim.step


def size_to_trace(contract: Contract, sizes: Sequence[Sizes]) -> Sizes:
    """The one of some sizes to export other runtimes' programs at: torch fixes an axis whose
    example has size 0 or 1, so such sizes are raised where the contract allows it."""
    middle = sorted(sizes, key=lambda each: math.prod(each.values()))[len(sizes) // 2]
    raised = dict(middle)
    for dim in contract.dims:
        while raised[dim.name] < 2 and isinstance(dim.source, AxisSource):
            raised[dim.name] += dim.step
    return middle if misfit(contract, raised) else raised


def _bytes(contract: Contract, sizes: Mapping[str, int]) -> int:
    total = 0
    for item in contract.inputs:
        if isinstance(item, TensorInput):
            itemsize = bits_of(item.dtype).itemsize
            total += itemsize * math.prod(evaluate(size, sizes) for size in item.shape)
    return total
