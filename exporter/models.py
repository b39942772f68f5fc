"""Which object of the user's file is the model. Never a guess: one, or an error that lists them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.names import suggestions
from .userfile import UserFile, call, shown_path


def find_model(file: UserFile, attribute: str | None) -> torch.nn.Module:
    """The model that the file means: the ``attribute`` named, else ``model``, else its one class.

    Raises:
        UsageError: TC002, none or several; TC003, making it failed.
    """
    if attribute is not None:
        if not hasattr(file.module, attribute):
            raise _no_such_attribute(file, attribute)
        return _made(file, attribute, getattr(file.module, attribute))
    if hasattr(file.module, "model"):
        return _made(file, "model", file.module.model)
    classes = _classes(file)
    ready = [kind for kind in classes if not _required_arguments(kind)]
    if len(ready) != 1:
        raise _no_model(file, classes)
    module = _made(file, ready[0].__name__, ready[0])
    # A class beside it that is no part of it may as well be the model that is meant.
    parts = {base for part in module.modules() for base in type(part).__mro__}
    if not parts.issuperset(classes):
        raise _no_model(file, classes)
    return module


def _classes(file: UserFile) -> list[type]:
    """The nn.Module classes that are defined in the file itself, in order."""
    found = {
        id(value): value
        for value in vars(file.module).values()
        if isinstance(value, type)
        and issubclass(value, torch.nn.Module)
        and value.__module__ == file.module.__name__
    }
    return list(found.values())


def _required_arguments(function: Any) -> list[str]:
    """The arguments without which a class or a factory cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C: calling it will tell
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]


def _made(file: UserFile, name: str, value: Any) -> torch.nn.Module:
    """The module that a name stands for: itself, or what the class or factory makes."""
    shown = f"{shown_path(file.path)}: {name}"
    if isinstance(value, torch.nn.Module):
        return value
    if not callable(value):
        raise _refused(f"{shown} is of type {type(value).__name__}, not a torch.nn.Module")
    if isinstance(value, type) and not issubclass(value, torch.nn.Module):
        raise _refused(f"{shown} is a class, but not one of torch.nn.Module's")
    required = _required_arguments(value)
    if required:
        raise _refused(
            f"{shown} cannot be made without arguments: it needs {', '.join(required)}",
            tries=(f"model = {_spelled(value, name)}({', '.join(f'{r}=…' for r in required)})",),
        )
    made = call(value, file.path, f"{shown}()")
    if not isinstance(made, torch.nn.Module):
        raise _refused(
            f"{shown}() gave a value of type {type(made).__name__}, not a torch.nn.Module"
        )
    return made


def _spelled(value: Any, name: str) -> str:
    return getattr(value, "__name__", name)


def _no_such_attribute(file: UserFile, attribute: str) -> UsageError:
    shown = shown_path(file.path)
    classes = [kind.__name__ for kind in _classes(file)]
    close = suggestions(attribute, vars(file.module))[:1] or classes[:1]
    return _refused(
        f"{shown} defines no {attribute}",
        notes=(f"nn.Module classes in it: {', '.join(classes) or 'none'}",),
        tries=tuple(f"tcexport {shown}:{name}" for name in close),
    )


def _no_model(file: UserFile, classes: list[type]) -> UsageError:
    shown = shown_path(file.path)
    if not classes:
        return _refused(
            f"{shown} defines no `model` and no torch.nn.Module class",
            tries=("model = MyNet() at module level",),
        )
    ready = [kind.__name__ for kind in classes if not _required_arguments(kind)]
    listed = ", ".join(
        f"{kind.__name__}({', '.join(_required_arguments(kind))})" for kind in classes
    )
    message = (
        f"{shown} defines no `model`, and {len(classes)} classes could be it"
        if len(classes) > 1
        else f"{shown} defines no `model`, and its class cannot be made without arguments"
    )
    first = classes[-1].__name__
    tries = (
        *(f"tcexport {shown}:{name}" for name in ready),
        f"model = {first}({', '.join(f'{r}=…' for r in _required_arguments(classes[-1]))}) "
        "at module level",
    )
    return _refused(message, notes=(f"classes: {listed}",), tries=tries)


def _refused(message: str, notes: tuple[str, ...] = (), tries: tuple[str, ...] = ()) -> UsageError:
    return UsageError(Diagnostic("TC002", message, notes=notes, tries=tries))
