"""An ONNX graph as plain data, of tensors of torch; what reads a file gives it, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Attribute: TypeAlias = "int | float | str | list[Any] | torch.Tensor | Graph"


@dataclass(frozen=True)
class Input:
    """One input of a graph. ``dims``: of each axis its size, its name, or None where it has neither."""

    name: str
    dtype: torch.dtype
    dims: tuple[int | str | None, ...]


@dataclass(frozen=True)
class Node:
    """One use of an operator. Of ``inputs`` and ``outputs``, "" is one that is left out."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]

    def __str__(self) -> str:
        """How messages call it: by its name, or by what it gives."""
        return self.name or next((each for each in self.outputs if each), "without a name")


@dataclass(frozen=True)
class Graph:
    """``constants`` are initializers by name. Nodes are in an order in which they can run; those of
    a branch may use what its outer graph has given before it."""

    name: str
    opset: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    constants: dict[str, torch.Tensor]
    nodes: tuple[Node, ...]
