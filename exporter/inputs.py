"""Example inputs without code: ``--input 'ids=int64[batch=4,seq=128]'``.

Values are drawn with a fixed seed for each input, so that equal commands give equal examples.
Integers are 0 or 1 unless a bound is given (``int64[4,128]<30000``): any table has two rows, and an
index outside of one would fail, or worse.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.names import suggestions
from .axes import AxisName, parse_axes, parse_axis
from .options import parse_plain

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}
MAX_ELEMENTS = 1 << 31

_TENSOR = re.compile(r"(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\](?:\s*<\s*(?P<bound>\d+))?")
_STEP = re.compile(r"\.(?P<key>[^\W\d]\w*)|\[(?P<index>\d+)\]")
_EXAMPLES = ("--input 'ids=int64[batch=4,seq=128]'", "--input k=3")


@dataclass(frozen=True)
class Given:
    """One ``--input``: the way to it (``("batch", "ids")``, ``("xs", 0)``), its value and, for a
    tensor, the names of its axes."""

    path: str
    steps: tuple[str | int, ...]
    value: Any
    axes: tuple[AxisName, ...] = ()


def parse_inputs(values: Sequence[str]) -> tuple[Given, ...]:
    """Read ``--input`` options and make their values.

    A tensor is ``dtype[dim,dim,…]`` with dims ``4``, ``batch=4`` or ``2*n=8``, and for integers a
    bound ``<30000``; a plain value is ``3``, ``0.5``, ``true``, ``none`` or ``'text'``.

    Raises:
        UsageError: TC008.
    """
    given = tuple(_parse_input(value) for value in values)
    paths = [each.path for each in given]
    for path in paths:
        if paths.count(path) > 1:
            raise _malformed(f"--input gives {path} twice")
    return given


def _parse_input(value: str) -> Given:
    path, equals, text = value.partition("=")
    path, text = path.strip(), text.strip()
    steps = _steps(path)
    if not equals or steps is None or not text:
        raise _malformed(f"cannot read --input {value!r}", "it is read as INPUT=VALUE")
    match = _TENSOR.fullmatch(text)
    if match is not None:
        tensor, axes = _tensor(path, match, value)
        return Given(path, steps, tensor, axes)
    if "[" in text and text[0] not in "'\"":
        raise _malformed(
            f"cannot read --input {value!r}",
            "a tensor is read as dtype[dim,dim,…]; a dim is 4, batch=4 or 2*n=8",
        )
    return Given(path, steps, parse_plain(path, text))


def _steps(path: str) -> tuple[str | int, ...] | None:
    head = re.match(r"[^\W\d]\w*", path)
    if head is None:
        return None
    steps: list[str | int] = [head[0]]
    position = head.end()
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return None
        steps.append(match["key"] if match["key"] is not None else int(match["index"]))
        position = match.end()
    return tuple(steps)


def _tensor(
    path: str, match: re.Match[str], value: str
) -> tuple[torch.Tensor, tuple[AxisName, ...]]:
    dtype = DTYPES.get(match["dtype"])
    if dtype is None:
        close = suggestions(match["dtype"], DTYPES)
        raise _malformed(
            f"--input {value!r}: no dtype {match['dtype']}",
            f"dtypes: {', '.join(DTYPES)}",
            *(f"--input '{value.replace(match['dtype'], name, 1)}'" for name in close[:1]),
        )
    names: list[AxisName] = []
    shape: list[int] = []
    for dim in match["dims"].split(",") if match["dims"].strip() else ():
        name, equals, size = dim.rpartition("=")
        if not size.strip().isdigit():
            raise _malformed(
                f"--input {value!r}: {dim.strip()!r} has no size",
                "a dim is a size (4) or a name with a size (batch=4)",
            )
        shape.append(int(size))
        names.append(_axis_name(name) if equals else None)
    elements = 1
    for size in shape:
        elements *= size
    if elements > MAX_ELEMENTS:
        raise _malformed(f"--input {value!r}: {elements} elements are too many for an example")
    bound = match["bound"]
    continuous = dtype.is_floating_point or dtype.is_complex
    if bound is not None and (continuous or dtype is torch.bool or int(bound) < 1):
        raise _malformed(
            f"--input {value!r}: a bound is for integers and is at least 1",
            "int64[4,128]<30000 draws from 0 to 29999",
        )
    return draw(path, dtype, shape, int(bound or 2)), tuple(names)


def _axis_name(name: str) -> AxisName:
    name = name.strip()
    parse_axis(name)
    return next(iter(parse_axes((f"x={name}",)).values()))[0]


def draw(path: str, dtype: torch.dtype, shape: list[int], bound: int = 2) -> torch.Tensor:
    """Values for the input ``path``, the same in every run; integers are below ``bound``."""
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if bound - 1 > torch.iinfo(dtype if dtype is not torch.bool else torch.uint8).max:
        raise _malformed(f"--input {path}: {dtype} cannot hold {bound - 1}")
    return torch.randint(bound, shape, generator=generator).to(dtype)


def merged(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str], given: Sequence[Given]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example with every ``--input`` put in its place.

    A whole parameter replaces that of the example; a path below one (``batch.ids``, ``xs[0]``)
    builds it from nothing: dicts for keys, tuples for indices.

    Args:
        names: the positional parameters of ``forward`` in order, to find the ones in ``args``.

    Raises:
        UsageError: TC008, paths that contradict each other.
    """
    roots: dict[str, Any] = {}
    for each in given:
        if len(each.steps) == 1:
            roots[str(each.steps[0])] = each.value
    nested: dict[str, dict[tuple[str | int, ...], Any]] = {}
    for each in given:
        if len(each.steps) > 1:
            if each.steps[0] in roots:
                raise _malformed(f"--input gives {each.steps[0]} whole and {each.path} too")
            nested.setdefault(str(each.steps[0]), {})[each.steps[1:]] = each.value
    roots |= {root: _built(root, entries) for root, entries in nested.items()}
    by_position = list(args)
    by_name = dict(kwargs)
    for root, value in roots.items():
        if root in names and names.index(root) < len(by_position):
            by_position[names.index(root)] = value
        else:
            by_name[root] = value
    return tuple(by_position), by_name


def _built(path: str, entries: dict[tuple[str | int, ...], Any]) -> Any:
    if () in entries:
        if len(entries) > 1:
            raise _malformed(f"--input gives {path} whole and parts of it too")
        return entries[()]
    heads = list(dict.fromkeys(steps[0] for steps in entries))
    children = {
        head: {steps[1:]: value for steps, value in entries.items() if steps[0] == head}
        for head in heads
    }
    if all(isinstance(head, str) for head in heads):
        return {head: _built(f"{path}.{head}", below) for head, below in children.items()}
    if sorted(heads, key=str) != sorted(range(len(heads)), key=str):
        raise _malformed(f"--input: the parts of {path} are not {path}[0], {path}[1], …")
    return tuple(_built(f"{path}[{index}]", children[index]) for index in range(len(heads)))


def _malformed(message: str, note: str = "", *tries: str) -> UsageError:
    return UsageError(
        Diagnostic("TC008", message, notes=(note,) if note else (), tries=tries or _EXAMPLES)
    )
