"""A call on a GPU: inputs there, the compiled code queued, results back.

Tensors that lie on the GPU are read where they lie, and the work is queued on the stream that their
library uses in this thread; the results are theirs as soon as the call returns, and computed when
that stream comes to them. What lies on the CPU goes over pinned memory, and the call waits.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.errors import Diagnostic, GuardError, InternalError
from .cuda import CudaError, Cudart, Device, GpuMemory, Weights, device_at
from .gpu_graphs import GpuGraphs, Graph, Output
from .gpu_states import GpuStates
from .guards import Sizes
from .library import load_ffi
from .memory import give_back
from .shutdown import wait_if_ending
from .tensors import ALIGNMENT, CPU, Seen, aligned_empty, bits_of, from_bits
from .worker import Worker

if TYPE_CHECKING:
    from ..artifacts.manifest import Entry
    from .calls import Calls
    from .mapped import Initial
    from .session import Session
    from .variants import Route

BLOCKING_ENVIRONMENT = "TCEXPORT_CUDA_BLOCKING"
_STEP = 256  # each input begins on such a boundary
_CUDA = 2
_POOLED_ALLOCATOR = 2
_NAIVE_ALLOCATOR = 1


class Pinned:
    """Memory of the host that the device copies by itself; it grows to the largest that was asked."""

    MOST = 64 << 20  # beyond, the driver stages the copy

    def __init__(self, cudart: Cudart) -> None:
        self._cudart = cudart
        self.address = 0
        self.bytes = np.empty(0, np.uint8)
        self._free: weakref.finalize[..., Pinned] | None = None

    def require(self, size: int) -> bool:
        """Whether ``size`` bytes are there now. Nothing may be in flight."""
        if size > self.MOST:
            return False
        if size > self.bytes.size:
            self.drop()
            size = 1 << (size - 1).bit_length()
            self.address = self._cudart.pinned(size)
            memory = (ctypes.c_uint8 * size).from_address(self.address)
            self.bytes = np.ctypeslib.as_array(memory)
            self._free = weakref.finalize(self, self._cudart.free_pinned, self.address)
            self._free.atexit = False  # the driver may have gone before
        return True

    def drop(self) -> None:
        self.bytes = np.empty(0, np.uint8)
        if self._free is not None:
            self._free()


class GpuStaging:
    """What a calling thread keeps on both sides of the way to the GPU."""

    VIEWS = 256

    def __init__(self, device: Device) -> None:
        self._device = device
        self.there = Pinned(device.cudart)
        self.back = Pinned(device.cudart)
        self._slab: Any = None
        self._size = 0
        self._views: dict[tuple[int, tuple[int, ...], str], Any] = {}
        device.holders.add(self)

    def memory(self) -> Any:
        return self._slab, dict(self._views)

    def require(self, size: int) -> int:
        """The address of at least ``size`` bytes on the GPU."""
        if size > self._size or self._slab is None:
            self._views.clear()
            self._slab = None
            self._size = 1 << max(12, (size - 1).bit_length())
            self._slab = self._device.empty(self._size)
        address: int = self._slab.data_ptr()
        return address

    def view(self, offset: int, shape: tuple[int, ...], dtype: str) -> Any:
        key = (offset, shape, dtype)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= self.VIEWS:
                self._views.clear()
            found = self._views[key] = self._device.view(self._slab, shape, dtype, offset)
        return found

    def drop(self) -> None:
        """Give all of it back."""
        self._views.clear()
        self._slab, self._size = None, 0
        self.there.drop()
        self.back.drop()


@dataclass(frozen=True)
class OnGpu:
    """A GPU, and the weights on it that the compiled code takes, with their names."""

    device: Device
    weights: Weights
    names: tuple[str, ...]

    def weights_of(self, entries: Sequence[Entry]) -> tuple[tuple[Any, ...], ...]:
        """The weights that each function takes."""
        tensors = dict(zip(self.names, self.weights.tensors, strict=True))
        return tuple(tuple(tensors[name] for name in entry.weights) for entry in entries)

    def caller(self, calls: Calls, graphs: int, library: memoryview, *, stateful: bool) -> GpuCalls:
        """How the model is called, with at most so many CUDA graphs; ``library`` is its code."""
        if not graphs:
            return GpuCalls(self, calls)
        made = GpuGraphs(self.device, calls.code, calls.path, graphs, library)
        if stateful:
            made.stop("the model keeps state, which has other addresses in each session")
        return GpuCalls(self, calls, made)

    @property
    def vm(self) -> tuple[int, ...]:
        """What a VM is told: the GPU, where its memory is pooled (cudaMalloc waits for the device),
        and the CPU, where shapes are computed."""
        return (_CUDA, self.device.index, _POOLED_ALLOCATOR, 1, 0, _NAIVE_ALLOCATOR)


class GpuCalls:
    """How a model is called on its GPU: `run` takes the place of `Calls.run`.

    Args:
        graphs: those of the model, where it was asked for them.
    """

    def __init__(self, place: OnGpu, calls: Calls, graphs: GpuGraphs | None = None) -> None:
        self._device, self._weights = place.device, place.weights
        self._calls = calls
        self._graphs = graphs
        self._blocking = os.environ.get(BLOCKING_ENVIRONMENT, "0") not in ("", "0")
        self._known: set[Sizes] = set()
        self._device.holders.add(self)

    def memory(self) -> Any:
        return self._calls.code  # its modules are unloaded from the device

    def states(self, initial: Initial) -> GpuStates:
        """Memory for the states of a session."""
        return GpuStates(self._device, [row for row, _ in initial])

    def used(self) -> GpuMemory:
        """Bytes on the GPU."""
        found = self._device.memory(self._weights.size)
        if self._graphs is None:
            return found
        with self._device.lock:
            return replace(found, graphs=self._graphs.count, graph_bytes=self._graphs.size)

    def release(self, workers: list[Worker]) -> int:
        """Give back what threads keep for their calls, the graphs, and what the pool has to spare; how
        many bytes of the GPU that was. ``workers`` is empty afterwards."""
        before = self.used().free
        self._device.synchronize()
        with self._device.lock, self._device.current():
            if self._graphs is not None:
                self._graphs.clear()
        give_back(workers)
        workers.clear()
        self._device.release()
        return max(0, self.used().free - before)

    def run(
        self, route: Route, leaves: Sequence[Any], sizes: Sizes, session: Session | None
    ) -> list[Any]:
        """The results: on the GPU if the inputs are there, else on the CPU.

        Raises:
            InternalError: TC601.
        """
        wait_if_ending()
        try:
            worker: Worker = self._calls.local.worker
        except AttributeError:
            worker = self._calls.start()
        staging: GpuStaging | None = worker.on_gpu
        if staging is None:
            staging = worker.on_gpu = GpuStaging(self._device)
        there = next((leaf for index, _, _ in route.taken if _on_gpu(leaf := leaves[index])), None)
        counts = worker.counts
        began = time.perf_counter_ns()
        states = () if session is None else session.tensors
        if session is not None:
            session.broken = True  # until all of the call is queued, or has run
        try:
            if there is None:
                results = self._from_host(route, worker, staging, leaves, sizes, states)
            else:
                results = self._on_device(route, worker, staging, leaves, sizes, states, there)
        except (GuardError, InternalError):
            raise
        except BaseException as error:
            self._device.settle()
            failure = self._calls.stopped(error, route.number, isinstance(error, CudaError))
            if failure is error:
                raise
            raise failure from None
        if session is not None:
            session.broken = False
        counts.calls[route.number] += 1
        counts.nanoseconds += time.perf_counter_ns() - began
        return results

    # --- inputs on the GPU ---

    def _on_device(
        self,
        route: Route,
        worker: Worker,
        staging: GpuStaging,
        leaves: Sequence[Any],
        sizes: Sizes,
        states: Sequence[Any],
        there: Seen,
    ) -> list[Any]:
        stream, shared = stream_of(there.source, self._device)
        arguments, places = [], []
        size = sum(_padded(_bytes(leaves[index])) for index, _, _ in route.taken)
        with self._device.turn(stream):
            graph = self._graph(route, sizes, [leaves[index].shape for index, _, _ in route.taken])
            offset = 0
            for number, (index, dtype, _) in enumerate(route.taken):
                leaf = leaves[index]
                tensor = leaf.tensor
                as_it_is = tensor.is_contiguous() and not tensor.data_ptr() % ALIGNMENT
                if not as_it_is or not _bytes(leaf) or graph is not None:
                    source = _compact(leaf, self._device, stream)
                    if graph is not None:
                        base, tensor = graph.base, graph.arguments[number]
                    else:
                        base = staging.require(size)
                        tensor = staging.view(offset, leaf.shape, dtype)
                    if _bytes(leaf):
                        copied = _bytes(leaf)
                        self._device.cudart.copy(base + offset, source.data_ptr(), copied, stream)
                        if not as_it_is:
                            worker.counts.copies += 1
                            worker.counts.copied_bytes += copied
                    offset += _padded(_bytes(leaf))
                arguments.append(tensor)
                places.append(tensor.data_ptr())
            tensors = self._call(route, worker, arguments, sizes, states, graph, stream)
            places += [state.data_ptr() for state in states]
            results = [self._own(tensor, places, stream) for tensor in tensors]
        if self._blocking or not shared:
            self._device.cudart.wait(stream)
        return results

    def _own(self, tensor: Any, places: list[int], stream: int) -> Any:
        """The tensor, or a copy where it is an argument, a weight or a graph's."""
        if type(tensor) is Output:
            assert self._graphs is not None
            return self._graphs.copied(tensor, stream)
        place = tensor.data_ptr()
        low, high = self._weights.span
        if place not in places and not low <= place < high:
            return tensor
        dtype, shape = str(tensor.dtype), tuple(tensor.shape)
        size = tensor.numel() * bits_of(dtype).itemsize
        memory = self._device.empty(max(size, 1))
        if size:
            self._device.cudart.copy(memory.data_ptr(), place, size, stream)
        return self._device.view(memory, shape, dtype, 0)

    # --- inputs on the CPU ---

    def _from_host(
        self,
        route: Route,
        worker: Worker,
        staging: GpuStaging,
        leaves: Sequence[Any],
        sizes: Sizes,
        states: Sequence[Any],
    ) -> list[Any]:
        arrays = [
            leaf.array() if type(leaf) is Seen else leaf
            for leaf in (leaves[index] for index, _, _ in route.taken)
        ]
        offsets, size = [], 0
        for array in arrays:
            offsets.append(size)
            size += _padded(array.nbytes)
        pinned = staging.there.require(size)
        if pinned:
            for array, offset in zip(arrays, offsets, strict=True):
                part = staging.there.bytes[offset : offset + array.nbytes]
                part.view(array.dtype).reshape(array.shape)[...] = array
        copy = self._device.cudart.copy
        with self._device.turn(0):
            graph = self._graph(route, sizes, [array.shape for array in arrays])
            if graph is not None:
                base, arguments = graph.base, graph.arguments
            else:
                base = staging.require(size)
                arguments = [
                    staging.view(offset, array.shape, dtype)
                    for array, offset, (_, dtype, _) in zip(
                        arrays, offsets, route.taken, strict=True
                    )
                ]
            if pinned and size:
                copy(base, staging.there.address, size, 0)
            elif size:
                for array, offset in zip(arrays, offsets, strict=True):
                    packed = np.ascontiguousarray(array)
                    copy(base + offset, packed.ctypes.data, packed.nbytes, 0)
            tensors = self._call(route, worker, arguments, sizes, states, graph, 0)
            results = [_empty_like(tensor) for tensor in tensors]
            wanted = sum(_padded(array.nbytes) for array, _ in results)
            pinned = staging.back.require(wanted)
            offset = 0
            for tensor, (array, _) in zip(tensors, results, strict=True):
                to = staging.back.address + offset if pinned else array.ctypes.data
                if array.nbytes:
                    copy(to, tensor.data_ptr(), array.nbytes, 0)
                offset += _padded(array.nbytes)
        self._device.cudart.wait(0)
        if pinned:
            offset = 0
            for array, _ in results:
                flat = array.reshape(-1).view(np.uint8)
                flat[:] = staging.back.bytes[offset : offset + array.nbytes]
                offset += _padded(array.nbytes)
        return [from_bits(array, dtype) for array, dtype in results]

    # --- both ---

    def _graph(self, route: Route, sizes: Sizes, shapes: Sequence[tuple[int, ...]]) -> Graph | None:
        if self._graphs is None:
            return None
        taken, offset = [], 0
        for (_, dtype, _), shape in zip(route.taken, shapes, strict=True):
            taken.append((tuple(shape), dtype, offset))
            offset += _padded(math.prod(shape) * bits_of(dtype).itemsize)
        return self._graphs.of(sizes, [*taken, ((), "", offset)])

    def _call(
        self,
        route: Route,
        worker: Worker,
        arguments: list[Any],
        sizes: Sizes,
        states: Sequence[Any],
        graph: Graph | None,
        stream: int,
    ) -> list[Any]:
        """What the compiled function returns; of a ``graph``, whose arguments these are then, what it
        leaves behind."""
        if graph is not None and self._graphs is not None:
            was_ready = graph.ready
            outputs = self._graphs.run(graph, route, sizes, stream)
            if outputs is not None:
                worker.counts.replays += was_ready
                return outputs
        if route.sized:
            arguments = [*arguments, worker.shape(sizes[: route.sized])]
        arguments = [*arguments, *states]
        if sizes in self._known:
            return worker.run(route.number, *arguments)
        with self._device.measured():  # memory is taken at sizes that are new
            tensors = worker.run(route.number, *arguments)
        if len(self._known) >= 4096:
            self._known.clear()
        self._known.add(sizes)
        return tensors


def _on_gpu(leaf: Any) -> bool:
    return type(leaf) is Seen and leaf.device != CPU


def _padded(size: int) -> int:
    return -(-size // _STEP) * _STEP


def _bytes(leaf: Seen) -> int:
    size: int = leaf.tensor.numel() * bits_of(leaf.dtype).itemsize
    return size


def _compact(leaf: Seen, device: Device, stream: int) -> Any:
    """The tensor in one piece: as it is, made so by its library (torch's ``contiguous``, cupy's
    ``copy``), or else by way of the host."""
    if leaf.tensor.is_contiguous():
        return leaf.tensor
    for name in ("contiguous", "copy"):
        method = getattr(leaf.source, name, None)
        if method is not None:
            tensor = load_ffi().from_dlpack(method())
            if tensor.is_contiguous():
                return tensor
    values = _fetched(leaf, device, stream)
    memory = device.empty(max(values.nbytes, 1))
    device.cudart.copy(memory.data_ptr(), values.ctypes.data, values.nbytes, stream)
    return memory


def _fetched(leaf: Seen, device: Device, stream: int) -> np.ndarray:
    dtype = bits_of(leaf.dtype)
    if not _bytes(leaf):
        return np.empty(leaf.shape, dtype)
    strides = leaf.tensor.strides
    span = 1 + sum((size - 1) * step for size, step in zip(leaf.shape, strides, strict=True))
    memory = np.empty(span, dtype)
    device.cudart.copy(memory.ctypes.data, leaf.tensor.data_ptr(), memory.nbytes, stream)
    device.cudart.wait(stream)
    steps = [step * dtype.itemsize for step in strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(memory, leaf.shape, steps))


def fetched(leaf: Seen) -> np.ndarray:
    """The values of a tensor on a GPU, copied to the host; waits for the stream that it is used on.

    Raises:
        InternalError: TC601, CUDA has failed.
    """
    device = device_at(leaf.device[1])
    stream, _ = stream_of(leaf.source, device)
    try:
        with device.turn(stream):
            return _fetched(leaf, device, stream)
    except CudaError as error:
        device.settle()
        raise InternalError(
            Diagnostic("TC601", f"indices on cuda:{device.index}: {error}")
        ) from None


def _empty_like(tensor: Any) -> tuple[np.ndarray, str]:
    """Memory of the host for a tensor of the GPU, and its dtype."""
    dtype = str(tensor.dtype)
    return aligned_empty(tuple(tensor.shape), bits_of(dtype)), dtype


# --- streams ----------------------------------------------------------------------------------------


def stream_of(source: Any, device: Device) -> tuple[int, bool]:
    """The stream that a tensor's library uses in this thread, and whether it is known.

    Where it is not, it is the default stream, for which DLPack makes producers get ready, and
    whoever queues work there waits for it.
    """
    api = getattr(type(source), "__dlpack_c_exchange_api__", None)
    if api is not None:
        return _work_stream(api, device.index), True
    if isinstance(source, device.tensor_class):
        return device.stream(), True
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(source, cupy.ndarray):
        return int(cupy.cuda.get_current_stream().ptr), True
    return 0, False


_FIFTH = 16 + 4 * 8  # where `current_work_stream` lies in DLPack's DLPackExchangeAPI (dlpack.h)
_WORK_STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


def _work_stream(capsule: Any, index: int) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api = pointer(capsule, b"dlpack_exchange_api")
    function = _WORK_STREAM(ctypes.c_void_p.from_address(api + _FIFTH).value or 0)
    stream = ctypes.c_void_p()
    if function(_CUDA, index, ctypes.byref(stream)):
        raise InternalError(Diagnostic("TC601", "the library of a tensor cannot say its stream"))
    return stream.value or 0
