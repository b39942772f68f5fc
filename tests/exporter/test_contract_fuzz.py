"""No third outcome: a call gives eager's answer or a GuardError, and the contract says which.

Modules of all kinds of assumptions are exported together, a group at a time, and called with shapes
in and out of range, other dtypes, layouts, values, structures and libraries. Every call goes to eager,
to the bundle, and to the slow walk over the contract.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import tcexport
from tcexport.artifacts.contract import AxisSource
from tcexport.artifacts.expr import evaluate
from tcexport.exporter.axes import parse_axis
from tcexport.exporter.eager import same_numbers
from tcexport.exporter.export import check
from tcexport.exporter.options import dynamic_from_python
from tcexport.exporter.source import source_in_memory
from tcexport.runtime.explain import explain, look
from tcexport.runtime.structure import bind

from .contract_parts import MORE, PARTS, Part
from .data_parts import DATA_PARTS

GROUPS = [
    *(PARTS[group::6] for group in range(6)),
    *(MORE[group::3] for group in range(3)),
    *(DATA_PARTS[group::2] for group in range(2)),
]
QUICK = 40  # calls of each part
LONG = int(os.environ.get("TCEXPORT_FUZZ_CALLS", "400"))

# Refusals of calls that eager answers, by design: sizes out of the ranges that were asked for or that
# the trace covers (`spans` says which), and tensors of another kind than the example's.
STRICTER = {"TC301", "TC302", "TC303", "TC304", "TC305", "TC306", "TC308"}


class Together(nn.Module):
    """The parts, each with a tuple of arguments of its own."""

    def __init__(self, parts: list[Part]):
        super().__init__()
        self.parts = nn.ModuleList(part.module for part in parts)

    def forward(self, calls):
        return [part(*call) for part, call in zip(self.parts, calls, strict=True)]


def _renamed(axis: Any, number: int | str) -> Any:
    """The dims of a part, apart from those of the others."""
    if axis is None:
        return None
    return "".join(f"{each}{number}" if each.isalpha() else each for each in axis)


def dims_of_part(
    part: Part, prefix: str, number: int | str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Axes and ranges for an export; the arguments are below ``prefix``."""
    axes = {
        f"{prefix}[{place[0]}]{place[1:]}": tuple(_renamed(name, number) for name in names)
        for place, names in part.axes.items()
    }
    return axes, {f"{name}{number}": span for name, span in part.ranges.items()}


@pytest.fixture(scope="session")
def bundled(export_once: Callable[..., Path]) -> Callable[[int], tuple[list[Part], Any]]:
    """``bundled(group)``: the parts of a group and the loaded bundle of all of them."""

    def load(group: int) -> tuple[list[Part], Any]:
        parts = GROUPS[group]
        axes: dict[str, Any] = {}
        dynamic: dict[str, Any] = {}
        for number, part in enumerate(parts):
            more_axes, more_dims = dims_of_part(part, f"calls[{number}]", number)
            axes |= more_axes
            dynamic |= more_dims
        example = ([part.example for part in parts],)
        path = export_once(
            f"fuzz{group}", Together(parts), example, axes=axes, dynamic=dynamic, narrow=True
        )
        return parts, tcexport.load(path)

    return load


# --- calls ----------------------------------------------------------------------------------------


@st.composite
def calls(draw: st.DrawFn, part: Part) -> tuple[tuple[Any, ...], list[str]]:
    """The arguments of a part, and what was done to them: mostly one thing, or nothing."""
    done: list[str] = []
    sizes = {}
    for name, (lo, hi, *_) in part.ranges.items():
        sizes[name] = draw(
            st.one_of(st.integers(lo, hi), st.integers(lo, min(hi, lo + 4)), st.just(hi))
        )
        if draw(st.integers(0, 19)) == 0:
            sizes[name] = draw(st.sampled_from([hi + 1, hi + 2, 2 * hi]))
            done.append("size out of range")
    args = [
        _leafed(draw, part, f"{at}", value, sizes, done) for at, value in enumerate(part.example)
    ]
    if draw(st.integers(0, 11)) == 0:
        args = _restructured(draw, args, done)
    return tuple(args), done


def _leafed(
    draw: st.DrawFn, part: Part, path: str, value: Any, sizes: dict[str, int], done: list[str]
) -> Any:
    """An example value with every tensor drawn anew."""
    if isinstance(value, dict):
        return {
            key: _leafed(draw, part, f"{path}.{key}", each, sizes, done)
            for key, each in value.items()
        }
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_leafed(draw, part, f"{path}.{field}", each, sizes, done)
                             for field, each in zip(value._fields, value, strict=True)))  # fmt: skip
    if isinstance(value, (list, tuple)):
        return type(value)(
            _leafed(draw, part, f"{path}[{at}]", each, sizes, done) for at, each in enumerate(value)
        )
    if not isinstance(value, torch.Tensor):
        if draw(st.integers(0, 19)):
            return value
        done.append("another plain value")
        return draw(
            st.sampled_from(
                [
                    None,
                    True,
                    False,
                    0,
                    1,
                    2,
                    2.0,
                    3,
                    "2",
                    5,
                    np.int64(2),
                    np.bool_(True),
                    np.zeros(2, np.float32),
                ]
            )
        )
    names = part.axes.get(path, (None,) * value.dim())
    shape = []
    for axis, name in enumerate(names):
        size = value.shape[axis] if name is None else evaluate(parse_axis(name), sizes)
        if draw(st.integers(0, 29)) == 0:
            size = draw(st.sampled_from([0, 1, size + 1, max(size - 1, 0), 2 * size]))
            done.append("another size")
        shape.append(int(size))
    if draw(st.integers(0, 39)) == 0:
        done.append("another rank")
        shape = shape[1:] if shape and draw(st.booleans()) else [1, *shape]
    array = _values(draw, part, path, value.dtype, shape, done)
    return _presented(draw, array, done)


def _values(
    draw: st.DrawFn, part: Part, path: str, dtype: torch.dtype, shape: list[int], done: list[str]
) -> np.ndarray:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    name = str(dtype).removeprefix("torch.")
    if name == "bool":
        array = generator.random(shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    elif name.startswith(("int", "uint")):
        lo, hi = part.values.get(path, (-5, 5))
        array = generator.integers(lo, hi, shape, endpoint=True).astype(name)
        if array.size and draw(st.integers(0, 5)) == 0:
            done.append("a value off")
            info = np.iinfo(name)
            off = draw(
                st.sampled_from([lo - 1, hi + 1, -1, 2 * hi, info.max, info.min, 2**31, 2**40])
            )
            array.reshape(-1)[draw(st.integers(0, array.size - 1))] = np.int64(off).astype(name)
    else:
        array = generator.standard_normal(shape).astype(name)
        if array.size and not part.finite and draw(st.integers(0, 5)) == 0:
            done.append("special values")
            special = draw(
                st.sampled_from(
                    [[np.nan], [np.inf], [-np.inf], [-0.0], [np.nan, np.inf, -0.0], [1e15], [1e-42]]
                )
            )
            flat = array.reshape(-1)
            for number in special:
                flat[draw(st.integers(0, array.size - 1))] = number
    array = np.asarray(array)
    if draw(st.integers(0, 29)) == 0:
        done.append("another dtype")
        other = draw(
            st.sampled_from(
                [
                    "float32",
                    "float64",
                    "float16",
                    "int64",
                    "int32",
                    "int8",
                    "uint8",
                    "bool",
                    "complex64",
                    ">f4",
                    ">i8",
                ]
            )
        )
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = array.astype(other)
    return array


class Tagged(np.ndarray):
    pass


def _presented(draw: st.DrawFn, array: np.ndarray, done: list[str]) -> Any:
    """The same values in another layout, or in another library."""
    layout = draw(st.integers(0, 15))
    if layout == 1 and array.ndim >= 2:
        array = np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
    elif layout == 2 and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    elif layout == 3 and array.ndim:
        array = np.ascontiguousarray(array[::-1])[::-1]
    elif layout == 4:
        memory = np.empty(array.nbytes + 67, np.uint8)
        view = memory[3 : 3 + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        array = view
    elif layout == 5:
        array = array.copy()
        array.flags.writeable = False
    elif layout == 6 and array.ndim and array.size:
        array = np.broadcast_to(array[:1], array.shape)
    elif layout == 7:
        array = array.view(Tagged)
    elif layout == 8:
        memory = np.empty(array.size + 1, array.dtype)[1:]
        view = memory.reshape(array.shape)
        view[...] = array
        array = view
    if layout < 8 or not array.dtype.isnative or draw(st.booleans()):
        return array
    tensor = torch.from_numpy(np.array(array))
    kind = draw(st.integers(0, 15))
    if kind == 1:
        done.append("a lazy or special tensor")
        return draw(
            st.sampled_from(
                [
                    tensor.to_sparse(),
                    torch.empty_like(tensor, device="meta"),
                    nn.Parameter(tensor, requires_grad=tensor.is_floating_point()),
                ]
            )
        )
    if kind == 2 and tensor.dim() >= 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == 3 and tensor.dtype == torch.float32:
        return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    return tensor


def _restructured(draw: st.DrawFn, args: list[Any], done: list[str]) -> list[Any]:
    done.append("another structure")
    at = draw(st.integers(0, len(args) - 1))
    change = draw(st.integers(0, 7))
    if change == 0:
        return args[:at] + args[at + 1 :]
    if change == 1:
        return [*args, args[at]]
    if change == 2:
        return [*args[:at], [args[at]], *args[at + 1 :]]
    if change == 3:
        return [*args[:at], None, *args[at + 1 :]]
    if change == 4 and isinstance(args[at], np.ndarray):
        return [*args[:at], args[at].tolist(), *args[at + 1 :]]
    if change == 5:
        return [args[at]] * len(args)  # one array for all of them
    if change == 6 and isinstance(args[at], (tuple, list)):
        return [*args[:at], list(args[at]), *args[at + 1 :]]
    if change == 7 and isinstance(args[at], dict):
        return [*args[:at], dict(reversed(args[at].items())), *args[at + 1 :]]
    return args[::-1]


# --- the three ways -------------------------------------------------------------------------------


class CannotTake(Exception):
    """Torch has no such tensor."""


def as_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if not value.dtype.isnative:
            raise CannotTake(str(value.dtype))
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            raise CannotTake("no values")
        return (
            value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        )
    return value


def same(got: Any, want: Any, *, summed: bool = False) -> bool:
    if isinstance(want, torch.Tensor):
        if isinstance(got, np.ndarray):
            got = torch.from_numpy(got)
        return (
            isinstance(got, torch.Tensor)
            and same_numbers(got, want)[0]
            and _same_specials(got, want, summed)
        )
    if isinstance(want, dict):
        return (
            isinstance(got, dict)
            and list(got) == list(want)
            and all(same(got[k], want[k], summed=summed) for k in want)
        )
    if isinstance(want, (tuple, list)):
        kinds = isinstance(got, tuple) == isinstance(want, tuple)
        fields = getattr(got, "_fields", None) == getattr(want, "_fields", None)
        alike = kinds and fields and len(got) == len(want)
        return alike and all(same(g, w, summed=summed) for g, w in zip(got, want, strict=True))
    return type(got) is type(want) and got == want


def _same_specials(got: torch.Tensor, want: torch.Tensor, summed: bool) -> bool:
    if not want.is_floating_point():
        return True
    infinite = torch.equal(torch.isnan(got), torch.isnan(want)) and torch.equal(
        torch.isposinf(got), torch.isposinf(want)
    )
    zeros = (want == 0) & (got == 0)
    signs = summed or torch.equal(torch.signbit(got[zeros]), torch.signbit(want[zeros]))
    return infinite and signs


def contract_refuses(model: Any, args: Any) -> tcexport.GuardError | None:
    """The slow walk, without running anything; what the code itself checks is not its business."""
    try:
        leaves = look(model.contract, bind(model.contract, args, {}))
        explain(model.contract, leaves)
    except tcexport.GuardError as error:
        return error
    return None


def taken(condition: Any, first: Any, second: Any, operands: Any) -> Any:
    """What torch.cond means; torch compiles it at every size."""
    return (first if condition else second)(*operands)


Outcome = tuple[str, str]


def judge(
    parts: list[Part], model: Any, number: int, call: tuple[Any, ...], done: list[str]
) -> Outcome:
    """One call with the arguments of one part changed: ``answered``, ``refused``, or what is wrong."""
    arguments = [part.example for part in parts]
    arguments[number] = call
    before = pytree.tree_map(
        lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, call
    )
    part = parts[number]
    failure = want = None
    try:
        with torch.no_grad(), warnings.catch_warnings(), patch.object(torch, "cond", taken):
            warnings.simplefilter("ignore")
            want = part.module(*pytree.tree_map(as_torch, call))
    except Exception as error:
        failure = error
    refusal = contract_refuses(model, (arguments,))
    try:
        got = model(arguments)
    except tcexport.GuardError as error:
        if error.code not in ("TC309", "TC311") and (refusal is None or refusal.code != error.code):
            return "disagrees", f"the call was refused by {error}, the contract says {refusal}"
        if failure is not None:
            return "refused", error.code
        return "over-refused", f"{error.code} {error.needs}"
    if refusal is not None:
        return "disagrees", f"answered, but the contract says {refusal}"
    if failure is not None:
        return "silent", f"{type(failure).__name__}: {failure}"
    if not same(got[number], want, summed=part.summed):
        return "wrong", f"got {got[number]}, eager gives {want}"
    for leaf in pytree.tree_leaves(got[number]):
        for argument in pytree.tree_leaves(call):
            if (
                isinstance(leaf, np.ndarray)
                and isinstance(argument, np.ndarray)
                and np.shares_memory(leaf, argument)
            ):
                return "aliased", "an output lies in the memory of an input"
    for old, new in zip(pytree.tree_leaves(before), pytree.tree_leaves(call), strict=True):
        if isinstance(new, np.ndarray) and new.tobytes() != old.tobytes():
            return "overwritten", "an input was changed"
    return "answered", ""


# --- the tests ------------------------------------------------------------------------------------


def fuzz(parts: list[Part], model: Any, count: int) -> None:
    for number, part in enumerate(parts):
        outcomes = fuzz_part(parts, model, number, count)
        assert outcomes["answered"] >= count // 8, (part.name, outcomes)
        assert outcomes["refused"], (part.name, outcomes)


def fuzz_part(parts: list[Part], model: Any, number: int, count: int) -> Counter[str]:
    """Draw calls of one part, with the examples of the others beside it."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(parts[number]))
    def call(drawn: Any) -> None:
        arguments, done = drawn
        outcome, why = judge(parts, model, number, arguments, done)
        outcomes[outcome] += 1
        by_design = outcome == "over-refused" and why[:5] in STRICTER
        assert outcome in ("answered", "refused") or by_design, (outcome, why, done)

    call()
    return outcomes


@pytest.mark.parametrize("group", range(1))
def test_a_call_is_eagers_or_refused(group: int, bundled: Callable[..., Any]) -> None:
    fuzz(*bundled(group), QUICK)


@pytest.mark.zoo
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_many_calls_are_eagers_or_refused(group: int, bundled: Callable[..., Any]) -> None:
    fuzz(*bundled(group), LONG)


@pytest.mark.zoo
@pytest.mark.parametrize(
    "part", [*PARTS, *MORE, *DATA_PARTS], ids=lambda part: part.name.replace(" ", "-")
)
def test_no_size_is_refused_without_a_reason(part: Part) -> None:
    """What is left of the ranges asked for is all that eager and the trace allow, size by size."""
    axes, dynamic = dims_of_part(part, "calls[0]", "")
    source = source_in_memory(Together([part]).eval(), ([part.example],), {}, axes)
    found = check(source, dynamic=dynamic_from_python(dynamic), narrow=True)
    spans = {dim.name: dim.span() for dim in found.dims if isinstance(dim.source, AxisSource)}
    asked = {name: f"{lo}..{hi}" for name, (lo, hi) in part.ranges.items()}
    assert spans == {**asked, **{name: span for name, (span, _) in part.spans.items()}}
