"""What Python divides by while a model is traced.

Torch simplifies as it goes: of ``n*m // m`` it keeps ``n``, which is right for all ``m`` but 0, where
eager raises. So each division is looked at before it is simplified.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.sym_node import SymNode

from ..artifacts.errors import Location
from .lines import current_user_location

Divisors: TypeAlias = "dict[Any, Location | None]"  # sympy expressions, each with its first line

_DIVISIONS = ("int_floordiv", "int_truediv", "float_truediv", "mod", "python_mod", "pymod")


@contextmanager
def recording_divisors() -> Iterator[Divisors]:
    """While active, divisions of symbolic numbers by symbolic numbers are noted, where eager would
    make them, too."""
    found: Divisors = {}
    originals = {name: vars(SymNode)[name] for name in _DIVISIONS if name in vars(SymNode)}

    def noting(original: Any) -> Any:
        def divide(self: SymNode, other: SymNode) -> SymNode:
            divisor = other.expr
            if not divisor.is_number and divisor not in found and _eager_divides():
                found[divisor] = current_user_location()
            return original(self, other)

        return divide

    for name, original in originals.items():
        setattr(SymNode, name, noting(original))
    try:
        yield found
    finally:
        for name, original in originals.items():
            setattr(SymNode, name, original)


_TORCH = Path(torch.__file__).parent
# Python that runs in a trace alone: what computes the shapes of results.
_ONLY_TRACED = (
    "_decomp", "_inductor", "_meta_registrations.py", "_prims", "_prims_common", "_refs",
    "_subclasses", "fx/experimental/symbolic_shapes.py", "utils/_sympy",
)  # fmt: skip
_NUMBERS = (str(_TORCH / "__init__.py"), str(_TORCH / "fx/experimental/sym_node.py"), __file__)
_SHAPES = tuple(str(_TORCH / name) for name in _ONLY_TRACED)


def _eager_divides() -> bool:
    """Whether the Python that divides is the model's, or a library's that eager runs as well."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename in _NUMBERS:
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_SHAPES)
