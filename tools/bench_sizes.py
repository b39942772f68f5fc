"""The sizes at which a bundle is timed, and inputs of these sizes within its contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..artifacts.contract import AxisSource, Contract, Dim, TensorInput, ValueSource
from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import ExprError, evaluate, render
from ..artifacts.names import suggestions
from ..artifacts.weights import Weight

Sizes: TypeAlias = "dict[str, int]"

_OPEN_END = 4096  # how far a dim without an end is tried
_STEPS = 10
_MAX_BYTES = 256 << 20  # of all inputs of a default size
_SLOW = 0.1  # seconds of a call beyond which no larger default size is tried
_TOO_SLOW = 0.5
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


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


# --- inputs -----------------------------------------------------------------------------------------


def drawn_inputs(contract: Contract, sizes: Mapping[str, int], seed: int) -> dict[str, Weight]:
    """Random tensor inputs by their index in the contract.

    Floats are normally distributed; integers are 0 and 1, or lie within the index guards; an input
    whose value is a dim holds that dim's size.
    """
    generator = np.random.default_rng(seed)
    inputs: dict[str, Weight] = {}
    for index, item in enumerate(contract.inputs):
        if not isinstance(item, TensorInput):
            continue
        shape = tuple(evaluate(size, sizes) for size in item.shape)
        data = _drawn(item.dtype, shape, generator)
        _draw_indices(data, contract, index, sizes, generator)
        for dim in contract.dims:
            if isinstance(dim.source, ValueSource) and dim.source.input == index:
                data[...] = sizes[dim.name]
        inputs[f"{index}"] = Weight(data, item.dtype)
    return inputs


def _drawn(dtype: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        bits = generator.standard_normal(shape, np.float32).view(np.uint32)
        return np.asarray(bits >> 16).astype(np.uint16)
    if dtype in _BITS:  # 8 bits: 0 to 0x37 are numbers from 0 to 1
        return generator.integers(0, 0x38, shape, _BITS[dtype])
    if dtype.startswith("float"):
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    if dtype.startswith("complex"):
        pair = generator.standard_normal((2, *shape))
        return np.asarray(pair[0] + 1j * pair[1]).astype(dtype)
    return np.asarray(generator.integers(0, 2, shape)).astype(dtype)


def _draw_indices(
    data: np.ndarray,
    contract: Contract,
    index: int,
    sizes: Mapping[str, int],
    generator: np.random.Generator,
) -> None:
    """Draw the values of input ``index`` that index guards are about, within all of their bounds,
    into ``data``."""
    parts = []
    for guard in contract.index_guards:
        if guard.input != index:
            continue
        where: list[Any] = [slice(None)] * data.ndim
        for part in guard.parts:
            where[part.axis] = slice(evaluate(part.start, sizes), evaluate(part.stop, sizes))
        low, high = evaluate(guard.lo, sizes), evaluate(guard.hi, sizes)
        parts.append((data[(*where, ...)], low, high))
    for values, low, high in parts:
        if values.size:
            values[...] = generator.integers(low, high, values.shape, endpoint=True)
    for values, low, high in parts:  # where guards overlap, the last one drew for all
        np.clip(values, low, high, out=values)


def _bytes(contract: Contract, sizes: Mapping[str, int]) -> int:
    total = 0
    for item in contract.inputs:
        if isinstance(item, TensorInput):
            itemsize = np.dtype(_BITS.get(item.dtype, item.dtype)).itemsize
            total += itemsize * math.prod(evaluate(size, sizes) for size in item.shape)
    return total
