"""``forward(self, **inputs)`` in a trace: where torch.export 2.13 derives the ranges of sizes, it
counts such keywords twice, once by themselves and once within ``inputs``, and fails."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import _trace


@contextlib.contextmanager
def named_by_callers() -> Iterator[None]:
    """While active, a trace takes keywords whose names the callers choose."""
    constraints = _trace._get_range_constraints
    combine = _trace._combine_args

    def constraints_of_each(
        module: torch.nn.Module, artifact: Any, args: Any, kwargs: Any, shapes: Any
    ) -> Any:
        names = _collecting(module)
        if isinstance(shapes, dict):
            inner = [shapes[name] for name in names if name in shapes]
            shapes = {name: shape for name, shape in shapes.items() if name not in names}
            for each in inner:
                shapes |= each

        def without_twins(*call: Any) -> dict[str, Any]:
            return {name: value for name, value in combine(*call).items() if name not in names}

        _trace._combine_args = without_twins
        try:
            return constraints(module, artifact, args, kwargs, shapes)
        finally:
            _trace._combine_args = combine

    _trace._get_range_constraints = constraints_of_each
    try:
        yield
    finally:
        _trace._get_range_constraints = constraints


def _collecting(module: torch.nn.Module) -> set[str]:
    """The name of the parameter that collects keywords, where there is one."""
    parameters = inspect.signature(module.forward).parameters
    return {
        name
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    }
