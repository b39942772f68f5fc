"""CUDA graphs: what a call queues is recorded once for its sizes, and queued as one from then on.

A graph keeps the addresses that its kernels were recorded with. So its inputs are copied to memory of
its own; what lies between is an `Arena`, which all graphs of a GPU share, as calls there run one after
the other; and its results are copied out before the next call, so that none is written over that a
caller still holds. (CUDA programming guide, "Creating a Graph Using Stream Capture".)
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.logs import log
from .cuda import CudaError, Cudart, Device
from .library import LOADING, load_ffi
from .worker import Code, Counts, Worker

if TYPE_CHECKING:
    from .guards import Sizes
    from .variants import Route

_RELAXED = 2  # cudaStreamCaptureModeRelaxed: the arena may grow meanwhile
_KERNEL, _MEMSET = 0, 2  # cudaGraphNodeType
_ALLOC = "vm.builtin.alloc_storage"
_TENSOR = "vm.builtin.alloc_tensor"
# What TVM's host code calls where a function has memory of its own between its kernels. It is a
# thread's, and freed when the thread asks for more.
_WORKSPACE = b"TVMBackendAllocWorkspace"
# What the VM may do while a call is recorded. None of these reads a tensor's values on the host.
_HARMLESS = frozenset(
    "vm.builtin." + name
    for name in (
        "alloc_shape_heap", "alloc_storage", "alloc_tensor", "call_tir_dyn", "check_prim_value_info",
        "check_shape_info", "check_tensor_info", "check_tuple_info", "copy", "make_prim_value",
        "make_shape", "make_tuple", "match_prim_value", "match_shape", "null_value", "reshape",
        "tuple_getitem", "tuple_reset_item",
    )
)  # fmt: skip
_logger = logging.getLogger("tcexport.device")

Key = tuple["Sizes", tuple[tuple[int, ...], ...]]


class _NotRecorded(Exception):
    """Why a call cannot be a graph."""


class Arena:
    """Memory for what recorded calls compute on the way. A piece is given out again, in the same call
    or to another graph, once nobody else refers to it; all of it goes back to the pool with the last
    graph."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, Any]] = []

    @property
    def size(self) -> int:
        return sum(size for size, _ in self._pieces)

    def memory(self) -> Any:
        return list(self._pieces)

    def take(self, size: int, allocate: Callable[[int], Any]) -> Any:
        """A storage of TVM's with at least ``size`` bytes. What is asked for anew is rounded up by at
        most a quarter, so that sizes which are near each other share it."""
        fits = [
            (each, storage)
            for each, storage in self._pieces
            if size <= each <= 2 * size and _is_free(storage)
        ]
        if fits:
            return min(fits, key=lambda fit: fit[0])[1]
        step = 1 << max(8, size.bit_length() - 3)
        size = -(-size // step) * step
        storage = allocate(size)
        self._pieces.append((size, storage))
        return storage


def _is_free(storage: Any) -> bool:
    """Whether the one reference to an object of tvm_ffi's is the caller's: the lower half of what it
    begins with counts them (TVMFFIObject in tvm/ffi/c_api.h)."""
    return bool(ctypes.c_uint64.from_address(storage.__chandle__()).value & 0xFFFFFFFF == 1)


class Output:
    """Where a graph leaves a result, until the next call."""

    def __init__(self, tensor: Any) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype)
        self._address = tensor.data_ptr()
        self._count = tensor.numel()

    def data_ptr(self) -> int:
        address: int = self._address
        return address

    def numel(self) -> int:
        count: int = self._count
        return count


class Graph:
    """A call at one size of everything.

    Attributes:
        base: the address of the inputs, one after the other.
        arguments: tensors on them.
        outputs: where the results lie after `launch`.
    """

    def __init__(self, device: Device, size: int) -> None:
        self._cudart = device.cudart
        self._slab = device.empty(max(size, 1))
        self.size = size
        self.base: int = self._slab.data_ptr()
        self.arguments: list[Any] = []
        self.outputs: list[Output] = []
        self._handle = ctypes.c_void_p()
        self._arena: Arena | None = None
        self._device = device

    @property
    def ready(self) -> bool:
        return self._arena is not None

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> None:
        """The next argument lies ``offset`` bytes behind the base."""
        self.arguments.append(self._device.view(self._slab, shape, dtype, offset))

    def made(self, handle: ctypes.c_void_p, outputs: list[Output], arena: Arena) -> None:
        """It can be launched from now on, until it is dropped or nobody refers to it."""
        self._handle, self.outputs, self._arena = handle, outputs, arena
        self._end = weakref.finalize(
            self, _destroy, self._cudart, handle, self._device.event, os.getpid()
        )
        self._end.atexit = False  # the driver may have gone before

    def launch(self, stream: int) -> None:
        self._cudart.call("cudaGraphLaunch", self._handle, ctypes.c_void_p(stream))

    def drop(self) -> None:
        """Destroy it, once it has run."""
        if self.ready:
            self._end()
            self._arena = None


def _destroy(cudart: Cudart, handle: ctypes.c_void_p, event: ctypes.c_void_p, process: int) -> None:
    if os.getpid() != process:  # CUDA does not survive a fork
        return
    cudart.settle(event)  # of the last call that was queued on the GPU
    cudart.destroy_graph(handle)


class GpuGraphs:
    """The graphs of one model. All of it is done within the device's turn, which only one thread has.

    A call at new sizes is noted, the next one at these sizes is recorded, and the ones after that are
    launches. Only the last ``limit`` sizes are known, so that sizes which come back too late are
    never recorded, and no graph is made again and again.
    """

    def __init__(
        self, device: Device, code: Code, path: Path, limit: int, library: bytes | memoryview
    ) -> None:
        self._device = device
        self._code = code
        self._path = path
        self._limit = limit
        self._known: OrderedDict[Key, Graph | None] = OrderedDict()
        self._worker: Worker | None = None
        self._recording: tuple[int, Arena] | None = None  # the thread, and where memory is from
        self._context: Any = None  # what a VM's allocations are asked with
        ffi = load_ffi()
        self._allocate = ffi.get_global_func(_ALLOC)
        self._tensor = ffi.get_global_func(_TENSOR)
        self._shape, self._dtype = ffi.Shape, ffi.dtype
        self._safe: dict[str, bool] = {}
        self.off = ""  # why no call is recorded
        device.holders.add(self)
        device.graphs.add(self)
        if _WORKSPACE in bytes(library):
            self.stop("a kernel's host code takes memory that belongs to a thread")

    def memory(self) -> Any:
        return list(self._known.values()), self._worker

    @property
    def count(self) -> int:
        return sum(graph is not None and graph.ready for graph in self._known.values())

    @property
    def size(self) -> int:
        """The bytes that its graphs keep: of their inputs, and what all graphs on the GPU share."""
        graphs = [graph for graph in self._known.values() if graph is not None]
        arena = self._device.arena() if graphs else None
        return sum(graph.size for graph in graphs) + (arena.size if arena is not None else 0)

    def stop(self, reason: str) -> None:
        """Record nothing from now on, and say so once."""
        if not self.off:
            self.off = reason
            _logger.warning(
                "%s: cuda_graphs: calls are queued kernel by kernel, as without: %s",
                self._path,
                reason,
            )

    def give_up(self, reason: str) -> None:
        """The same, without the graphs that are there."""
        self.stop(reason)
        self.clear()

    def clear(self) -> None:
        """Drop all graphs. Their memory goes back to the pool, if no other model has any."""
        graphs = list(self._known.values())
        self._known.clear()
        self._worker = None  # its VM holds what the last call took
        for graph in graphs:
            if graph is not None:
                graph.drop()

    def of(self, sizes: Sizes, taken: Sequence[tuple[tuple[int, ...], str, int]]) -> Graph | None:
        """The graph for a call, perhaps one to be recorded; None: it is made as without graphs.

        Args:
            taken: shape, dtype and offset of each argument, and one more offset: the end.
        """
        key = (sizes, tuple(shape for shape, _, _ in taken))
        if key in self._known:
            self._known.move_to_end(key)
            graph = self._known[key]
            if graph is not None or self.off:
                return graph
            graph = Graph(self._device, taken[-1][2] if taken else 0)
            for shape, dtype, offset in taken[:-1]:
                graph.view(offset, shape, dtype)
            self._known[key] = graph
            return graph
        if not self.off:
            self._known[key] = None
            if len(self._known) > self._limit:
                _, oldest = self._known.popitem(last=False)
                if oldest is not None:
                    oldest.drop()
        return None

    # --- a call ---

    def run(self, graph: Graph, route: Route, sizes: Sizes, stream: int) -> list[Any] | None:
        """Where the results lie, once the stream comes to them; None where it cannot be recorded, and
        nothing was queued."""
        if not graph.ready:
            with self._device.measured():
                self._record(graph, route, sizes)
            if not graph.ready:
                self._forget(graph)
                return None
        graph.launch(stream)
        return list(graph.outputs)

    def copied(self, output: Output, stream: int) -> Any:
        """A result in memory of its own, from the pool."""
        size = output.numel() * self._dtype(output.dtype).itemsize
        if self._context is None:  # the model computes nothing that takes memory
            memory = self._device.empty(max(size, 1))
            made = self._device.view(memory, output.shape, output.dtype, 0)
        else:
            storage, shape = self._storage(max(size, 1)), self._shape(output.shape)
            made = self._tensor(storage, 0, shape, self._dtype(output.dtype))
        if size:
            self._device.cudart.copy(made.data_ptr(), output.data_ptr(), size, stream)
        return made

    def _forget(self, graph: Graph) -> None:
        for key, known in list(self._known.items()):
            if known is graph:
                del self._known[key]

    # --- recording ---

    def _record(self, graph: Graph, route: Route, sizes: Sizes) -> None:
        arguments = list(graph.arguments)
        if self._worker is None:
            self._worker = self._begin()
        worker = self._worker
        if route.sized:
            arguments.append(worker.shape(sizes[: route.sized]))
        cudart, arena = self._device.cudart, self._device.arena() or Arena()
        captured = ctypes.c_void_p()
        try:
            try:
                with self._on_stream() as stream, self._from(arena):
                    cudart.call("cudaStreamBeginCapture", stream, _RELAXED)
                    try:
                        outputs = [Output(each) for each in worker.run(route.number, *arguments)]
                    finally:
                        captured, problem = cudart.end_capture(stream)
                if problem:
                    raise CudaError(problem)
                self._require_kernels(captured)
                handle = ctypes.c_void_p()
                cudart.call(
                    "cudaGraphInstantiate", ctypes.byref(handle), captured, ctypes.c_ulonglong(0)
                )
            finally:
                if captured:
                    cudart.call("cudaGraphDestroy", captured)
        except Exception as error:  # tvm_ffi raises what its C++ side names
            self._worker = None  # its VM stopped in the middle
            cudart.forget_error()
            self.stop(f"recording a call failed: {_first_line(error)}")
            return
        self._device.keep_arena(arena)
        graph.made(handle, outputs, arena)
        listener = log("runtime")
        if listener is not None:
            shown = ", ".join(map(str, sizes[:-1]))
            listener.info("%s: a CUDA graph for sizes %s", self._path, shown or "that are fixed")

    def _begin(self) -> Worker:
        """A VM whose memory is from the arena while a call is recorded. A VM takes its functions from
        the global ones when it is made; another that is made meanwhile takes this one, which is as
        good for it."""
        of_vm, original = (
            weakref.ref(self),
            self._allocate,
        )  # the VM holds the functions, we hold it

        def allocate(context: Any, shape: Any, index: int, dtype: Any, scope: str) -> Any:
            graphs = of_vm()
            if graphs is None or not graphs._records_here() or index != 0:
                return original(context, shape, index, dtype, scope)
            if scope != "global":
                raise _NotRecorded(f"it takes memory of another kind: {scope}")
            return graphs._take(context, math.prod(shape) * graphs._dtype(dtype).itemsize)

        def watch(_: Any, name: str, before: bool, *__: Any) -> int:
            graphs = of_vm()
            if before and graphs is not None:
                graphs._require_harmless(str(name))
            return 0

        ffi = load_ffi()
        with LOADING:
            ffi.register_global_func(_ALLOC, allocate, override=True)
            try:
                worker = Worker(
                    self._code, Counts(len(self._code.entries)), [()] * len(self._code.entries)
                )
            finally:
                ffi.register_global_func(_ALLOC, self._allocate, override=True)
        worker.vm["set_instrument"](ffi.convert_func(watch))
        return worker

    def _records_here(self) -> bool:
        return self._recording is not None and self._recording[0] == threading.get_ident()

    def _take(self, context: Any, size: int) -> Any:
        """Memory for what the recorded call computes."""
        assert self._recording is not None
        self._context = context
        return self._recording[1].take(size, self._storage)

    def _storage(self, size: int) -> Any:
        """Memory from the pool."""
        byte = self._dtype("uint8")
        return self._allocate(self._context, self._shape((size,)), 0, byte, "global")

    def _require_harmless(self, name: str) -> None:
        """Of each function that the VM calls: it is the library's own, or known."""
        safe = self._safe.get(name)
        if safe is None:
            foreign = load_ffi().get_global_func(name, allow_missing=True) is not None
            safe = self._safe[name] = name in _HARMLESS or not foreign
        if not safe:
            raise _NotRecorded(f"the model calls {name}, which may read values on the host")

    @contextmanager
    def _from(self, arena: Arena) -> Iterator[None]:
        self._recording = (threading.get_ident(), arena)
        try:
            yield
        finally:
            self._recording = None

    @contextmanager
    def _on_stream(self) -> Iterator[ctypes.c_void_p]:
        stream = self._device.recorder()
        before = self._device.set_stream(stream.value or 0)
        try:
            yield stream
        finally:
            self._device.set_stream(before)

    def _require_kernels(self, captured: ctypes.c_void_p) -> None:
        """A copy that was recorded has not been made: what read it on the host had no values."""
        kinds = self._device.cudart.kinds_of(captured)
        if not kinds <= {_KERNEL, _MEMSET}:
            raise _NotRecorded(f"it queues nodes of kinds {sorted(kinds)}, kernels are {_KERNEL}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
