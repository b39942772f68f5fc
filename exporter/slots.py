"""The places that hold Python state: what each holds now, and how it is put back.

Attributes, items, names, closure cells; and behind functions of C: random generators, iterators,
arrays, what a `functools.lru_cache` remembers.
"""

from __future__ import annotations

import ast
import contextvars
import gc
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..lowering.locations import is_library

MISSING = object()
ORDER = object()  # the key under which the slot of a dict holds in which order its keys are


@dataclass(frozen=True)
class Slot:
    """One place that holds state. ``path``: in the user's words. ``read`` gives what it holds now
    (a dict from keys to values), ``write`` puts such a dict back."""

    path: str
    # attributes, items, elements (of a list or a set), global, closure, context, state or random
    kind: str
    read: Callable[[], dict[Any, Any]]
    write: Callable[[dict[Any, Any]], None]


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


def item_path(path: str, key: Any) -> str:
    return f"{path}[{key!r}]" if isinstance(key, (str, int)) else path


def of_attributes(values: dict[Any, Any], path: str, *, items: bool = False) -> Slot:
    def read() -> dict[Any, Any]:
        return {**values, ORDER: tuple(map(id, values))} if items else dict(values)

    def write(saved: dict[Any, Any]) -> None:
        values.clear()
        values.update({key: value for key, value in saved.items() if key is not ORDER})

    return Slot(path, "items" if items else "attributes", read, write)


def of_object(value: Any, path: str) -> Iterator[Slot]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield of_attributes(attributes, path)
    names = slot_names(type(value))
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


def slot_names(kind: type) -> tuple[str, ...]:
    """The ``__slots__`` of the user's classes."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        home = sys.modules.get(base.__module__)
        if slots and not is_library(getattr(home, "__file__", None) or "<built in>"):
            found += [slots] if isinstance(slots, str) else list(slots)
    return tuple(each for each in found if each not in ("__dict__", "__weakref__"))


def of_names(namespace: dict[str, Any], names: tuple[str, ...], kind: str) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        for name in names:
            if name in saved:
                namespace[name] = saved[name]
            else:
                namespace.pop(name, None)

    return Slot(
        "", kind, lambda: {name: namespace[name] for name in names if name in namespace}, write
    )


def of_attribute(owner: Any, name: str, path: str) -> Slot:
    """One attribute of a module, a class or a function, which need not be there."""

    def read() -> dict[Any, Any]:
        values = vars(owner)
        return {name: values[name]} if name in values else {}

    def write(saved: dict[Any, Any]) -> None:
        if name in saved:
            setattr(owner, name, saved[name])
        else:
            delattr(owner, name)

    return Slot(path, "attributes", read, write)


def of_class(kind: type) -> Slot:
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


def of_cell(cell: types.CellType, name: str) -> Slot:
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


def of_sequence(values: Any, path: str) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        values.clear()
        values.extend(saved.values())

    return Slot(path, "elements", lambda: dict(enumerate(values)), write)


def of_set(values: set[Any], path: str) -> Slot:
    def write(saved: dict[Any, Any]) -> None:
        values.clear()
        values.update(saved)

    return Slot(path, "elements", lambda: dict.fromkeys(values, True), write)


# --- state that is behind functions ---------------------------------------------------------------


def of_special(value: Any, path: str) -> Slot | None:
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


def of_generators() -> Iterator[Slot]:
    """The generators that belong to nobody."""
    yield _state("random", random.getstate, random.setstate, "random")
    yield _state("torch.random", torch.get_rng_state, torch.set_rng_state, "random")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        legacy = numpy.random
        yield _state("numpy.random", lambda: _plain(legacy.get_state()), legacy.set_state, "random")


def remembered(function: Any) -> Iterator[Any]:
    """The results that a `functools.lru_cache` holds: it tells the collector of them, and of the dict
    in which they are found. What it is asked for is no state, whether it is there or not."""
    if is_library(getattr(function.__wrapped__, "__code__", sys._getframe().f_code).co_filename):
        return
    if not function.cache_info().currsize:
        return
    unlimited = function.cache_parameters()["maxsize"] is None
    for each in gc.get_referents(function):
        if each is function.__dict__ or each is function.__wrapped__ or isinstance(each, type):
            continue
        if isinstance(each, dict) and unlimited:
            yield from each.values()
        elif not isinstance(each, dict) or not any(map(_is_link, each.values())):
            yield each


def _is_link(value: Any) -> bool:
    return type(value).__name__ == "_lru_list_elem"
