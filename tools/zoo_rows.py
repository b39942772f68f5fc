"""How a row of the zoo is written down: a model, its inputs, and the sizes that are promised.

::

    @row(batch=(1, 4), seq=(1, 40))
    def bert() -> Row:
        model = BertModel(BertConfig(...))
        return model, {"input_ids": ids("batch", "seq"), "attention_mask": mask("batch", "seq")}

Rows lie in tests/zoo, in files by family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..artifacts.contract import child_path
from ..artifacts.expr import Expr, evaluate
from ..exporter.axes import parse_axis

Axis: TypeAlias = "str | int"
Draw: TypeAlias = "Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]"
Row: TypeAlias = "tuple[torch.nn.Module, dict[str, Any]]"
Dim: TypeAlias = "tuple[int, int] | tuple[int, int, int]"


@dataclass(frozen=True)
class Input:
    """A tensor: the name of each axis, an expression over names (``"2*n"``) or a size, and values."""

    axes: tuple[Axis, ...]
    draw: Draw

    def at(self, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
        """Values for a call with these sizes."""
        parsed: list[Expr] = [
            parse_axis(axis) if isinstance(axis, str) else axis for axis in self.axes
        ]
        return self.draw(generator, tuple(evaluate(axis, sizes) for axis in parsed))


def ids(*axes: Axis, below: int = 99, dtype: torch.dtype = torch.int64) -> Input:
    """Integers from 0 to ``below - 1``."""
    return Input(axes, lambda generator, shape: _below(generator, shape, below).to(dtype))


def floats(*axes: Axis, dtype: torch.dtype = torch.float32) -> Input:
    """Normally distributed numbers, complex ones too."""
    return Input(
        axes, lambda generator, shape: torch.randn(shape, generator=generator, dtype=dtype)
    )


def uniform(*axes: Axis) -> Input:
    """Numbers between 0 and 1."""
    return Input(axes, lambda generator, shape: torch.rand(shape, generator=generator))


def mask(*axes: Axis, dtype: torch.dtype = torch.int64) -> Input:
    """Rows of ones that end in zeros; the first element of a row is 1."""

    def draw(generator: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
        lengths = 1 + _below(generator, (*shape[:-1], 1), max(shape[-1], 1))
        return (torch.arange(shape[-1]) < lengths).to(dtype)

    return Input(axes, draw)


def flags(*axes: Axis) -> Input:
    """Bools, as often True as False."""
    return Input(axes, lambda generator, shape: _below(generator, shape, 2).bool())


def _below(generator: torch.Generator, shape: tuple[int, ...], below: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=generator)


@dataclass(frozen=True)
class Model:
    """A row: ``make`` builds the model and says what its inputs are; ``dims`` are the promises."""

    name: str
    make: Callable[[], Row]
    dims: dict[str, Dim]


def row(*, slow: bool = False, **dims: Dim) -> Callable[[Callable[[], Row]], Model]:
    """Marks a function as a row; ``batch=(1, 4)`` promises a range, ``(8, 64, 8)`` one with steps.

    A ``slow`` row, or one so near to another that it would show little more, is left to `make zoo`; the
    word is read from the file, which is not run for it.
    """
    del slow
    return lambda make: Model(make.__name__, make, dims)


def draw(inputs: Any, sizes: Mapping[str, int], seed: int) -> Any:
    """The arguments of a call: every `Input` with values, what is none as it stands."""
    generator = torch.Generator().manual_seed(seed)
    return pytree.tree_map(
        lambda leaf: leaf.at(sizes, generator) if isinstance(leaf, Input) else leaf, inputs
    )


def axes_of(inputs: Any, path: str = "") -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """The path of every tensor with the names of its axes, as `tcexport.export` takes them."""
    if isinstance(inputs, Input):
        yield path, tuple(axis if isinstance(axis, str) else None for axis in inputs.axes)
    elif isinstance(inputs, dict):
        for key, value in inputs.items():
            yield from axes_of(value, child_path(path, key) if path else key)
    elif isinstance(inputs, (tuple, list)):
        for index, value in enumerate(inputs):
            yield from axes_of(value, child_path(path, index))


def example_sizes(dims: Mapping[str, Dim]) -> dict[str, int]:
    """Sizes for the example: in the first half of each range, and no two alike where that can be."""
    chosen: dict[str, int] = {}
    for name, dim in dims.items():
        lo, hi, step = (*dim, 1)[:3]
        start = lo + (hi - lo) // (3 * step) * step
        fitting = [size for size in range(start, hi + 1, step) if size not in chosen.values()]
        chosen[name] = next((size for size in fitting if size > 1), start)
    return chosen


def sizes_inside(dims: Mapping[str, Dim]) -> list[dict[str, int]]:
    """Where a row is compared with eager: both corners, one dim at its end each, and the middle."""
    low = {name: dim[0] for name, dim in dims.items()}
    high = {name: dim[1] for name, dim in dims.items()}
    middle = {}
    for name, dim in dims.items():
        lo, hi, step = (*dim, 1)[:3]
        middle[name] = lo + (hi - lo) // (2 * step) * step
    found = [low, high, middle, *({**low, name: high[name]} for name in dims)]
    return [each for number, each in enumerate(found) if each not in found[:number]]


def sizes_outside(dims: Mapping[str, Dim]) -> list[dict[str, int]]:
    """Calls that must be refused: below and above each range, and between its steps."""
    inside = example_sizes(dims)
    found = []
    for name, dim in dims.items():
        lo, hi, step = (*dim, 1)[:3]
        wrong = [hi + step, *([lo - 1] if lo > 0 else []), *([lo + 1] if step > 1 else [])]
        found += [{**inside, name: size} for size in wrong]
    return found


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """The module with weights of He's size (https://arxiv.org/abs/1502.01852), and norms that scale by
    1: with smaller ones, as some models begin training, the results of a small one vanish, and show
    nothing."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.kaiming_normal_(parameter)
        elif name.endswith(".weight"):
            torch.nn.init.ones_(parameter)
    return module


def settled(module: torch.nn.Module, inputs: Any, **sizes: int) -> torch.nn.Module:
    """As `lively`, with the running statistics of one batch where the module normalizes batches."""
    lively(module)
    norms = [each for each in module.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    module.train()
    with torch.no_grad():
        module(**draw(inputs, sizes, seed=0))
    return module.eval()
