"""The fast check of a call: one Python function, generated from a contract's validated data.

It answers the values of the sizes that the compiled function takes, or None when the call is to be
refused; `explain` then says why. Its source holds names made here, numbers and operators: no text
of a file is ever in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..artifacts.contract import (
    AxisSource,
    Contract,
    ContractError,
    Dim,
    Fixed,
    IndexGuard,
    TensorInput,
)
from ..artifacts.expr import Expr, ExprError, floordiv, mod, to_python, walk
from .tensors import WITHOUT_NUMPY, Seen

Sizes = tuple[int, ...]
Check = Callable[[Sequence[Any]], "Sizes | None"]

MAX_NODES = 200_000


@dataclass(frozen=True)
class Checks:
    """``numpy`` takes leaves whose tensors are plain numpy arrays, ``seen`` those that went through
    `tensors.see`. Both may raise instead of answering None."""

    numpy: Check
    seen: Check


def compile_checks(contract: Contract, sizes: Sequence[Expr]) -> Checks:
    """Generate the checks of a contract.

    Args:
        contract: one that came through `contract.checked`.
        sizes: expressions over its dims; their values are the checks' answer.

    Raises:
        ContractError: more conditions than a reasonable file has.
    """
    _require_small([*_expressions(contract), *sizes])

    def answer(names: dict[str, str], array: str) -> list[str]:
        return [f"return ({_values(sizes, names)})"]

    return Checks(_compile(contract, answer, True), _compile(contract, answer, False))


@dataclass(frozen=True)
class Part:
    """A part of the calls that a contract admits: those that meet ``contract``, too, and what the
    check answers for them."""

    contract: Contract
    sizes: tuple[Expr, ...]


def compile_dispatch(contract: Contract, parts: Sequence[Part]) -> Checks:
    """Generate checks that also say which part a call belongs to: the first one that takes it.

    Args:
        contract: what every call must meet; one that came through `contract.checked`, as those of
            the parts, which have the same inputs.
        parts: in the order in which they are tried.

    Returns:
        Checks that answer the values of the part's sizes and, last, its number. What a part shares
        with ``contract`` is looked at once.

    Raises:
        ContractError: as `compile_checks`.
    """
    _require_small(_expressions(contract))
    for part in parts:
        _require_small([*_expressions(part.contract), *part.sizes])
    ways = _ways(contract, parts)
    return Checks(_compile(contract, ways, True), _compile(contract, ways, False))


def compile_torch_dispatch(contract: Contract, parts: Sequence[Part], tensor: type) -> Check:
    """The check of leaves whose tensors are plain torch tensors, as `compile_dispatch` makes it.

    Args:
        tensor: the class torch.Tensor, which is not imported here.
    """
    return _compile(contract, _ways(contract, parts), False, tensor)


# The lines that follow when all conditions are met: of the names of dims, and of what makes a tensor
# a numpy array.
Ways = Callable[[dict[str, str], str], list[str]]


def _ways(contract: Contract, parts: Sequence[Part]) -> Ways:
    """For each part, whether it takes the call."""

    def lines(names: dict[str, str], array: str) -> list[str]:
        shared = set(_conditions(contract, names, array))
        found: list[str] = []
        for number, part in enumerate(parts):
            answer = f"return ({_values((*part.sizes, number), names)})"
            needs = _conditions(part.contract, names, array)
            own = [each for each in needs if each not in shared]
            if not own:
                return [*found, answer]
            found += ["try:", f"    if {' and '.join(own)}: {answer}"]
            # A division that has no value: the part does not take the call, another may.
            found += ["except ExprError: pass"]
        return [*found, "return None"]

    return lines


def _require_small(exprs: Sequence[Expr]) -> None:
    if sum(sum(1 for _ in walk(expr)) for expr in exprs) > MAX_NODES:
        raise ContractError("the guards are too large")


def _names(contract: Contract) -> dict[str, str]:
    return {dim.name: f"n{number}" for number, dim in enumerate(contract.dims)}


def _values(sizes: Sequence[Expr], names: dict[str, str]) -> str:
    return "".join(to_python(size, names) + ", " for size in sizes)


def _expressions(contract: Contract) -> list[Expr]:
    found: list[Expr] = [guard.expr for guard in contract.guards]
    for guard in contract.index_guards:
        found += [guard.lo, guard.hi]
        found += [end for part in guard.parts for end in (part.start, part.stop)]
    for item in contract.inputs:
        if isinstance(item, TensorInput):
            found += item.shape
    return found


def axis_is_read(dim: Dim, index: int, axis: int, size: Expr) -> bool:
    """Whether ``dim`` is this very axis, so that there is nothing to compare."""
    return size == dim.name and dim.source == AxisSource(index, axis)


def _compile(
    contract: Contract, ways: Ways, for_numpy: bool, torch_tensor: type | None = None
) -> Check:
    scope: dict[str, Any] = {
        "__builtins__": {},
        "type": type,
        "min": min,
        "max": max,
        "floordiv": floordiv,
        "mod": mod,
        "within": _numpy_within,
        "ExprError": ExprError,
        "Tensor": torch_tensor or (np.ndarray if for_numpy else Seen),
        "int": int,
        "str": str,
    }
    lines: list[str] = []
    for index, item in enumerate(contract.inputs):
        if isinstance(item, Fixed):
            lines.append(_fixed_line(index, item, scope))
            continue
        another = _dtype(index, item, for_numpy, scope, torch_tensor)
        lines.append(f"if type(a{index}) is not Tensor or ({another}):")
        lines.append("    return None")
        if item.layout == "contiguous":
            asked = "flags.c_contiguous" if for_numpy else "tensor.is_contiguous()"
            asked = asked if torch_tensor is None else "is_contiguous()"
            lines.append(f"if not a{index}.{asked}: return None")
        rank = len(item.shape)
        axes = "".join(f"d{index}_{axis}, " for axis in range(rank)) or "()"
        lines.append(f"{axes} = a{index}.shape" if rank else f"if a{index}.shape: return None")
    names = _names(contract)
    for dim in contract.dims:
        lines.append(f"{names[dim.name]} = {_read(dim)}")
    array = ".numpy()" if torch_tensor is not None else "" if for_numpy else ".array()"
    for condition in _conditions(contract, names, array):
        lines.append(f"if not {condition}: return None")
    lines += ways(names, array)
    unpack = "".join(f"a{index}, " for index in range(len(contract.inputs)))
    body = [f"{unpack}= flat" if unpack else "if flat: return None", *lines]
    source = "def check(flat):\n" + "".join(f"    {line}\n" for line in body)
    exec(compile(source, "<contract>", "exec"), scope)
    check: Check = scope["check"]
    return check


def _conditions(contract: Contract, names: dict[str, str], array: str) -> list[str]:
    """Each a Python expression in parentheses, or a chain of comparisons."""
    return [
        *_ranges(contract, names),
        *_axes(contract, names),
        *(to_python(guard.expr, names) for guard in contract.guards),
        *(
            f"within({_part(guard, contract, names, array)}, "
            f"{to_python(guard.lo, names)}, {to_python(guard.hi, names)})"
            for guard in contract.index_guards
        ),
    ]


def _dtype(
    index: int, item: TensorInput, for_numpy: bool, scope: dict[str, Any], torch_tensor: type | None
) -> str:
    """The test that a dtype is another one. A dtype that numpy does not have always goes the way
    of `tensors.see`, which takes it by its bits."""
    if for_numpy and item.dtype in WITHOUT_NUMPY:
        return "True"
    if torch_tensor is not None:
        scope[f"t{index}"] = getattr(sys.modules[torch_tensor.__module__], item.dtype)
        return f"a{index}.dtype is not t{index}"
    try:
        scope[f"t{index}"] = np.dtype(item.dtype) if for_numpy else item.dtype
    except TypeError:
        raise ContractError(f"{item.path}: unknown dtype {item.dtype!r:.40}") from None
    # Numpy has one object for each dtype, nearly always: to compare two takes longer.
    return f"a{index}.dtype is not t{index} and a{index}.dtype != t{index}"


def _fixed_line(index: int, item: Fixed, scope: dict[str, Any]) -> str:
    if item.type in ("none", "bool"):
        return f"if a{index} is not {item.value!r}: return None"
    if item.type == "float":
        scope[f"f{index}"] = item.admits
        return f"if not f{index}(a{index}): return None"
    scope[f"f{index}"] = item.value
    return f"if type(a{index}) is not {item.type} or a{index} != f{index}: return None"


def _read(dim: Dim) -> str:
    source = dim.source
    if not isinstance(source, AxisSource):
        return f"a{source.input}.item()"
    size = f"d{source.input}_{source.axis}"
    if source.offset:
        size = f"({size} - {source.offset})"
    return f"{size} // {source.scale}" if source.scale != 1 else size


def _ranges(contract: Contract, names: dict[str, str]) -> list[str]:
    conditions = []
    for dim in contract.dims:
        name = names[dim.name]
        above = "" if dim.hi is None else f" <= {dim.hi}"
        conditions.append(f"{dim.lo} <= {name}{above}")
        if dim.step != 1:
            conditions.append(f"({name} - {dim.lo}) % {dim.step} == 0")
    return conditions


def _axes(contract: Contract, names: dict[str, str]) -> list[str]:
    dims = {dim.name: dim for dim in contract.dims}
    conditions = []
    for index, item in enumerate(contract.inputs):
        if not isinstance(item, TensorInput):
            continue
        for axis, size in enumerate(item.shape):
            if isinstance(size, str) and axis_is_read(dims[size], index, axis, size):
                continue
            conditions.append(f"d{index}_{axis} == {to_python(size, names)}")
    return conditions


def _part(guard: IndexGuard, contract: Contract, names: dict[str, str], to_array: str) -> str:
    """The values that an index guard is about: an input, or a part of it along some axes."""
    array = f"a{guard.input}{to_array}"
    if not guard.parts:
        return array
    along = {
        part.axis: f"{to_python(part.start, names)}:{to_python(part.stop, names)}"
        for part in guard.parts
    }
    rank = len(contract.inputs[guard.input].shape)  # type: ignore[union-attr]
    return f"{array}[{', '.join(along.get(axis, ':') for axis in range(rank))}]"


def _numpy_within(array: np.ndarray, lo: int, hi: int) -> bool:
    """Whether all values lie in ``lo..hi``. Without a lower end of its own, one pass is enough:
    seen as unsigned, negative values are the largest."""
    if not array.size:
        return True
    if lo == 0 and array.dtype.kind == "i":
        return bool(
            hi >= 0 and np.maximum.reduce(array.view(_UNSIGNED[array.itemsize]), None) <= hi
        )
    return bool(array.min() >= lo and array.max() <= hi)


_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
