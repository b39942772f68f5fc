"""The Python state around a model: remembered, compared, and put back exactly.

State is whatever a call could change and a later call could see: attributes of the model's parts,
globals, closure variables and class attributes that the user's code names, everything inside of
them, and the random generators. Tensors that are written in place are the business of `written`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import functools
import logging
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .reach import is_users, reach, reach_from
from .slots import (
    MISSING,
    ORDER,
    Slot,
    item_path,
    of_attribute,
    of_attributes,
    of_cell,
    of_class,
    of_generators,
    of_names,
    of_object,
    of_sequence,
    of_set,
    of_special,
    remembered,
    same,
    slot_names,
)


@dataclass(frozen=True)
class Change:
    """What differs from the snapshot: ``path`` as ``self.n``, with the values as text."""

    path: str
    before: str
    after: str
    kind: str
    slot: Slot
    key: Any


class Snapshot:
    """The state at one moment. Holds on to every object in it.

    Attributes:
        functions: the user's functions that a call may run, by their code.
        tensors: those in the state, by where they are.
        held: all of them: items of a dict may have one path.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._saved: list[tuple[Slot, dict[Any, Any]]] = []
        walk = _Walk(module)
        for slot in walk.slots():
            self._saved.append((slot, slot.read()))
        self.functions = walk.reached.functions
        self.tensors = dict(walk.tensors.values())
        self.held = [tensor for _, tensor in walk.tensors.values()]
        self._caches = [(each, each.cache_info().currsize) for each in walk.caches]

    def remembers(self) -> bool:
        """Whether a `functools.lru_cache` holds more than then: what it gives back next is what it
        gave this call, with all that was done to it."""
        return any(each.cache_info().currsize > size for each, size in self._caches)

    def changes(self) -> list[Change]:
        """The differences between now and then, by slot."""
        found = []
        for slot, saved in self._saved:
            now = slot.read()
            for key in {**saved, **now}:
                before, after = saved.get(key, MISSING), now.get(key, MISSING)
                if key is ORDER and saved.keys() != now.keys():
                    continue
                if not same(before, after):
                    found.append(
                        Change(
                            _joined(slot, key),
                            value_text(before),
                            value_text(after),
                            slot.kind,
                            slot,
                            key,
                        )
                    )
        return found

    def restore(self) -> None:
        """Put everything back, in place: the same objects, in the same order."""
        for slot, saved in self._saved:
            now = slot.read()
            if list(now) != list(saved) or any(
                now[key] != saved[key] if key is ORDER else now[key] is not saved[key]
                for key in saved
            ):
                slot.write(saved)


@contextmanager
def preserved(module: torch.nn.Module) -> Iterator[Snapshot]:
    """Whatever happens inside, the state is afterwards what it was before."""
    snapshot = Snapshot(module)
    try:
        yield snapshot
    finally:
        snapshot.restore()


# --- finding the slots ----------------------------------------------------------------------------

_OPAQUE = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    type,
    str,
    bytes,
    int,
    float,
    complex,
    torch.Tensor,
    torch.Size,
    torch.dtype,
    torch.device,
    weakref.ref,
    logging.Filterer,
    # Handles: what they keep is a cache, or says nothing to a later call.
    threading.Thread,
    threading.Semaphore,
    threading.Condition,
    threading.Event,
    concurrent.futures.Executor,
    ctypes.CDLL,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch.library.CustomOpDef,
    torch.library.Library,
)
_MOST = 200_000  # containers; a model that holds more keeps a data set, not state


class _Walk:
    """Finds every slot that can be reached from a model and from the names in its code."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._seen: dict[int, Any] = {}
        self._parts = {id(part): name for name, part in module.named_modules()}
        self._named: set[Any] = set()
        self.reached = reach(module)
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self.caches: list[Any] = []

    def slots(self) -> Iterator[Slot]:
        for part in self._module.modules():
            name = self._parts[id(part)]
            yield from self._inside(part, name or "self")
        found = -1
        while len(self._named) > found:  # what is named may hold objects whose methods name more
            found = len(self._named)
            yield from self._names()
        yield from of_generators()

    def _new(self, places: dict[Any, Any]) -> list[Any]:
        """What was not looked at yet."""
        new = {key: each for key, each in places.items() if key not in self._named}
        self._named |= new.keys()
        return list(new.values())

    def _names(self) -> Iterator[Slot]:
        reached = self.reached
        for namespace, name in self._new(reached.globals):
            yield of_names(namespace, (name,), "global")
            yield from self._inside(namespace[name], name)
        for cell, name in self._new(reached.cells):
            slot = of_cell(cell, name)
            yield slot
            for value in slot.read().values():
                yield from self._inside(value, name)
        for kind in self._new(reached.classes):
            slot = of_class(kind)
            yield slot
            for key, value in vars(kind).items():
                if key in slot.read() or is_users(type(value)):  # a descriptor may keep state
                    yield from self._inside(value, f"{kind.__name__}.{key}")
        for owner, name, path in self._new(reached.stored):
            yield of_attribute(owner, name, path)
        for function in self._new(reached.functions):
            defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
            for value in defaults:
                yield from self._inside(value, f"a default of {function.__name__}")
            yield of_attributes(function.__dict__, function.__name__)
            for key, value in function.__dict__.items():
                yield from self._inside(value, f"{function.__name__}.{key}")

    def _inside(self, value: Any, path: str) -> Iterator[Slot]:
        """The slots of a value and of everything in it, without recursion in Python's stack."""
        todo = collections.deque([(value, path)])
        while todo:
            value, path = todo.popleft()
            if id(value) in self._seen or len(self._seen) > _MOST:
                continue
            special = of_special(value, path)
            if special is not None:
                self._seen[id(value)] = value
                yield special
                continue
            if isinstance(value, torch.Tensor) and id(value) not in self.tensors:
                self.tensors[id(value)] = (path, value)
                yield of_attributes(value.__dict__, path)
            if isinstance(value, (types.FunctionType, type)):
                reach_from(value, self.reached)
            if isinstance(value, types.BuiltinMethodType):
                todo.append((value.__self__, path))
            if value is None or isinstance(value, _OPAQUE):
                continue
            self._seen[id(value)] = value
            reach_from(value, self.reached)
            if isinstance(value, types.MethodType):
                todo.append((value.__self__, path))
            elif isinstance(value, functools.partial):
                todo += [(value.func, path), (value.args, path), (value.keywords, path)]
            elif isinstance(value, functools._lru_cache_wrapper):
                self.caches.append(value)
                todo.extend((each, f"the cache of {path}") for each in remembered(value))
            elif isinstance(value, dict):
                yield of_attributes(value, path, items=True)
                todo.extend((each, item_path(path, key)) for key, each in value.items())
            elif isinstance(value, (list, collections.deque, bytearray)):
                yield of_sequence(value, path)
                if not isinstance(value, bytearray):
                    todo.extend((each, f"{path}[{index}]") for index, each in enumerate(value))
            elif isinstance(value, set):
                yield of_set(value, path)
                todo.extend((each, path) for each in value)
            elif isinstance(value, (tuple, frozenset)):
                todo.extend((each, f"{path}[{index}]") for index, each in enumerate(value))
            else:
                if isinstance(value, torch.nn.Module):
                    path = self._parts.get(id(value), path) or "self"
                    for name in _REGISTERED:
                        values = vars(value).get(name)
                        if isinstance(values, dict):
                            self._seen[id(values)] = values
                            yield of_attributes(values, path)
                            todo.extend((each, f"{path}.{key}") for key, each in values.items())
                todo.extend(self._object(value, path))
                yield from of_object(value, path)

    def _object(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for key, each in attributes.items():
                if key not in _MODULE_INTERNALS:
                    yield each, f"{path}.{key}"
        for name in slot_names(type(value)):
            yield getattr(value, name, None), f"{path}.{name}"


_MODULE_INTERNALS = frozenset(vars(torch.nn.Module()))
_REGISTERED = ("_parameters", "_buffers", "_modules")


def _joined(slot: Slot, key: Any) -> str:
    if slot.kind == "attributes" and isinstance(key, str):
        return f"{slot.path}.{key}" if slot.path else key
    if slot.kind in ("items", "elements"):
        return slot.path
    return slot.path or str(key)


def value_text(value: Any) -> str:
    """A value in a message."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, str)):
        shown = repr(value)
        return shown if len(shown) <= 40 else f"{shown[:37]}…"
    return f"a {type(value).__name__}"
