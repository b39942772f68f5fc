"""A tensor in the graph that is being lowered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..artifacts.recipes import Recipe

if TYPE_CHECKING:  # the exporter's own process needs no compiler
    from .symbols import Shape

# Everything else is refused.
DTYPES: dict[torch.dtype, str] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
TORCH_DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPES.items()}

# Complex numbers go through the graph as two tensors, of these dtypes.
PARTS: dict[torch.dtype, torch.dtype] = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}

# As in eager mode, an op on these computes in float32 and rounds its result.
HALVES = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True)
class Constant:
    """A parameter, buffer or constant: its name in the weights file and its value, a clone.

    ``sources`` are the names in the model's state of what it is made of (None: not known), and
    ``recipe`` says how (None: by what no recipe tells, or of no state at all).
    """

    name: str
    value: torch.Tensor
    recipe: Recipe | None = field(default=None, compare=False)
    sources: frozenset[str] | None = field(default=None, compare=False)

    def stepped(self, name: str, value: torch.Tensor, step: str, *more: Any) -> Constant:
        """The constant ``value`` that a step of `recipes` makes of this one."""
        recipe = None if self.recipe is None else (step, self.recipe, *more)
        return Constant(name, value, recipe, self.sources)


@dataclass(frozen=True)
class Codes:
    """A constant of int8 that stands for numbers of another dtype: times ``scale`` of each entry along
    the first axis (``[n]``), or of all (a number), or none."""

    constant: Constant
    scale: Any = None  # Tensor | float | None


@dataclass(frozen=True)
class Tensor:
    """A value of the Relax function that is being built.

    ``variable`` is None for a constant until a kernel asks for it, so that a weight which is only
    used in packed form is stored in packed form only. ``argument`` says that the memory may be the
    caller's (an input, a weight or a view of one), which must not be handed out as a result;
    ``source`` is the index of the user input whose very elements these are, if any, and ``state``
    the name of the state whose memory this may be. An image (NCHW) may be there with its channels
    last only: then ``last`` is the variable, of NHWC. Numbers that are ``codes`` have no variable
    until a kernel asks for one: a product reads the codes.
    """

    shape: Shape
    dtype: str
    variable: Any = field(default=None, compare=False)
    constant: Constant | None = field(default=None, compare=False)
    argument: bool = False
    source: int | None = None
    state: str | None = None
    last: Any = field(default=None, compare=False)
    codes: Codes | None = field(default=None, compare=False)

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Complex:
    """A complex value of the graph: its real and its imaginary part, of one shape."""

    re: Tensor
    im: Tensor

    @property
    def shape(self) -> Shape:
        return self.re.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> str:
        return {"float32": "complex64", "float64": "complex128"}[self.re.dtype]


@dataclass(frozen=True)
class Part:
    """Shape and dtype of one part of a complex result, where a tensor of the trace is expected."""

    shape: Any
    dtype: torch.dtype


def part_of(value: torch.Tensor) -> torch.Tensor | Part:
    """What the trace promises of a result, or of each part of a complex one."""
    return Part(value.shape, PARTS[value.dtype]) if value.dtype in PARTS else value
