"""State of the model itself: the buffers that a trace must keep, and calls in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..artifacts.errors import Diagnostic, ExportError
from ..lowering.draws import GENERATOR
from ..lowering.locations import user_location
from ..lowering.states import State, states
from .drawing import drawing
from .examples import contiguous_clone
from .rehearse import state_writes
from .signature import Bound
from .state import preserved
from .trace import Trace
from .written import Written, tensors_of


def require_states(
    module: torch.nn.Module, traced: Trace, written: Sequence[str]
) -> tuple[Diagnostic, ...]:
    """Every buffer that the model was seen to write to must be state of the trace; notes of those
    that it was not seen to write to.

    Raises:
        ExportError: TC103, the trace does not hold the write.
    """
    found = buffers(traced)
    kept = {id(module.get_buffer(state.name)) for state in found}
    lost = [name for name in written if id(module.get_buffer(name)) not in kept]
    if lost:
        raise ExportError(
            Diagnostic(
                "TC103",
                f"the model writes to {name}, and the trace does not hold the write",
                tries=(f"write to {name} with its own methods: copy_, add_, index_copy_, [...] =",),
            )
            for name in lost
        )
    seen = {id(module.get_buffer(name)) for name in written}
    nodes = {node.name: node for node in traced.program.graph.nodes}
    return tuple(
        state_writes(
            [
                (state.name, user_location(nodes[state.result].meta.get("stack_trace")))
                for state in found
                if id(module.get_buffer(state.name)) not in seen
            ]
        )
    )


def buffers(traced: Trace) -> list[State]:
    """The states of a trace that the model has, too: all but the generator of its random numbers."""
    return [state for state in states(traced.program) if state.name != GENERATOR]


def draws(traced: Trace) -> bool:
    """Whether a trace draws random numbers, which something comes of."""
    return any(state.name == GENERATOR for state in states(traced.program))


class EagerSession:
    """Calls of a model in a row, each on the state that the last one left."""

    def __init__(self, module: torch.nn.Module, bound: Bound, names: Sequence[str]) -> None:
        self._module = module
        self._bound = bound
        self._call = 0
        self._buffers = {name: module.get_buffer(name) for name in names}

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat outputs of a call on clones of ``leaves``. What the model raises comes through,
        and the state is then what it was before the call."""
        _, spec = pytree.tree_flatten((self._bound.args, self._bound.kwargs))
        args, kwargs = pytree.tree_unflatten([contiguous_clone(leaf) for leaf in leaves], spec)
        before = self.state()
        try:
            with torch.no_grad(), drawing(self._bound, self._call + 1):
                result = self._module(*args, **kwargs)
            self._call += 1
            return [contiguous_clone(value) for value in pytree.tree_leaves(result)]
        except Exception:
            with torch.no_grad():
                for name, value in before.items():
                    self._buffers[name].copy_(value)
            raise

    def state(self) -> dict[str, torch.Tensor]:
        """A copy of the state by name."""
        return {name: contiguous_clone(buffer) for name, buffer in self._buffers.items()}


def reset_of(module: torch.nn.Module, names: Sequence[str]) -> Callable[[], None]:
    """What makes the buffers ``names`` of a model hold, where they lie, what they hold now. (A
    generator of random numbers is among the states of a bundle, and is none.)"""
    kept = [
        (buffer := module.get_buffer(name), contiguous_clone(buffer))
        for name in names
        if name != GENERATOR
    ]

    def reset() -> None:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)

    return reset


@contextmanager
def eager_session(
    module: torch.nn.Module, bound: Bound, names: Sequence[str]
) -> Iterator[EagerSession]:
    """A session of the model itself, from the state that it is in; afterwards it is in that state."""
    written = Written(tensors_of(module), lambda: None)
    try:
        with preserved(module), written:
            yield EagerSession(module, bound, names)
    finally:
        written.restore()
