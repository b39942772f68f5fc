"""Torch's symbols in the user's words: no message shows an ``s77`` or a ``u0``.

A symbol that is a dim, or made of dims, is called so. A number that the model computes is called by
the op that gives it (``item()``), and so is a size that an op finds out as it runs (``size of
nonzero``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, render
from ..lowering.locations import user_location
from .computed import bound_numbers, is_float
from .in_python import in_python
from .trace import Trace, symbol_of
from .translate import Untranslatable, to_expr

_SYMBOL = re.compile(r"\b(?:zuf|zf|s|u|z)\d+\b")
_OPS = {"_local_scalar_dense": "item"}


class Words:
    """What the symbols of one trace are called.

    Args:
        symbols: those that have a meaning over the user's dims.
        env: the shape environment, which knows which symbols stand for one another.
    """

    def __init__(
        self, traced: Trace, symbols: Mapping[sympy.Symbol, Expr], env: ShapeEnv | None = None
    ) -> None:
        self._exprs = {symbol.name: expr for symbol, expr in symbols.items()}
        self._lines: dict[str, Location | None] = {}
        self._names = {name: _whole(render(expr)) for name, expr in self._exprs.items()}
        self._name_computed(traced)
        self._name_axes(traced)
        for symbol, other in env.replacements.items() if env is not None else ():
            # A float that is asserted to be 4 is not called 4: what is said of it would be 4 == 4.
            if symbol.name not in self._names and not is_float(symbol):
                self._names[symbol.name] = _whole(self.of(other))
                self._lines[symbol.name] = self._lines.get(str(other))

    def _name_computed(self, traced: Trace) -> None:
        taken: dict[str, int] = {}
        for symbol, node in bound_numbers(traced.program):
            op = str(getattr(node.target, "_opname", node.target))
            op = _OPS.get(op, op.lstrip("_"))
            is_size = isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
            name = f"size of {op}" if is_size else f"{op}()"
            taken[name] = taken.get(name, 0) + 1
            if taken[name] > 1:
                name += f" {taken[name]}"
            self._names.setdefault(symbol.name, name)
            self._lines[symbol.name] = user_location(node.meta.get("stack_trace"))

    def _name_axes(self, traced: Trace) -> None:
        nodes = {node.name: node for node in traced.program.graph.nodes if node.op == "placeholder"}
        for name, (path, _) in zip(traced.placeholders, traced.bound.leaves, strict=True):
            value = nodes[name].meta.get("val")
            for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                for symbol in symbol_of(size).free_symbols:
                    self._names.setdefault(symbol.name, f"(a part of {path} axis {axis})")

    def of(self, expression: Any) -> str:
        """A condition or a number of torch's as the user would write it."""
        free = getattr(expression, "free_symbols", ())
        names = {each: self._exprs.get(each.name, self.called(each.name)) for each in free}
        try:
            return render(to_expr(expression, names))
        except Untranslatable:
            return self.said(in_python(expression))

    def said(self, text: str) -> str:
        """A text with every symbol in it replaced."""
        return _SYMBOL.sub(lambda match: self.called(match[0]), text)

    def why(self, error: Untranslatable) -> str:
        """What kept an expression from being written over the dims."""
        return error.template.format(self.of(error.expression))

    def lines(self, expression: Any) -> list[tuple[str, Location]]:
        """The numbers in an expression that the model computes, each with the user's line."""
        names = sorted(symbol.name for symbol in getattr(expression, "free_symbols", ()))
        found = [(self.called(name), self._lines.get(name)) for name in names]
        return [(name, line) for name, line in found if line is not None]

    def translated(self, diagnostic: Diagnostic) -> Diagnostic:
        """A diagnostic of the lowering, which knows the graph's symbols alone."""
        return msgspec.structs.replace(
            diagnostic,
            message=self.said(diagnostic.message),
            notes=tuple(self.said(note) for note in diagnostic.notes),
            tries=tuple(self.said(attempt) for attempt in diagnostic.tries),
        )

    def called(self, name: str) -> str:
        """What a symbol of this name is called."""
        return self._names.get(name) or (
            "(a size)" if name[0] == "s" else "(a number that the model computes)"
        )


@contextmanager
def in_words(words: Words) -> Iterator[None]:
    """Lets errors of the lowering name sizes as the user knows them."""
    try:
        yield
    except ExportError as error:
        raise ExportError(map(words.translated, error.diagnostics)) from error.__cause__


def _whole(text: str) -> str:
    return text if re.fullmatch(r"[\w. ]+(\(\))?( \d+)?", text) else f"({text})"
