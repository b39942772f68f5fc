"""CUDA in this process: its runtime library, TVM's part for GPUs, and what every GPU has once.

All models on one GPU share its weights, TVM's memory pool and an order: the pool gives memory out
again as soon as the last call that used it has been queued, so each call waits, on the device, for
the one before, whatever streams they are on.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.container import Bundle
from ..artifacts.errors import BundleError, Diagnostic, InternalError, UsageError
from ..artifacts.manifest import WEIGHTS_NAME
from ..artifacts.weights import Weight
from .library import load_ffi

if TYPE_CHECKING:
    from .gpu_graphs import Arena, GpuGraphs

CUDART = "libcudart.so.13"
POOL_ENVIRONMENT = "TCEXPORT_CUDA_POOL"
_WHEEL = "nvidia-cuda-runtime"
_KIND = 2  # DLPack's number for CUDA devices
_ALIGNMENT = 256
_ANY_DIRECTION = 4  # cudaMemcpyDefault
_NOT_READY = 600
_WITHOUT_TIMES = 2  # cudaEventDisableTiming
_NON_BLOCKING = 1  # cudaStreamNonBlocking
_LOCK = threading.RLock()


class CudaError(Exception):
    """What a function of CUDA's answered."""


class Cudart:
    """The functions of libcudart that are used here. Each raises CudaError when it fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cudaGetErrorName.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaError(f"{name} answers {self.name_of(status)}")

    def name_of(self, status: int) -> str:
        text = self._library.cudaGetErrorName(status)
        return text.decode() if text else str(status)

    def free_memory(self) -> tuple[int, int]:
        """The bytes that are free on the current device, and all that it has."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Queue a copy between any two of the host and the devices."""
        self.call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(to),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size),
            _ANY_DIRECTION,
            ctypes.c_void_p(stream),
        )

    def wait(self, stream: int) -> None:
        """Wait for all that was queued on a stream."""
        self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def query(self, event: ctypes.c_void_p) -> str:
        """The name of the error that the device is in; "" for none."""
        status = self._library.cudaEventQuery(event)
        return "" if status in (0, _NOT_READY) else self.name_of(status)

    def settle(self, event: ctypes.c_void_p) -> None:
        """Wait for an event, whatever comes of it: `query` tells."""
        self._library.cudaEventSynchronize(event)

    def pinned(self, size: int) -> int:
        """The address of new memory of the host that devices copy from and to by themselves."""
        memory = ctypes.c_void_p()
        self.call("cudaMallocHost", ctypes.byref(memory), ctypes.c_size_t(size))
        return memory.value or 0

    def free_pinned(self, memory: int) -> None:
        self.call("cudaFreeHost", ctypes.c_void_p(memory))

    # --- graphs ---

    def end_capture(self, stream: ctypes.c_void_p) -> tuple[ctypes.c_void_p, str]:
        """The graph of what was put on a stream, null where that failed, and the error's name."""
        graph = ctypes.c_void_p()
        status = self._library.cudaStreamEndCapture(stream, ctypes.byref(graph))
        return graph, f"cudaStreamEndCapture answers {self.name_of(status)}" if status else ""

    def kinds_of(self, graph: ctypes.c_void_p) -> set[int]:
        """The types (cudaGraphNodeType) of the nodes of a graph."""
        count, kind = ctypes.c_size_t(), ctypes.c_int()
        self.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        if count.value:
            self.call("cudaGraphGetNodes", graph, nodes, ctypes.byref(count))
        kinds = set()
        for node in nodes:
            self.call("cudaGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            kinds.add(kind.value)
        return kinds

    def destroy_graph(self, executable: ctypes.c_void_p) -> None:
        """Whatever comes of it: after an error of the device there is nothing to be done."""
        self._library.cudaGraphExecDestroy(executable)

    def forget_error(self) -> None:
        """Let later calls not find what an earlier one was told of."""
        self._library.cudaGetLastError()


def load_cudart(bundle: Bundle) -> Cudart:
    """The CUDA runtime library: one that is loaded already, the system's, or the wheel's.

    Raises:
        BundleError: TC424, there is none.
    """
    tried = []
    for mode, name in _places():
        try:
            return Cudart(ctypes.CDLL(name, mode=mode | os.RTLD_NOW | os.RTLD_GLOBAL))
        except OSError as error:
            if not mode:
                tried.append(str(error))
    raise BundleError(
        Diagnostic(
            "TC424",
            f"{bundle.path} was built for CUDA 13 and needs {CUDART}, which is not found",
            notes=tuple(tried),
            tries=(
                f"pip install '{_WHEEL}>=13,<14'",
                "put the folder that holds it into LD_LIBRARY_PATH",
                "device='cpu'",
            ),
        )
    )


def _places() -> Iterator[tuple[int, str]]:
    yield os.RTLD_NOLOAD, CUDART  # torch's own, for one
    yield 0, CUDART
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield 0, str(Path(folder, "cu13", "lib", CUDART))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield 0, str(Path(os.environ[name], "lib64", CUDART))


# --- what every GPU has once ------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuMemory:
    """Bytes on a GPU: the ``weights`` of this model (shared by all that were loaded from equal
    weights), the ``pool`` of this process that calls take their memory from, as measured when it
    grew, its ``limit``, and what is ``free`` of the ``total``. ``graphs`` is the number of CUDA graphs
    of this model, and ``graph_bytes`` what they keep: their inputs, and the part of the pool that they
    share with those of other models."""

    weights: int
    pool: int
    limit: int
    free: int
    total: int
    graphs: int = 0
    graph_bytes: int = 0


class Weights:
    """Tensors on a GPU, in one piece of its memory, for as long as a model has them."""

    def __init__(self, tensors: tuple[Any, ...], start: int, size: int) -> None:
        self.tensors = tensors
        self.span = (start, start + size)
        self.size = size

    def memory(self) -> Any:
        return self.tensors


class _WithoutOffset:
    """A tensor for `from_dlpack` whose data begins where its pointer points: compiled code refuses one
    that begins some bytes behind, as TVM's views do."""

    def __init__(self, tensor: Any) -> None:
        self._device = tensor.__dlpack_device__()
        self._capsule = tensor.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        made = pointer(
            self._capsule, b"dltensor"
        )  # a DLManagedTensor, which begins with the DLTensor
        data, offset = (
            ctypes.c_void_p.from_address(made),
            ctypes.c_uint64.from_address(made + _OFFSET),
        )
        data.value, offset.value = (data.value or 0) + offset.value, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return self._device


_OFFSET = 40  # where `byte_offset` lies in DLPack's DLTensor (dlpack.h)


class Device:
    """One GPU of this process.

    Attributes:
        index: its number; ``place`` the same as DLPack has it.
        tensor_class: tvm_ffi's own tensors.
        holders: what has memory of this GPU, and answers ``memory()``.
        graphs: of the models here, the `GpuGraphs` of each that has any.
        event: comes when all is done that was queued by the calls until now.
        lock: held while a call is queued.
    """

    def __init__(self, cudart: Cudart, index: int) -> None:
        ffi = load_ffi()
        self.cudart = cudart
        self.index = index
        self.lock = threading.RLock()
        self.handle = ffi.device(f"cuda:{index}")
        self.place = (_KIND, index)
        self.tensor_class: type = ffi.Tensor
        self._ffi = ffi
        self._process = os.getpid()
        self._alloc = ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._view = ffi.get_global_func("runtime.TVMTensorCreateView")
        self._clear = ffi.get_global_func("vm.builtin.memory_manager.clear")
        self._set_stream = ffi.core._env_set_current_stream
        self._weights: weakref.WeakValueDictionary[Any, Weights] = weakref.WeakValueDictionary()
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.graphs: weakref.WeakSet[GpuGraphs] = weakref.WeakSet()
        self._arena: weakref.ref[Arena] | None = None
        self._recorder = ctypes.c_void_p()
        self._lost: list[Any] = []
        self.event = ctypes.c_void_p()
        self._last: int | None = None  # the stream of the last call
        self.pool = 0
        with self.current():
            cudart.call("cudaEventCreateWithFlags", ctypes.byref(self.event), _WITHOUT_TIMES)
            self.total = cudart.free_memory()[1]
        self.limit = _pool_limit(self.total)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the thread's device; the one before is set again afterwards."""
        before = ctypes.c_int()
        self.cudart.call("cudaGetDevice", ctypes.byref(before))
        self.cudart.call("cudaSetDevice", self.index)
        try:
            yield
        finally:
            if before.value != self.index:
                self.cudart.call("cudaSetDevice", before.value)

    @contextmanager
    def turn(self, stream: int) -> Iterator[None]:
        """Queue work on a stream, behind all that was queued here before.

        Raises:
            InternalError: TC601, the process was forked, or work queued before has failed.
        """
        if os.getpid() != self._process:
            raise InternalError(
                Diagnostic(
                    "TC601",
                    f"the process was forked after cuda:{self.index} was used, and CUDA does not "
                    "survive a fork",
                    tries=("load the bundle in the child", "start processes by spawn"),
                )
            )
        with self.lock, self.current():
            self.raise_failure()
            if self._last is not None and self._last != stream:
                self.cudart.call("cudaStreamWaitEvent", ctypes.c_void_p(stream), self.event, 0)
            before = self.set_stream(stream)
            try:
                yield
            finally:
                self.set_stream(before)
                # Recorded after an error too: what was queued before it runs.
                self.cudart.call("cudaEventRecord", self.event, ctypes.c_void_p(stream))
                self._last = stream

    def raise_failure(self) -> None:
        """Raise what queued work has ended in, if it is known by now."""
        if self._last is None:
            return
        error = self.cudart.query(self.event)
        if error:
            self.keep_all()
            raise InternalError(
                Diagnostic(
                    "TC601",
                    f"a call that was queued on cuda:{self.index} before ended in {error}; what it "
                    "returned is not to be used, and neither is CUDA in this process",
                    tries=(
                        "m.synchronize() after each call, or TCEXPORT_CUDA_BLOCKING=1, says which",
                    ),
                )
            )

    def keep_all(self) -> None:
        """Never free what is allocated now: CUDA has failed, and TVM ends the process when a
        destructor of its cannot free memory."""
        self._lost.append([each.memory() for each in self.holders])

    def synchronize(self) -> None:
        """Wait for the last call that was queued, and with it for all before.

        Raises:
            InternalError: TC601, one of them failed.
        """
        with self.lock, self.current():
            self.cudart.settle(self.event)
            self.raise_failure()

    def settle(self) -> None:
        """Wait for what is queued, whatever becomes of it: an error is told already."""
        with self.lock, self.current():
            self.cudart.settle(self.event)
            if self._last is not None and self.cudart.query(self.event):
                self.keep_all()

    def empty(self, size: int) -> Any:
        """A tensor of that many bytes, not initialised, from CUDA itself."""
        return self._alloc(self._ffi.Shape((size,)), self._ffi.dtype("uint8"), self.handle, None)

    def view(self, slab: Any, shape: Sequence[int], dtype: str, offset: int) -> Any:
        """A tensor of ``dtype`` on a part of another's memory."""
        made = self._view(slab, self._ffi.Shape(shape), self._ffi.dtype(dtype), offset)
        return self._ffi.from_dlpack(_WithoutOffset(made)) if offset else made

    def stream(self) -> int:
        """The stream that tvm_ffi's own tensors are used on in this thread."""
        found: int = self._ffi.core._env_get_current_stream(_KIND, self.index)
        return found

    # --- memory ---

    def upload(self, bundle: Bundle, found: dict[str, Weight], names: tuple[str, ...]) -> Weights:
        """The named weights on this GPU: those that are there already, or copied from the map.

        Raises:
            BundleError: TC425, they do not fit.
        """
        if not names:
            return Weights((), 0, 0)
        manifest = bundle.manifest
        member = manifest.external_weights or next(
            each for each in manifest.members if each.name == WEIGHTS_NAME
        )
        key = (member.sha256, names)
        with self.lock, self.current():
            kept = self._weights.get(key)
            if kept is not None:
                return kept
            offsets, size = [], 0
            for name in names:
                offsets.append(size)
                size += -(-found[name].data.nbytes // _ALIGNMENT) * _ALIGNMENT
            self._require(bundle, size)
            slab = self.empty(max(size, 1))
            tensors = []
            for name, offset in zip(names, offsets, strict=True):
                weight = found[name]
                tensors.append(self.view(slab, weight.data.shape, weight.dtype, offset))
                if weight.data.nbytes:
                    start = slab.data_ptr() + offset
                    self.cudart.copy(start, weight.data.ctypes.data, weight.data.nbytes, 0)
            self.cudart.wait(0)
            kept = self._weights[key] = Weights(tuple(tensors), slab.data_ptr(), size)
            self.holders.add(kept)
            return kept

    def _require(self, bundle: Bundle, size: int) -> None:
        free, total = self.cudart.free_memory()
        if size > free:
            self.release()
            free, total = self.cudart.free_memory()
        if size > free:
            raise BundleError(
                Diagnostic(
                    "TC425",
                    f"{bundle.path} has weights of {size} bytes; found {free} bytes free of {total} "
                    f"on cuda:{self.index}",
                    tries=(
                        "end what else uses the GPU (nvidia-smi)",
                        "another GPU",
                        "device='cpu'",
                    ),
                )
            )

    @contextmanager
    def measured(self) -> Iterator[None]:
        """What is taken within is counted to the pool; beyond its limit the pool is emptied."""
        before = self.cudart.free_memory()[0]
        try:
            yield
        finally:
            self.pool += max(0, before - self.cudart.free_memory()[0])
            if self.pool > self.limit:
                self.release()
            if self.pool > self.limit:
                for each in list(self.graphs):
                    each.give_up(f"the graphs took the pool beyond its limit, {self.limit} bytes")
                self.release()

    def release(self) -> int:
        """Give the memory of TVM's pool that no tensor uses back to CUDA; how many bytes that was."""
        with self.lock, self.current():
            before = self.cudart.free_memory()[0]
            self._clear()
            given = max(0, self.cudart.free_memory()[0] - before)
            self.pool = max(0, self.pool - given)
            return given

    # --- recording (see `gpu_graphs`) ---

    def set_stream(self, stream: int) -> int:
        """The stream that compiled code uses in this thread; the one before."""
        before: int = self._set_stream(_KIND, self.index, stream)
        return before

    def recorder(self) -> ctypes.c_void_p:
        """A stream that nothing runs on: calls are recorded there. The default stream cannot be."""
        if not self._recorder:
            self.cudart.call(
                "cudaStreamCreateWithFlags", ctypes.byref(self._recorder), _NON_BLOCKING
            )
        return self._recorder

    def arena(self) -> Arena | None:
        """The memory that the graphs of all models here share; None while there are none."""
        return None if self._arena is None else self._arena()

    def keep_arena(self, arena: Arena) -> None:
        """It lives as long as one of the graphs that refer to it."""
        if self.arena() is not arena:
            self._arena = weakref.ref(arena)
            self.holders.add(arena)

    def memory(self, weights: int) -> GpuMemory:
        with self.current():
            free, total = self.cudart.free_memory()
        return GpuMemory(weights, self.pool, self.limit, free, total)


def _pool_limit(total: int) -> int:
    """TCEXPORT_CUDA_POOL, in bytes, or half of the device's memory.

    Raises:
        UsageError: TC008, not a number.
    """
    text = os.environ.get(POOL_ENVIRONMENT)
    if text is None:
        return total // 2
    if not text.isdecimal():
        raise UsageError(
            Diagnostic("TC008", f"{POOL_ENVIRONMENT}={text!r}: needs a number of bytes")
        )
    return int(text)


_devices: dict[int, Device] = {}
_cudart: Cudart | None = None


def device_of(bundle: Bundle, index: int, load_tvm: Callable[[], None]) -> Device:
    """The GPU with this number; at the first, its libraries are loaded.

    Args:
        load_tvm: loads TVM's part for CUDA, which finds CUDA's libraries by then.

    Raises:
        BundleError: TC424, a library is missing; TC420, it does not work.
    """
    global _cudart
    with _LOCK:
        if _cudart is None:
            cudart = load_cudart(bundle)
            load_tvm()
            _cudart = cudart
        if index not in _devices:
            try:
                _devices[index] = Device(_cudart, index)
            except CudaError as error:
                raise BundleError(
                    Diagnostic(
                        "TC420",
                        f"{bundle.path} was built for CUDA 13; cuda:{index} is there and cannot be "
                        f"used: {error}",
                        tries=("see what nvidia-smi says", "device='cpu'"),
                    )
                ) from None
        return _devices[index]


def device_at(index: int) -> Device:
    """The GPU with this number, which a model is on."""
    return _devices[index]
