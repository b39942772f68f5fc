"""Reads of `self.training` in the functions that ran: the arm of the exporting mode is kept."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Iterable, Iterator
from functools import cache

import torch

from ..artifacts.errors import Diagnostic, Location
from .families import FAMILIES
from .roles import nodes

_MODES = ("training", "requires_grad")


def mode_reads(executed: Iterable[types.CodeType], module: torch.nn.Module) -> list[Diagnostic]:
    """A note for each line that asks for the mode to decide something.

    Handing the flag on to a function of torch that is made for it (dropout, batch norm) decides
    nothing in the user's code, and is not reported.
    """
    found = {}
    for code in executed:
        for name, line in _reads(code):
            text = linecache.getline(code.co_filename, line).strip()
            what = f"{name}" if name != "training" else f"training ({module.training})"
            family = FAMILIES["mode"]
            found[code.co_filename, line, name] = Diagnostic(
                family.code,
                family.message.format(what=what),
                Location(code.co_filename, line, text),
                severity=family.severity,
            )
    return [found[key] for key in sorted(found)]


def _reads(code: types.CodeType) -> Iterator[tuple[str, int]]:
    if not set(_MODES) & set(code.co_names):
        return
    lines = {line for _, _, line in code.co_lines() if line is not None}
    tree = [
        node
        for node in nodes(code.co_filename)
        if min(lines) <= getattr(node, "lineno", 0) <= max(lines)
    ]
    if not tree:  # no source to look at
        yield from ((name, code.co_firstlineno) for name in _MODES if name in code.co_names)
    handed_on: set[int] = set()
    for node in tree:
        if isinstance(node, ast.Call) and _last_name(node.func) in _made_for_it():
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            handed_on.update(id(argument) for argument in arguments)
    for node in tree:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node.attr in _MODES and id(node) not in handed_on:
            yield node.attr, node.lineno


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def _made_for_it() -> frozenset[str]:
    """The functions of torch.nn.functional that take the flag."""
    return frozenset(
        name
        for name, function in vars(torch.nn.functional).items()
        if isinstance(function, types.FunctionType)
        and "training" in inspect.signature(function).parameters
    )
