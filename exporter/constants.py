"""Globals that the functions which ran read: a trace keeps their values as they were."""

from __future__ import annotations

import dis
import linecache
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, Location
from ..lowering.locations import is_library
from .families import FAMILIES, tries_for
from .reach import codes_in
from .state import value_text

# What a library's module says of the machine or of its own version.
_OF_THE_MACHINE = {
    *(("sys", name) for name in ("argv", "byteorder", "executable", "flags", "hexversion")),
    *(("sys", name) for name in ("implementation", "maxsize", "modules", "path", "platform")),
    *(("sys", name) for name in ("prefix", "version", "version_info")),
    *(("time", name) for name in ("altzone", "daylight", "timezone", "tzname")),
    ("os", "name"), ("os", "sep"), ("os", "linesep"), ("warnings", "filters"),
    ("torch", "__version__"), ("torch", "version"), ("torch", "backends"),
    ("numpy", "__version__"),
}  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Module)


def constant_reads(
    functions: Iterable[types.FunctionType], changed: Iterable[str]
) -> list[Diagnostic]:
    """A note for each line of the functions that reads a global, or an attribute of one.

    Args:
        changed: the paths of state that a call changes, which is said already.
    """
    known = tuple(changed)
    found: dict[tuple[str, int, str], Diagnostic] = {}
    for function in functions:
        for code in codes_in(function.__code__):
            for family, name, value, line in _reads(code, function.__globals__):
                if any(path == name or path.startswith((f"{name}.", f"{name}[")) for path in known):
                    continue
                what = name if family == "machine" else f"the global {name} ({value_text(value)})"
                kind = FAMILIES[family]
                text = linecache.getline(code.co_filename, line).strip()
                found[code.co_filename, line, name] = Diagnostic(
                    kind.code,
                    kind.message.format(what=what),
                    Location(code.co_filename, line, text),
                    tries=tries_for(kind, what),
                    severity=kind.severity,
                )
    return [found[key] for key in sorted(found)]


def _reads(code: types.CodeType, namespace: dict[str, Any]) -> Iterator[tuple[str, str, Any, int]]:
    """(family, name, value, line) of each read of data."""
    starts = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    path = ""
    value: Any = None
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL" and name in namespace:
            path, value = name, namespace[name]
        elif path and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and _has(value, name):
            if isinstance(value, types.ModuleType) and _is_of_the_machine(value, name):
                yield "machine", f"{value.__name__}.{name}", None, line
                path = ""
                continue
            path, value = f"{path}.{name}", getattr(value, name)
        elif instruction.opname not in ("PRECALL", "CACHE", "PUSH_NULL"):
            path = ""
        if path and _is_data(value):
            yield "constant", path, value, line
            path = ""


def _has(value: Any, name: str) -> bool:
    """Whether an attribute is data of the user's, which reading it does not run anything for."""
    if isinstance(value, types.ModuleType):
        mine = not is_library(getattr(value, "__file__", None) or "<built in>")
        return hasattr(value, name) and (mine or _is_of_the_machine(value, name))
    kind = value if isinstance(value, type) else type(value)
    home = sys.modules.get(kind.__module__)
    if is_library(getattr(home, "__file__", None) or "<built in>"):
        return False
    return name in getattr(value, "__dict__", {})


def _is_of_the_machine(value: Any, name: str) -> bool:
    return isinstance(value, types.ModuleType) and (value.__name__, name) in _OF_THE_MACHINE


def _is_data(value: Any) -> bool:
    if value is None or isinstance(value, _PLAIN) or type(value).__module__ == "numpy":
        return True
    if isinstance(value, dict):
        return all(_is_data(each) for each in value.values())
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_data, value))
