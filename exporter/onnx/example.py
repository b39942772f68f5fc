"""An example call for an ONNX file, which has none: of sizes at which its graph runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ...artifacts.errors import Diagnostic, Location, UsageError
from ...artifacts.expr import dims_of, evaluate
from ..axes import Axes, AxisName, parse_axis, solve
from ..breaks import eager_failure
from ..inputs import draw
from ..options import DimRequest, is_dim_name
from ..userfile import shown_path
from .graph import Graph
from .program import Translated, unreadable_at
from .registry import Unreadable

# What the axes after the first may be, one after the other; the first is small, for it is a batch.
_TRIALS = (
    (4, 6, 8, 10),
    (16, 24, 40, 56),
    (32, 64, 96, 128),
    (8, 8, 8, 8),
    (64, 64, 64, 64),
    (224,) * 4,
)
_BATCHES = (2, 3, 5, 7)
_MAX_ELEMENTS = 1 << 24


def named_axes(graph: Graph, parameters: Sequence[str], named: Axes, path: Path) -> Axes:
    """The names that a graph gives to the axes of its inputs, where ``named`` gives no others.

    Raises:
        UsageError: TC132, an axis has neither a size nor a name that can be one.
    """
    axes: dict[str, tuple[AxisName, ...]] = {}
    nameless: list[tuple[str, int, str]] = []
    for each, parameter in zip(graph.inputs, parameters, strict=True):
        if parameter in named:
            continue
        for axis, dim in enumerate(each.dims):
            if dim is None or (isinstance(dim, str) and not is_name(dim)):
                nameless.append((parameter, axis, dim or ""))
        axes[parameter] = tuple(dim if isinstance(dim, str) else None for dim in each.dims)
    if nameless:
        tries = []
        for parameter in dict.fromkeys(each for each, _, _ in nameless):
            dims = graph.inputs[list(parameters).index(parameter)].dims
            unnamed = {axis for name, axis, _ in nameless if name == parameter}
            tries.append(f"--axes {parameter}={','.join(_suggested(dims, unnamed))}")
        raise UsageError(
            Diagnostic(
                "TC132",
                f"{shown_path(path)} has axes without a name",
                notes=tuple(
                    f"{parameter} axis {axis}: {f'{dim!r} cannot name a dim' if dim else 'no name'}"
                    for parameter, axis, dim in nameless
                ),
                tries=tuple(tries),
            )
        )
    return axes


def is_name(text: str) -> bool:
    """Whether an axis can be called so: a dim, or an expression over dims."""
    try:
        return bool(dims_of(parse_axis(text)))
    except UsageError:
        return False


_USUAL = {
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}


def _suggested(dims: Sequence[int | str | None], unnamed: set[int]) -> Iterator[str]:
    usual = _USUAL.get(len(dims), ("batch", "seq"))
    for axis, dim in enumerate(dims):
        if axis not in unnamed:
            yield "_" if isinstance(dim, int) else str(dim)
        elif isinstance(dim, str) and is_dim_name(_cleaned(dim)):
            yield _cleaned(dim)
        else:
            yield usual[axis] if axis < len(usual) else f"n{axis}"


def _cleaned(dim: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in dim).strip("_")


def example_call(
    graph: Graph,
    translated: Translated,
    axes: Axes,
    given: Mapping[str, torch.Tensor],
    path: Path,
    dynamic: Mapping[str, DimRequest | None],
) -> tuple[torch.Tensor, ...]:
    """Tensors for all inputs: those given, and others that are drawn as ``--input`` draws them.

    Args:
        axes: the names of the axes of each input, as `named_axes` gives them.
        given: by parameter; their sizes hold for the dims of all inputs.
        dynamic: the ranges that the sizes that are tried are taken from.

    Raises:
        UsageError: TC004, the graph runs at none of the sizes that were tried.
        ExportError: TC130, a use of an operator that is not read.
    """
    known = _given_sizes(axes, given)
    first, others = _dims(graph, translated.parameters, axes, known)
    problem: tuple[str, Location | None] = ("", None)
    for trial in _TRIALS:
        sizes = dict(known)
        sizes |= {dim: _BATCHES[at % 4] for at, dim in enumerate(first)}
        sizes |= {dim: trial[at % len(trial)] + at // len(trial) for at, dim in enumerate(others)}
        sizes |= {dim: _within(sizes[dim], dynamic.get(dim)) for dim in (*first, *others)}
        leaves = _drawn(graph, translated.parameters, axes, given, sizes)
        if leaves is None:
            continue
        try:
            with torch.no_grad():
                translated.module(*(leaf.clone() for leaf in leaves))
            return leaves
        except Unreadable as error:
            raise unreadable_at(error, path) from None
        except Exception as error:  # whatever torch says of sizes that do not fit
            problem = eager_failure(error)
        if not first and not others:
            break
    missing = [
        f"--input '{parameter}={_asked(each.dtype, each.dims)}'"
        for each, parameter in zip(graph.inputs, translated.parameters, strict=True)
        if parameter not in given
    ]
    raise UsageError(
        Diagnostic(
            "TC004",
            f"{shown_path(path)} runs at none of the sizes that were tried",
            problem[1] and Location(shown_path(problem[1].file), problem[1].line, problem[1].text),
            notes=(problem[0],) if problem[0] else (),
            tries=(" ".join(missing) + "   (with sizes of your model)",) if missing else (),
        )
    )


def _within(size: int, span: DimRequest | None) -> int:
    """The nearest size of a range that is not above, or its first one."""
    if span is None:
        return size
    size = min(max(size, span.lo), size if span.hi is None else span.hi)
    return span.lo + (size - span.lo) // span.step * span.step


def _asked(dtype: torch.dtype, dims: Sequence[int | str | None]) -> str:
    sizes = ",".join(str(dim) if isinstance(dim, int) else f"{dim}=8" for dim in dims)
    bound = "" if dtype.is_floating_point or dtype == torch.bool else "<1000"
    return f"{str(dtype).removeprefix('torch.')}[{sizes}]{bound}"


def _bound(graph: Graph, name: str, dtype: torch.dtype) -> int:
    """Below what integers are drawn: the rows of the tables that they pick from, or 2."""
    meant = {name}
    rows = []
    for node in graph.nodes:
        if node.operator in ("Cast", "Identity") and node.inputs[0] in meant:
            meant.add(node.outputs[0])
        elif node.operator == "Gather" and node.inputs[1] in meant:
            table, axis = graph.constants.get(node.inputs[0]), node.attributes.get("axis", 0)
            if table is not None and isinstance(axis, int) and table.dim():
                rows.append(table.shape[axis])
    if not rows or dtype.is_floating_point or dtype == torch.bool:
        return 2
    return max(2, min(*rows, torch.iinfo(dtype).max))


def _given_sizes(axes: Axes, given: Mapping[str, torch.Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for parameter, tensor in given.items():
        names = axes.get(parameter, ())
        if len(names) != tensor.dim():
            continue  # said later, of all inputs at once
        for name, size in zip(names, tensor.shape, strict=True):
            expr = parse_axis(name) if isinstance(name, str) else 0
            for dim in dims_of(expr):
                found = solve(expr, dim, size, sizes)
                if found is not None:
                    sizes.setdefault(dim, found)
    return sizes


def _dims(
    graph: Graph, parameters: Sequence[str], axes: Axes, known: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """The dims without a size: those of first axes, and the others."""
    first: dict[str, None] = {}
    others: dict[str, None] = {}
    for each, parameter in zip(graph.inputs, parameters, strict=True):
        for axis, name in enumerate(axes.get(parameter, ())):
            for dim in sorted(dims_of(parse_axis(name))) if isinstance(name, str) else ():
                if dim not in known:
                    (first if axis == 0 and len(each.dims) > 1 else others)[dim] = None
    return list(first), [dim for dim in others if dim not in first]


def _drawn(
    graph: Graph,
    parameters: Sequence[str],
    axes: Axes,
    given: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
) -> tuple[torch.Tensor, ...] | None:
    """None where there would be too many elements, or where an axis has no size."""
    leaves = []
    for each, parameter in zip(graph.inputs, parameters, strict=True):
        if parameter in given:
            leaves.append(given[parameter])
            continue
        shape = []
        for name, dim in zip(axes[parameter], each.dims, strict=True):
            if isinstance(name, str):
                shape.append(int(evaluate(parse_axis(name), sizes)))
            elif isinstance(dim, int):
                shape.append(dim)
            elif isinstance(name, int):
                shape.append(name)
            else:
                return None
        elements = 1
        for size in shape:
            elements *= size
        if elements > _MAX_ELEMENTS:
            return None
        leaves.append(draw(parameter, each.dtype, shape, _bound(graph, each.name, each.dtype)))
    return tuple(leaves)
