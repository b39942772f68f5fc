"""The long way of a call, once it is checked: any tensors, any model on the CPU; and what a thread
needs for it. `short` generates the short one, for what calls nearly always are."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.errors import Diagnostic, InternalError
from ..artifacts.logs import log
from .explain import computed_violation
from .guards import Sizes
from .library import load_ffi
from .shutdown import wait_if_ending
from .tensors import (
    ALIGNMENT,
    COMPLEX,
    Seen,
    Slot,
    copy_of,
    empty_tensor,
    from_numpy,
    in_parts,
)
from .threads import POOLS
from .told import Told
from .variants import Route
from .worker import Code, Worker

if TYPE_CHECKING:
    from .session import Session

_HERE = POOLS.here
_RAISED_BY_FFI = "__tvm_ffi_error__"  # what tvm_ffi notes on an exception that its C++ side names


class Calls:
    """How the compiled code of a model is called, by any thread.

    Attributes:
        code: shared by all threads.
        path: of the bundle.
        routes: of the binary.
        weights: where the weights lie, from and to: what lies there is not given away.
        local: has the calling thread's ``worker``, once it has called the model.
    """

    def __init__(
        self,
        path: Path,
        code: Code,
        routes: Sequence[Route],
        num_threads: int,
        weights: tuple[int, int],
        told: Told,
    ) -> None:
        self.code = code
        self.weights = weights
        self.local = threading.local()
        self.path = path
        self.routes = routes
        self._num_threads = num_threads
        self._told = told
        self._configure = load_ffi().get_global_func("runtime.config_threadpool")

    def start(self) -> Worker:
        """A worker for the calling thread, in place of the one that it may have.

        Raises:
            InternalError: TC601, the library lacks what is called.
        """
        listener = log("runtime")
        if listener is not None:
            listener.info("%s: a VM for %s", self.path, threading.current_thread().name)
        given = [route.given for route in self.routes]
        try:
            worker = Worker(self.code, self._told.new_counts(), given)
        except Exception as error:  # tvm_ffi raises what its C++ side names
            raise self._failed(error) from None
        self._told.join(worker)
        self.local.worker = worker
        return worker

    def forget(self) -> None:
        """Drop the calling thread's worker."""
        self.local.__dict__.pop("worker", None)

    def run(
        self, route: Route, leaves: Sequence[Any], sizes: Sizes, session: Session | None
    ) -> list[Any]:
        """The results of the compiled function, each in memory of its own."""
        wait_if_ending()
        if _HERE.count != self._num_threads:
            POOLS.set(self._num_threads, self._configure)
        try:
            worker: Worker = self.local.worker
        except AttributeError:
            worker = self.start()
        arguments: list[Any] = []
        places: list[int] = []
        slots: list[Slot] = []
        for index, dtype, may_be_empty in route.taken:
            leaf = leaves[index]
            seen = type(leaf) is Seen
            tensor = leaf.tensor if seen else from_numpy(leaf)
            if may_be_empty and not tensor.numel() and dtype not in COMPLEX:
                tensor = empty_tensor(leaf.shape, dtype)
            place = tensor.data_ptr()
            if place % ALIGNMENT or not tensor.is_contiguous():
                slot = worker.staging.copy(leaf.array() if seen else leaf, dtype)
                slots.append(slot)
                tensor, place = slot.tensor, slot.place
                leaf, seen = slot.memory, False
            if dtype in COMPLEX:
                tensor = in_parts(leaf.array() if seen else leaf, dtype)
            arguments.append(tensor)
            places.append(place)
        if route.sized:
            arguments.append(worker.shape(sizes[: route.sized]))
        number = route.number
        given = worker.spare[number].take(sizes) if route.given else None
        if session is not None:
            arguments += session.tensors
            session.broken = True  # until the code has run to its end
        began = time.perf_counter_ns()
        try:
            if given:
                tensors = worker.run_into(number, *arguments, *given)
            else:
                tensors = worker.run(number, *arguments)
        except BaseException as error:
            failure = self.stopped(error, number)
            if failure is error:
                raise
            raise failure from None
        took = time.perf_counter_ns() - began
        if session is not None:
            session.broken = False
        low, high = self.weights
        for place_of, tensor in enumerate(tensors):
            place = tensor.data_ptr()
            if place in places or low <= place < high:
                # The model gives back an argument or a weight; what it gives is the caller's to
                # write to.
                tensors[place_of] = copy_of(tensor)
        counts = worker.counts
        counts.calls[number] += 1
        counts.nanoseconds += took
        for slot in slots:
            counts.copies += 1
            counts.copied_bytes += slot.nbytes
            worker.staging.give_back(slot)
        return tensors

    def stopped(self, error: BaseException, variant: int, ours: bool = False) -> BaseException:
        """What to raise for what a call of the compiled code raised: ``error`` itself where that is
        not the code's, as what the handler of a signal raises meanwhile."""
        self.forget()  # its VM stopped in the middle
        if not hasattr(error, _RAISED_BY_FFI) and not ours:
            return error
        contract = self.routes[variant].contract
        return computed_violation(contract, str(error)) or self._failed(error)

    def _failed(self, error: BaseException) -> InternalError:
        text = str(error).strip() or type(error).__name__
        if text == "std::bad_alloc":
            return InternalError(
                Diagnostic(
                    "TC602",
                    f"{self.path}: the system has not enough memory for this call",
                    tries=("model.release_memory()", "load(memory_limit=…), to refuse such calls"),
                )
            )
        return InternalError(Diagnostic("TC601", f"{self.path}: {text}"))
