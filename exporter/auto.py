"""`--dynamic auto`: the dims that several example inputs differ in are dynamic, the rest is fixed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.expr import dims_of
from .axes import AxisName, parse_axis
from .options import DimRequest
from .signature import bind
from .source import Source

AUTO = "auto"
Sizes = tuple[int, ...]  # of one axis, in each example


def with_auto(
    source: Source, dynamic: Mapping[str, DimRequest | None]
) -> tuple[Source, dict[str, DimRequest | None]]:
    """Read ``auto`` among the dynamic dims: what the examples of a source differ in.

    An axis that differs and has no name gets one; axes that have the same sizes in every example get
    the same one, so that a call in which they differ is refused. What is decided is among the notes.

    Returns:
        the source with all names, and the dims; as they were, where ``auto`` is not asked for.

    Raises:
        UsageError: TC004, there is one example, or none differs; TC005, the examples do not fit each
            other.
    """
    if dynamic.get(AUTO, ...) is not None:
        return source, dict(dynamic)
    given = {name: request for name, request in dynamic.items() if name != AUTO}
    examples = [
        example_leaves(source, *each) for each in ((source.args, source.kwargs), *source.more)
    ]
    if len(examples) < 2:
        raise UsageError(
            Diagnostic(
                "TC004",
                "--dynamic auto compares example inputs, and there is one",
                tries=("example_inputs = [(x,), (longer,)]", "--dynamic NAME"),
            )
        )
    sizes = _sizes(examples)
    named: dict[str, list[AxisName]] = {path: list(names) for path, names in source.axes.items()}
    names = {
        each: name
        for path, axes in named.items()
        for name, each in zip(axes, sizes[path], strict=True)
        if isinstance(name, str) and name.isidentifier() and len(set(each)) > 1
    }
    found: dict[str, tuple[Sizes, list[str]]] = {}
    for path, axes in named.items():
        for axis, each in enumerate(sizes[path]):
            if len(set(each)) == 1:
                continue
            name = axes[axis]
            if not isinstance(name, str):
                name = names.setdefault(each, f"{_identifier(path)}_{axis}")
                axes[axis] = name
            for dim in sorted(dims_of(parse_axis(name))):
                found.setdefault(dim, (each, []))[1].append(f"{path} axis {axis}")
    if not found:
        raise UsageError(
            Diagnostic(
                "TC004",
                f"--dynamic auto: no axis differs in the {len(examples)} examples",
                tries=("an example with another size", "no --dynamic"),
            )
        )
    fixed = sorted(_dims(source) - found.keys() - given.keys())
    chosen: dict[str, DimRequest | None] = {**dict.fromkeys(found), **given}
    notes = (*source.notes, _told(found, fixed, chosen))
    all_named = {path: tuple(each) for path, each in named.items()}
    return replace(source, axes=all_named, notes=notes), chosen


def _dims(source: Source) -> set[str]:
    return {
        dim
        for names in source.axes.values()
        for name in names
        if isinstance(name, str)
        for dim in dims_of(parse_axis(name))
    }


def _identifier(path: str) -> str:
    return re.sub(r"\W+", "_", path).strip("_")


def _told(
    found: Mapping[str, tuple[Sizes, list[str]]],
    fixed: Sequence[str],
    chosen: Mapping[str, DimRequest | None],
) -> Diagnostic:
    notes = [
        f"{name}: {', '.join(places)} ({', '.join(map(str, sorted(set(sizes))))} in the examples)"
        for name, (sizes, places) in found.items()
    ]
    notes += [f"{name}: the same in all examples, and fixed" for name in fixed]
    typed = ",".join(
        name if request is None else f"{name}={request}" for name, request in chosen.items()
    )
    return Diagnostic(
        "TC225",
        f"--dynamic auto: {', '.join(found)} {'is' if len(found) == 1 else 'are'} dynamic",
        notes=tuple(notes),
        tries=(f"--dynamic {typed}   to pin it, with names in `axes`",),
        severity="note",
    )


def example_leaves(source: Source, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The leaves of an example call by path: tensors and plain values."""
    return dict(bind(source.module, args, kwargs).leaves)


def _sizes(examples: Sequence[Mapping[str, Any]]) -> dict[str, list[Sizes]]:
    """The sizes of each axis of each tensor in all examples.

    Raises:
        UsageError: TC005.
    """
    first = examples[0]
    for number, other in enumerate(examples[1:], 2):
        if other.keys() != first.keys():
            names = ", ".join(sorted(other.keys() ^ first.keys()))
            raise _unfit(f"{names}: in one example only, the first or number {number}")
        for path, leaf in first.items():
            if _kind(other[path]) != _kind(leaf):
                raise _unfit(
                    f"{path} is {shown(leaf)} in the first example, {shown(other[path])} in "
                    f"number {number}: only sizes may differ"
                )
    return {
        path: list(zip(*(tuple(each[path].shape) for each in examples), strict=True))
        for path, leaf in first.items()
        if isinstance(leaf, torch.Tensor)
    }


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim()
    return type(leaf), leaf


def shown(leaf: Any) -> str:
    """A leaf as a message has it: ``float32[2, 5]``, or the value."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return repr(leaf)


def _unfit(message: str) -> UsageError:
    return UsageError(Diagnostic("TC005", message))
