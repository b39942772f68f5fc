"""Why a call is refused: the walk over a contract that names argument, axis, guard and origin.

Slow, and independent of the generated check on purpose: the tests hold one against the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ..artifacts.contract import (
    PLAIN_TYPES,
    AxisSource,
    Contract,
    Dim,
    Fixed,
    Guard,
    IndexGuard,
    Origin,
    TensorInput,
)
from ..artifacts.errors import Diagnostic, GuardError
from ..artifacts.expr import Expr, ExprError, dims_of, evaluate, render, walk
from .tensors import CPU, NotATensor, Seen, device_name, see

Axes = tuple[int, ...]


def look(contract: Contract, flat: Sequence[Any], device: tuple[int, int] = CPU) -> list[Any]:
    """The leaves with every tensor seen (`tensors.see`): all on the CPU, or all on ``device``.

    Raises:
        GuardError: TC303, not a tensor; TC308, a fixed value differs; TC310, another device. The
            first leaf that does not fit is named.
    """
    seen: list[Any] = []
    first: tuple[int, int] | None = None
    for item, value in zip(contract.inputs, flat, strict=True):
        if isinstance(item, Fixed):
            _check_fixed(contract, item, value)
            seen.append(value)
            continue
        try:
            tensor = see(value, device)
        except NotATensor as error:
            _refuse(
                contract,
                "TC303",
                item.path,
                got=str(error),
                needs=f"a tensor of {_described(item)}",
                tries=(error.attempt,) if error.attempt else (),
            )
        if tensor.device not in (CPU, device):
            _refuse(
                contract, "TC310", item.path, got=device_name(tensor.device),
                needs="cpu" if device == CPU else f"{device_name(device)} or cpu",
                tries=(f"move the tensor to {'the CPU' if device == CPU else device_name(device)}",),
            )  # fmt: skip
        if first is None:
            first = tensor.device
        elif tensor.device != first:
            _refuse(
                contract, "TC310", item.path, got=device_name(tensor.device),
                needs=f"{device_name(first)}, where the tensors before it are",
                tries=(f"move all tensors to {device_name(device)}",),
            )  # fmt: skip
        seen.append(tensor)
    return seen


def explain(contract: Contract, leaves: Sequence[Any], sizes: Sequence[Expr] = ()) -> None:
    """Raise the GuardError of the first condition that a call does not meet.

    Args:
        leaves: what `look` answered.
        sizes: what the call needs the values of, beside the contract's own.

    Raises:
        GuardError: TC304 to TC309. Returns when the call meets the contract.
    """
    for item, leaf in zip(contract.inputs, leaves, strict=True):
        if isinstance(item, TensorInput):
            _check_tensor(contract, item, leaf)
    dims: dict[str, int] = {}
    for dim in contract.dims:
        dims[dim.name] = _read(contract, dim, leaves)
    for dim in contract.dims:
        _check_range(contract, dim, dims[dim.name], leaves)
    for item, leaf in zip(contract.inputs, leaves, strict=True):
        if isinstance(item, TensorInput):
            _check_axes(contract, item, leaf.shape, dims)
    for guard in contract.guards:
        if not _holds(guard.expr, dims):
            _guard_violated(contract, guard, dims, leaves)
    for index_guard in contract.index_guards:
        _check_index(contract, index_guard, leaves[index_guard.input], dims)
    for size in sizes:
        _check_value(contract, size, dims, leaves)


# --- single conditions ------------------------------------------------------------------------------


def _check_fixed(contract: Contract, item: Fixed, value: Any) -> None:
    if item.admits(value):
        return
    name = type(value).__name__
    if value is None:
        got = "None"
    else:
        got = f"{value!r:.80} ({name})" if type(value) in PLAIN_TYPES else f"a {name}"
    needs = "None" if item.type == "none" else f"{item.value!r} ({item.type})"
    _refuse(contract, "TC308", item.path, got=got, needs=needs, origin=Origin("fixed at export"))


def _check_tensor(contract: Contract, item: TensorInput, seen: Seen) -> None:
    if seen.dtype != item.dtype:
        _refuse(contract, "TC304", item.path, got=seen.dtype, needs=item.dtype)
    if len(seen.shape) != len(item.shape):
        _refuse(
            contract,
            "TC305",
            item.path,
            got=f"{_count(len(seen.shape))} {seen.shape}",
            needs=f"{_count(len(item.shape))} {_axes_of(item)}",
        )
    if item.layout == "contiguous" and not seen.tensor.is_contiguous():
        _refuse(
            contract,
            "TC312",
            item.path,
            got="a tensor that is not contiguous",
            needs="a contiguous one",
            origin=Origin(
                "the model asks for the layout of tensors, and the trace kept the answer"
            ),
            tries=("numpy.ascontiguousarray(x), or x.contiguous()",),
        )
    for axis, size in enumerate(item.shape):
        if isinstance(size, int) and seen.shape[axis] != size:
            _refuse(
                contract, "TC306", item.path, axis, got=str(seen.shape[axis]), needs=str(size),
                origin=Origin("this axis is fixed"),
            )  # fmt: skip


def _read(contract: Contract, dim: Dim, leaves: Sequence[Any]) -> int:
    seen: Seen = leaves[dim.source.input]
    if isinstance(dim.source, AxisSource):
        return (seen.shape[dim.source.axis] - dim.source.offset) // dim.source.scale
    if math.prod(seen.shape) != 1:
        path = contract.inputs[dim.source.input].path
        _refuse(contract, "TC306", path, got=f"shape {seen.shape}", needs="one element")
    return seen.item()


def _check_range(contract: Contract, dim: Dim, value: int, leaves: Sequence[Any]) -> None:
    if value < dim.lo:
        needs, origin = f"{dim.name} >= {dim.lo}", dim.lo_from
    elif dim.hi is not None and value > dim.hi:
        needs, origin = f"{dim.name} <= {dim.hi}", dim.hi_from
    elif (value - dim.lo) % dim.step:
        needs = f"{dim.name} in {dim.span()}"
        origin = dim.step_from or dim.lo_from
    else:
        return
    path, axis, got = _place(contract, dim, leaves)
    _refuse(
        contract, "TC301", path, axis, got=got, needs=needs, origin=origin,
        label=_label(contract, dim),
    )  # fmt: skip


def _check_axes(
    contract: Contract, item: TensorInput, shape: Axes, dims: Mapping[str, int]
) -> None:
    for axis, size in enumerate(item.shape):
        try:
            needed = evaluate(size, dims)
        except ExprError as error:
            _refuse(
                contract, "TC306", item.path, axis, got=str(shape[axis]),
                needs=f"{render(size)}, which has no value ({error})", label=render(size),
                guard=render(size),
            )  # fmt: skip
        if shape[axis] == needed:
            continue
        shown = f"{render(size)} = {needed}"
        if not isinstance(size, str):
            shown += f" ({_values(size, dims)})"
        else:
            dim = next(dim for dim in contract.dims if dim.name == size)
            shown += f", as {_where(contract, dim)}"
        _refuse(
            contract, "TC306", item.path, axis, got=str(shape[axis]), needs=shown,
            label=render(size), guard=render(size),
        )  # fmt: skip


def _guard_violated(
    contract: Contract, guard: Guard, dims: Mapping[str, int], leaves: Sequence[Any]
) -> NoReturn:
    """The guard is put down to the first dim in it: it is on the left in ``seq <= limit``."""
    by_name = {dim.name: dim for dim in contract.dims}
    named = [node for node in walk(guard.expr) if isinstance(node, str)]
    needs = render(guard.expr)
    if not named:
        _refuse(contract, "TC307", "the call", got="any", needs=needs, origin=guard.origin)
    dim = by_name[named[0]]
    path, axis, got = _place(contract, dim, leaves)
    notes = (f"with {_values(guard.expr, dims)}",) if len(set(named)) > 1 else ()
    _refuse(
        contract, "TC307", path, axis, got=got, needs=needs, origin=guard.origin, notes=notes,
        label=_label(contract, dim),
    )  # fmt: skip


def _check_index(
    contract: Contract, guard: IndexGuard, seen: Seen, dims: Mapping[str, int]
) -> None:
    path = contract.inputs[guard.input].path
    within_range = f"{render(guard.lo)} <= each value <= {render(guard.hi)}"
    try:
        lo, hi = evaluate(guard.lo, dims), evaluate(guard.hi, dims)
        ends = {
            part.axis: (evaluate(part.start, dims), evaluate(part.stop, dims))
            for part in guard.parts
        }
    except ExprError as error:
        needs = f"{render(guard.lo)} <= {path} <= {render(guard.hi)} ({error})"
        _refuse(
            contract, "TC309", path, got="sizes", needs=needs, origin=guard.origin,
            guard=within_range,
        )  # fmt: skip
    array = seen.array()
    first = [0] * array.ndim
    for axis, (start, stop) in ends.items():
        first[axis] = start
        array = array[(slice(None),) * axis + (slice(start, stop),)]
    outside = (array < lo) | (array > hi)
    if not outside.any():
        return
    within = tuple(int(place) for place in np.argwhere(outside)[0])
    at = tuple(place + start for place, start in zip(within, first, strict=True))
    got = f"{array[within].item()} at [{', '.join(map(str, at))}]" if at else f"{array.item()}"
    _refuse(
        contract, "TC309", path, got=got, needs=f"{lo} <= {path} <= {hi}", origin=guard.origin,
        guard=within_range,
    )  # fmt: skip


def _check_value(
    contract: Contract, size: Expr, dims: Mapping[str, int], leaves: Sequence[Any]
) -> None:
    try:
        evaluate(size, dims)
    except ExprError as error:
        by_name = {dim.name: dim for dim in contract.dims}
        dim = by_name[next(name for name in walk(size) if isinstance(name, str))]
        path, axis, got = _place(contract, dim, leaves)
        needs = f"a value of {render(size)} ({error})"
        _refuse(
            contract, "TC307", path, axis, got=got, needs=needs, label=_label(contract, dim),
            notes=(f"with {_values(size, dims)}",), guard=render(size),
        )  # fmt: skip


_CHECK = re.compile(r"tcexport check (\d+)")


def computed_violation(contract: Contract, message: str) -> GuardError | None:
    """The GuardError for what compiled code raised, if one of its checks of indices did."""
    match = _CHECK.search(message)
    if match is None or int(match[1]) >= len(contract.computed_guards):
        return None
    guard = contract.computed_guards[int(match[1])]
    lines: tuple[str, ...] = (f"from: {guard.origin}",)
    if contract.dims:
        lines = (*lines, f"the bundle serves: {serves(contract)}")
    if guard.assertion:
        told = f": {guard.what}" if guard.what else ""
        return GuardError(
            Diagnostic("TC311", f"{guard.origin.reason} does not hold{told}", notes=lines),
            got="false",
            needs=guard.what or "true",
            guard=f"assertion: {guard.what or guard.origin}",
        )
    size = "the size of what they index" if guard.size is None else render(guard.size)
    lowest = "0"
    if guard.wraps and guard.size is not None:
        lowest = f"-({size})" if isinstance(guard.size, tuple) else f"-{size}"
    needs = f"{lowest} <= index < {size}"
    return GuardError(
        Diagnostic("TC309", f"{guard.what}: one is out of range, needs {needs}", notes=lines),
        got="out of range",
        needs=needs,
        guard=f"{guard.what}: {needs}",
    )


def _holds(expr: Expr, dims: Mapping[str, int]) -> bool:
    try:
        return bool(evaluate(expr, dims))
    except ExprError:
        return False


# --- words ------------------------------------------------------------------------------------------


def _place(contract: Contract, dim: Dim, leaves: Sequence[Any]) -> tuple[str, int | None, str]:
    """Argument, axis and what came, of the place that a dim is read from."""
    path = contract.inputs[dim.source.input].path
    seen: Seen = leaves[dim.source.input]
    if isinstance(dim.source, AxisSource):
        return path, dim.source.axis, str(seen.shape[dim.source.axis])
    return path, None, str(seen.item())


def _label(contract: Contract, dim: Dim) -> str:
    """What an axis is called: the dim, or the expression that it is read through."""
    if not isinstance(dim.source, AxisSource):
        return dim.name
    item = contract.inputs[dim.source.input]
    return render(item.shape[dim.source.axis]) if isinstance(item, TensorInput) else dim.name


def _where(contract: Contract, dim: Dim) -> str:
    path = contract.inputs[dim.source.input].path
    return f"{path} axis {dim.source.axis}" if isinstance(dim.source, AxisSource) else path


def _values(expr: Expr, dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {dims[name]}" for name in sorted(dims_of(expr)))


def _count(rank: int) -> str:
    return "1 axis" if rank == 1 else f"{rank} axes"


def _axes_of(item: TensorInput) -> str:
    return f"({', '.join(render(size) for size in item.shape)})"


def _described(item: TensorInput) -> str:
    return f"{item.dtype} {_axes_of(item)}"


def conditions(contract: Contract) -> Iterator[str]:
    """Every range and guard with where it comes from, in the order of the checks."""
    for dim in contract.dims:
        where = _where(contract, dim)
        if dim.lo_from == dim.hi_from:
            yield f"{dim.name} in {dim.span()}, read from {where}  from: {dim.hi_from}"
        else:
            yield f"{dim.name} in {dim.span()}, read from {where}  from: {dim.lo_from}; {dim.hi_from}"
    for guard in contract.guards:
        yield f"{render(guard.expr)}  from: {guard.origin}"
    for index in contract.index_guards:
        path = contract.inputs[index.input].path
        yield f"{render(index.lo)} <= {path} <= {render(index.hi)}  from: {index.origin}"
    for computed in contract.computed_guards:
        yield f"in the code: {computed.what or 'an assertion'}  from: {computed.origin}"


def serves(contract: Contract) -> str:
    """The ranges of all dims: ``batch 1..16, seq 1..512``."""
    return ", ".join(f"{dim.name} {dim.span()}" for dim in contract.dims)


def _refuse(
    contract: Contract,
    code: str,
    path: str,
    axis: int | None = None,
    *,
    got: str,
    needs: str,
    origin: Origin | None = None,
    notes: tuple[str, ...] = (),
    tries: tuple[str, ...] = (),
    label: str = "",
    guard: str = "",
) -> NoReturn:
    """``guard`` says what is needed without the sizes of this call, where ``needs`` holds them."""
    place = path if axis is None else f"{path} axis {axis}"
    if label and label != path:
        place += f" ({label})"
    lines = list(notes)
    if origin is not None:
        lines.append(f"from: {origin}")
    if contract.dims:
        lines.append(f"the bundle serves: {serves(contract)}")
    raise GuardError(
        Diagnostic(code, f"{place}: got {got}, needs {needs}", notes=tuple(lines), tries=tries),
        argument=path,
        axis=axis,
        got=got,
        needs=needs,
        guard=f"{place}: {guard or needs}",
    ) from None
