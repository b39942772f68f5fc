"""What the user's own code can reach: the functions that a model may run, and the names they use.

Starting from the methods of the model's parts, functions, classes and modules that are the user's
are followed through globals and closures. Library code is the border: it is not looked into.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..lowering.locations import is_library


@dataclass
class Reached:
    """``functions`` by their code; ``globals``: (a module's namespace, its name, a name in it);
    ``cells``: closure cells by the name of their variable; ``classes``: the user's classes;
    ``stored``: attributes of modules, classes and functions that the code names and may assign,
    whosever they are: (owner's id, attribute): (owner, attribute, the owner's name); ``kinds``: the
    classes of the model's parts, which code gets to without their names (``type(self.layer)``)."""

    functions: dict[types.CodeType, types.FunctionType] = field(default_factory=dict)
    globals: dict[tuple[int, str], tuple[dict[str, Any], str]] = field(default_factory=dict)
    cells: dict[int, tuple[types.CellType, str]] = field(default_factory=dict)
    classes: dict[int, type] = field(default_factory=dict)
    stored: dict[tuple[int, str], tuple[Any, str, str]] = field(default_factory=dict)
    kinds: dict[type, None] = field(default_factory=dict)


def reach(module: torch.nn.Module) -> Reached:
    """Everything that a call of ``module`` may run or name, as far as it is the user's."""
    found = Reached()
    found.kinds.update((type(part), None) for part in module.modules())
    for part in module.modules():
        for base in type(part).__mro__:
            _visit(base, found)
        for value in vars(part).values():
            _visit(value, found)
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            for hook in hooks.values():
                _visit(hook, found)
    return found


def reach_from(value: Any, found: Reached) -> None:
    """Add what a call of a value, or of a method of it, may run or name."""
    _visit(value, found)
    if not isinstance(value, type) and is_users(type(value)):
        _visit_class(type(value), found)


def names_in(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in a function and in those defined inside of it."""
    names = set(code.co_names)
    for inner in codes_in(code):
        names.update(inner.co_names)
    return names


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of all functions defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


_BY_NAME = {"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars"}


def _stored_in(code: types.CodeType) -> set[str]:
    """The names of attributes that a function, or one defined inside of it, may assign or delete."""
    names: set[str] = set()
    for each in codes_in(code):
        names.update(
            step.argval
            for step in dis.get_instructions(each)
            if step.opname in ("STORE_ATTR", "DELETE_ATTR")
        )
        if _BY_NAME & set(each.co_names):
            names.update(text for text in each.co_consts if isinstance(text, str))
    return names


def _visit(value: Any, found: Reached) -> None:
    for function in _functions_of(value):
        _visit_function(function, found)
    if isinstance(value, type) and is_users(value):
        _visit_class(value, found)


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions behind a value that can be called."""
    seen = 0
    while value is not None and seen < 16:
        seen += 1
        if isinstance(value, (types.MethodType, staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            for each in (value.fget, value.fset):
                yield from _functions_of(each)
            return
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.FunctionType):
            yield value
            value = getattr(value, "__wrapped__", None)
        elif hasattr(type(value), "__wrapped__") or hasattr(value, "__wrapped__"):
            value = value.__wrapped__  # functools.lru_cache
        else:
            return


def _visit_function(function: types.FunctionType, found: Reached) -> None:
    code = function.__code__
    if code in found.functions or is_library(code.co_filename):
        return
    found.functions[code] = function
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        found.cells.setdefault(id(cell), (cell, name))
        try:
            _visit(cell.cell_contents, found)
        except ValueError:  # not filled yet
            continue
    names = names_in(code)
    namespace = function.__globals__
    stored = _stored_in(code)
    for name in sorted(names & namespace.keys()):
        _visit_name(namespace, name, names, found)
        _visit_owner(namespace[name], name, names, stored, found)
    for kind in found.kinds:
        _visit_owner(kind, kind.__name__, names, stored, found)


def _visit_owner(
    value: Any, path: str, names: set[str], stored: set[str], found: Reached, deep: int = 4
) -> None:
    """Note what code that names ``names`` may assign of a module, a class or a function, and of those
    that it gets to through modules (``torch.nn.Linear``)."""
    if not stored or not isinstance(value, (types.ModuleType, type, types.FunctionType)):
        return
    for name in stored:
        if not _is_known(value, name, found):
            found.stored.setdefault((id(value), name), (value, name, path))
    if isinstance(value, types.ModuleType) and deep:
        for name in sorted(names & vars(value).keys()):
            _visit_owner(vars(value)[name], f"{path}.{name}", names, stored, found, deep - 1)


def _is_known(owner: Any, name: str, found: Reached) -> bool:
    """Whether the state of an attribute is noted as the user's global, class or function."""
    if isinstance(owner, type):
        return is_users(owner)
    if isinstance(owner, types.FunctionType):
        return not is_library(owner.__code__.co_filename)
    return (id(vars(owner)), name) in found.globals


def _visit_name(namespace: dict[str, Any], name: str, names: set[str], found: Reached) -> None:
    key = (id(namespace), name)
    if key in found.globals:
        return
    value = namespace[name]
    if isinstance(value, types.ModuleType):
        if not is_library(getattr(value, "__file__", None) or "<built in>"):
            for inner in sorted(names & vars(value).keys()):
                _visit_name(vars(value), inner, names, found)
        return
    found.globals[key] = (namespace, name)
    reach_from(value, found)


def _visit_class(kind: type, found: Reached) -> None:
    for base in kind.__mro__:
        if id(base) in found.classes or not is_users(base):
            continue
        found.classes[id(base)] = base
        for member in list(vars(base).values()):
            for function in _functions_of(member):
                _visit_function(function, found)


def is_users(kind: type) -> bool:
    """Whether a class is defined in the user's code: told by its module's file."""
    home = sys.modules.get(kind.__module__)
    if home is None:
        functions = [each for each in vars(kind).values() if isinstance(each, types.FunctionType)]
        return any(not is_library(each.__code__.co_filename) for each in functions)
    return not is_library(getattr(home, "__file__", None) or "<built in>")
