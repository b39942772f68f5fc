"""What Dynamo makes for calls of the graph that it captures, where nobody will call it.

An export takes the graph alone. Dynamo also writes Python that checks its guards, in which it looks for
common parts of thousands of expressions, and copies every weight twice, for functions whose results it
may have to know (`torch.compiler.assume_constant_result`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import guards, utils
from torch._dynamo.variables import builder, tensor


class _AsWritten:
    """In the place of `guards.PyExprCSEPass`: every expression as it is, as for those that are too deep
    for it."""

    def count(self, exprs: Sequence[str]) -> None:
        pass

    def replace(self, expr: str) -> tuple[list[str], str]:
        return [], expr


@contextmanager
def without_prepared_calls() -> Iterator[None]:
    """While active, guards are written as they are, and weights copied where a value is asked for."""
    copied, asked = builder._clone_input, utils.get_real_value
    weights: dict[int, torch.nn.Parameter] = {}

    def copied_later(value: Any, fake_mode: Any) -> Any:
        if type(value) is not torch.nn.Parameter:
            return copied(value, fake_mode)
        weights[id(value)] = value
        return value

    def get_real_value(node: torch.fx.Node, tracer: Any) -> Any:
        known = tracer.real_value_cache
        if node in known and id(known[node]) in weights:
            known[node] = copied(known[node], None)
        return asked(node, tracer)

    replaced: list[tuple[Any, str, Any]] = [
        (guards, "PyExprCSEPass", _AsWritten),
        (builder, "_clone_input", copied_later),
        (utils, "get_real_value", get_real_value),
        (tensor, "get_real_value", get_real_value),
    ]
    originals = [getattr(module, name) for module, name, _ in replaced]
    for module, name, ours in replaced:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), original in zip(replaced, originals, strict=True):
            setattr(module, name, original)
