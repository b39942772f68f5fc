"""The Python state around a model: remembered, compared, and put back exactly.

State is whatever a call could change and a later call could see: attributes of the model's parts,
globals, closure variables and class attributes that the user's code names, everything inside of
them, and the random generators. Tensors that are written in place are the business of `written`.
"""

from __future__ import annotations

import ast
import collections
import concurrent.futures
import contextvars
import ctypes
import itertools
import logging
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..lowering.locations import is_library
from .reach import Reached, reach

MISSING = object()


@dataclass(frozen=True)
class Slot:
    """One place that holds state. ``path``: in the user's words. ``read`` gives what it holds now
    (a dict from keys to values), ``write`` puts such a dict back."""

    path: str
    # attributes, items, elements (of a list or a set), global, closure, context, state or random
    kind: str
    read: Callable[[], dict[Any, Any]]
    write: Callable[[dict[Any, Any]], None]


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
    """The state at one moment. Holds on to every object in it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._saved: list[tuple[Slot, dict[Any, Any]]] = []
        walk = _Walk(module)
        for slot in walk.slots():
            self._saved.append((slot, slot.read()))

    def changes(self) -> list[Change]:
        """The differences between now and then, by slot."""
        found = []
        for slot, saved in self._saved:
            now = slot.read()
            for key in {**saved, **now}:
                before, after = saved.get(key, MISSING), now.get(key, MISSING)
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
            if list(now) != list(saved) or any(now[key] is not saved[key] for key in saved):
                slot.write(saved)


@contextmanager
def preserved(module: torch.nn.Module) -> Iterator[Snapshot]:
    """Whatever happens inside, the state is afterwards what it was before."""
    snapshot = Snapshot(module)
    try:
        yield snapshot
    finally:
        snapshot.restore()


def same(before: Any, after: Any) -> bool:
    """Whether two values are one state: the same object, or equal plain values and tensors."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, torch.Tensor):
        if before.shape != after.shape or before.dtype != after.dtype:
            return False
        return bool(torch.equal(before, after)) or bool((before != before).any())
    if isinstance(before, (int, float, complex, str, bytes, bool, tuple, torch.Size)):
        return bool(before == after) or (before != before and after != after)
    return False


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

    def slots(self) -> Iterator[Slot]:
        reached = reach(self._module)
        for part in self._module.modules():
            name = self._parts[id(part)]
            yield from self._inside(part, name or "self")
        yield from self._named(reached)
        yield from _generators()

    def _named(self, reached: Reached) -> Iterator[Slot]:
        for namespace, name in reached.globals.values():
            yield _names(namespace, (name,), "global")
            yield from self._inside(namespace[name], name)
        for cell, name in reached.cells.values():
            slot = _cell(cell, name)
            yield slot
            for value in slot.read().values():
                yield from self._inside(value, name)
        for kind in reached.classes.values():
            slot = _class(kind)
            yield slot
            for key, value in slot.read().items():
                yield from self._inside(value, f"{kind.__name__}.{key}")
        for function in reached.functions.values():
            defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
            for value in defaults:
                yield from self._inside(value, f"a default of {function.__name__}")
            yield _attributes(function.__dict__, function.__name__)
            for key, value in function.__dict__.items():
                yield from self._inside(value, f"{function.__name__}.{key}")

    def _inside(self, value: Any, path: str) -> Iterator[Slot]:
        """The slots of a value and of everything in it, without recursion in Python's stack."""
        todo = collections.deque([(value, path)])
        while todo:
            value, path = todo.popleft()
            if id(value) in self._seen or len(self._seen) > _MOST:
                continue
            special = _special(value, path)
            if special is not None:
                self._seen[id(value)] = value
                yield special
                continue
            if value is None or isinstance(value, _OPAQUE):
                continue
            self._seen[id(value)] = value
            if isinstance(value, types.MethodType):
                todo.append((value.__self__, path))
            elif isinstance(value, dict):
                yield _attributes(value, path, items=True)
                todo.extend((each, _item(path, key)) for key, each in value.items())
            elif isinstance(value, (list, collections.deque, bytearray)):
                yield _sequence(value, path)
                if not isinstance(value, bytearray):
                    todo.extend((each, f"{path}[{index}]") for index, each in enumerate(value))
            elif isinstance(value, set):
                yield _set(value, path)
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
                            yield _attributes(values, path)
                            todo.extend((each, f"{path}.{key}") for key, each in values.items())
                todo.extend(self._object(value, path))
                yield from _object_slots(value, path)

    def _object(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for key, each in attributes.items():
                if key not in _MODULE_INTERNALS:
                    yield each, f"{path}.{key}"
        for name in _slot_names(type(value)):
            yield getattr(value, name, None), f"{path}.{name}"


_MODULE_INTERNALS = frozenset(vars(torch.nn.Module()))
_REGISTERED = ("_parameters", "_buffers", "_modules")


def _joined(slot: Slot, key: Any) -> str:
    if slot.kind == "attributes" and isinstance(key, str):
        return f"{slot.path}.{key}" if slot.path else key
    if slot.kind in ("items", "elements"):
        return slot.path
    return slot.path or str(key)


def _item(path: str, key: Any) -> str:
    return f"{path}[{key!r}]" if isinstance(key, (str, int)) else path


def _attributes(values: dict[Any, Any], path: str, *, items: bool = False) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        values.clear()
        values.update(saved)

    return Slot(path, "items" if items else "attributes", lambda: dict(values), write)


def _object_slots(value: Any, path: str) -> Iterator[Slot]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield _attributes(attributes, path)
    names = _slot_names(type(value))
    if names:

        def read() -> dict[Any, Any]:
            return {name: getattr(value, name) for name in names if hasattr(value, name)}

        def write(saved: dict[Any, Any]) -> None:
            for name in names:
                if name in saved:
                    object.__setattr__(value, name, saved[name])
                elif hasattr(value, name):
                    object.__delattr__(value, name)

        yield Slot(path, "attributes", read, write)


def _slot_names(kind: type) -> tuple[str, ...]:
    """The ``__slots__`` of the user's classes."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        home = sys.modules.get(base.__module__)
        if slots and not is_library(getattr(home, "__file__", None) or "<built in>"):
            found += [slots] if isinstance(slots, str) else list(slots)
    return tuple(each for each in found if each not in ("__dict__", "__weakref__"))


def _names(namespace: dict[str, Any], names: tuple[str, ...], kind: str) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        for name in names:
            if name in saved:
                namespace[name] = saved[name]
            else:
                namespace.pop(name, None)

    return Slot(
        "", kind, lambda: {name: namespace[name] for name in names if name in namespace}, write
    )


def _class(kind: type) -> Slot:
    def read() -> dict[Any, Any]:
        return {key: each for key, each in vars(kind).items() if _is_data(key, each)}

    def write(saved: dict[Any, Any]) -> None:
        for key in read().keys() - saved.keys():
            delattr(kind, key)
        for key, value in saved.items():
            setattr(kind, key, value)

    return Slot(kind.__name__, "attributes", read, write)


def _is_data(key: str, value: Any) -> bool:
    """An attribute of a class that is no method, property or machinery of Python's."""
    machinery = key.startswith("__") or hasattr(type(value), "__get__") or isinstance(value, type)
    return not machinery and key not in ("_abc_impl",)


def _cell(cell: types.CellType, name: str) -> Slot:
    def read() -> dict[Any, Any]:
        try:
            return {name: cell.cell_contents}
        except ValueError:  # not assigned yet
            return {}

    def write(saved: dict[Any, Any]) -> None:
        if name in saved:
            cell.cell_contents = saved[name]
        else:
            del cell.cell_contents

    return Slot("", "closure", read, write)


def _sequence(values: Any, path: str) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        values.clear()
        values.extend(saved.values())

    return Slot(path, "elements", lambda: dict(enumerate(values)), write)


def _set(values: set[Any], path: str) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        values.clear()
        values.update(saved)

    return Slot(path, "elements", lambda: dict.fromkeys(values, True), write)


# --- state that is behind functions ---------------------------------------------------------------


def _special(value: Any, path: str) -> Slot | None:
    """A slot for an object that keeps its state in C: random generators, iterators, arrays."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, random.Random):
        return _state(path, value.getstate, value.setstate, "random")
    if isinstance(value, torch.Generator):
        return _state(path, value.get_state, value.set_state, "random")
    if isinstance(value, contextvars.ContextVar):
        return _context(value, path)
    if isinstance(value, types.GeneratorType):
        return _state(path, lambda: _position(value), None)
    if isinstance(value, (itertools.count, itertools.cycle)):
        return _state(path, lambda: repr(value), None)
    if isinstance(value, _ITERATORS):
        return _state(path, lambda: _position_in(value), lambda at: value.__setstate__(at))
    if numpy is None:
        return None
    if isinstance(value, numpy.random.RandomState):
        return _state(path, lambda: _plain(value.get_state()), value.set_state, "random")
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator

        def write(saved: Any) -> None:
            bits.state = ast.literal_eval(saved)

        return _state(path, lambda: repr(bits.state), write, "random")
    if isinstance(value, numpy.ndarray) and value.dtype != object:

        def overwrite(saved: bytes) -> None:
            value[...] = numpy.frombuffer(saved, value.dtype).reshape(value.shape)

        return _state(path, value.tobytes, overwrite, "items")
    return None


def _context(variable: contextvars.ContextVar[Any], path: str) -> Slot:
    def read() -> dict[Any, Any]:
        try:
            return {None: variable.get()}
        except LookupError:
            return {None: MISSING}

    def write(saved: dict[Any, Any]) -> None:
        if saved[None] is not MISSING:  # one that was never set cannot be unset
            variable.set(saved[None])

    return Slot(path, "context", read, write)


def _state(
    path: str, get: Callable[[], Any], put: Callable[[Any], Any] | None, kind: str = "state"
) -> Slot:
    """A slot of one value. ``put`` is None where it can be seen to change but not be put back."""

    def write(saved: dict[Any, Any]) -> None:
        if put is not None and not same(saved[None], get()):
            put(saved[None])

    return Slot(path, kind, lambda: {None: get()}, write)


_ITERATORS: tuple[Any, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter("")),
    type(iter(range(0))),
    type(reversed([])),
)


def _position_in(iterator: Any) -> int | None:
    """How far an iterator over a sequence has come; None where it is at its end."""
    state = iterator.__reduce__()
    return state[2] if len(state) > 2 else None


def _position(generator: types.GeneratorType[Any, Any, Any]) -> int:
    frame = generator.gi_frame
    return frame.f_lasti if frame is not None else -1


def _plain(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """The state of numpy's old generator, comparable."""
    return (state[0], tuple(state[1].tolist()), *state[2:])


GLOBAL_GENERATORS = ("random", "torch.random", "numpy.random")


def _generators() -> Iterator[Slot]:
    """The generators that belong to nobody."""
    yield _state("random", random.getstate, random.setstate, "random")
    yield _state("torch.random", torch.get_rng_state, torch.set_rng_state, "random")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        legacy = numpy.random
        yield _state("numpy.random", lambda: _plain(legacy.get_state()), legacy.set_state, "random")


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
