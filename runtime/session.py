"""A session: a model together with the state that its calls change."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.errors import Diagnostic, UsageError
from ..artifacts.manifest import Manifest
from ..artifacts.states import StateTensor
from ..artifacts.weights import Weight
from .mapped import Initial
from .tensors import NotATensor, aligned_empty, bits_of, empty_tensor, from_bits, see, to_numpy

if TYPE_CHECKING:
    from .gpu_states import GpuStates
    from .model import Model


class HostStates:
    """Where the states of a session lie, on the host: as the compiled code takes them, ``tensors``, and
    as their bits, by name."""

    def __init__(self, rows: Sequence[StateTensor]) -> None:
        self.arrays = {row.name: aligned_empty(row.shape, bits_of(row.dtype)) for row in rows}
        self.tensors = tuple(
            empty_tensor(row.shape, row.dtype)
            if 0 in row.shape
            else from_bits(self.arrays[row.name], row.dtype)
            for row in rows
        )

    def put(self, row: StateTensor, values: np.ndarray | None) -> None:
        """Let a state be these bits; None for zeros."""
        self.arrays[row.name][...] = 0 if values is None else values

    def values_of(self, row: StateTensor) -> np.ndarray:
        """A copy of its bits."""
        return self.arrays[row.name].copy()


class Session:
    """A model with a state of its own, which each call changes, where it lies.

    Sessions of one model share its code and weights, and nothing else. A session is for one thread at
    a time: a call during another is refused. A call that the contract refuses before it runs leaves
    the state as it was; after one that fails while it runs (an index that the model computes, an
    assertion) the state is undefined, and every call is refused until `reset` or `restore`.
    """

    def __init__(self, model: Model, initial: Initial, on_gpu: GpuStates | None = None) -> None:
        self._model = model
        self._initial = initial
        self._kept: HostStates | GpuStates
        self._generator = None  # its state, where the model draws random numbers: on the CPU alone
        if on_gpu is not None:
            self._kept = on_gpu
        else:
            self._kept = host = HostStates([row for row, _ in initial])
            self._generator = host.arrays.get(model.manifest.generator)
        self.tensors = self._kept.tensors
        self.broken = False
        self._lock = threading.Lock()
        self.reset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the state as it is, and change it. As `Model.__call__` otherwise.

        Raises:
            UsageError: TC322, a call is running; TC323, the last one failed while it ran; TC325, the
                model draws random numbers, and there is no `seed`.
        """
        self._take()
        try:
            if self.broken:
                raise UsageError(
                    Diagnostic(
                        "TC323",
                        "the last call failed while it ran, and the state is undefined",
                        tries=(
                            "session.reset()",
                            "session.restore(kept), with a state kept before",
                        ),
                    )
                )
            if self._generator is not None and not self._generator[1]:
                raise UsageError(
                    Diagnostic(
                        "TC325",
                        "the model draws random numbers, and the session has no seed",
                        tries=("session.seed(1234)",),
                    )
                )
            if not self.tensors:
                return self._model(*args, **kwargs)
            return self._model.answer(args, kwargs, self)
        finally:
            self._lock.release()

    def seed(self, seed: int) -> None:
        """Let the random numbers of the next calls be those of ``seed``, from the first on.

        Equal seeds give equal numbers, bit by bit, call after call. They are part of the state:
        `state` keeps how far they are, and `reset` takes the seed away.

        Args:
            seed: any int of 64 bits.

        Raises:
            UsageError: TC008, no such int, or the model draws no random numbers; TC322.
        """
        if self._generator is None:
            raise UsageError(Diagnostic("TC008", "seed: the model draws no random numbers"))
        if type(seed) is not int or not -(1 << 63) <= seed < 1 << 63:
            raise UsageError(Diagnostic("TC008", f"seed({seed!r:.40}): needs an int of 64 bits"))
        self._take()
        try:
            self._generator[:] = seed, 1
        finally:
            self._lock.release()

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """As a call, in a thread of the model's own: see `Model.acall`. One call at a time, so each is
        to be awaited before the next (TC322). One that is cancelled while it runs goes on to its end,
        and changes the state.
        """
        return await self._model.async_calls.run(self, args, kwargs)

    def reset(self) -> None:
        """Make the state what it was at export; random numbers need a new `seed`.

        Raises:
            UsageError: TC322.
        """
        self._take()
        try:
            for row, initial in self._initial:
                self._kept.put(row, initial)
            self.broken = False
        finally:
            self._lock.release()

    def state(self) -> dict[str, np.ndarray]:
        """A copy of the state by name.

        Raises:
            UsageError: TC322, TC323.
            ModuleNotFoundError: a dtype that only the package ml_dtypes gives numpy.
        """
        return {
            name: to_numpy(from_bits(weight.data, weight.dtype), weight.dtype)
            for name, weight in self.bits().items()
        }

    def bits(self) -> dict[str, Weight]:
        """The same, as the bits that a safetensors file holds."""
        self._take()
        try:
            if self.broken:
                raise UsageError(
                    Diagnostic(
                        "TC323", "the last call failed while it ran: there is no state to keep"
                    )
                )
            return {
                row.name: Weight(self._kept.values_of(row), row.dtype) for row, _ in self._initial
            }
        finally:
            self._lock.release()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the state what `state` gave: arrays or DLPack tensors by name, all of them.

        Raises:
            UsageError: TC324, a name, dtype or shape is another; nothing was changed. TC322.
        """
        self._take()
        try:
            found = _fitting([row for row, _ in self._initial], state)
            for row, _ in self._initial:
                self._kept.put(row, found[row.name])
            self.broken = False
        finally:
            self._lock.release()

    def _take(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                Diagnostic(
                    "TC322",
                    "the session is in use by another call",
                    tries=("a session for each thread: model.session()",),
                )
            )


def without_session(manifest: Manifest) -> UsageError:
    first = manifest.states[0].name
    draws = first == manifest.generator
    does = "draws random numbers" if draws else f"keeps state ({first})"
    seed = "session.seed(1234); " if manifest.generator else ""
    return UsageError(
        Diagnostic(
            "TC321",
            f"the model {does}, and was called without a session",
            tries=(f"session = model.session(); {seed}session(…)",),
        )
    )


def _fitting(rows: list[StateTensor], state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The bits of what is to be restored."""
    names = [row.name for row in rows]
    missing = [name for name in names if name not in state]
    extra = [name for name in state if name not in names]
    if missing or extra:
        what = (
            f"has no {missing[0]}" if missing else f"has {extra[0]!r:.80}, which is no state here"
        )
        raise _unfit(f"the state to restore {what}", f"the model keeps {', '.join(names)}")
    found = {}
    for row in rows:
        try:
            seen = see(state[row.name])
        except NotATensor as error:
            raise _unfit(f"{row.name} is {error}", error.attempt) from None
        if (seen.dtype, tuple(seen.shape)) != (row.dtype, row.shape):
            raise _unfit(
                f"{row.name} is {seen.dtype} {list(seen.shape)}, "
                f"the state is {row.dtype} {list(row.shape)}"
            )
        found[row.name] = seen.array()
    return found


def _unfit(message: str, note: str = "") -> UsageError:
    return UsageError(Diagnostic("TC324", message, notes=(note,) if note else ()))
