"""Tensors of any library at the border: seen as they are, handed to TVM, handed back.

Numpy arrays and DLPack producers are read where they lie. What compiled code cannot read there
(strided, or not on a 64-byte boundary: vector loads would fault) is copied, and the copy counted.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from .library import LOADING, load_ffi

_ffi = load_ffi()

ALIGNMENT = 64
CPU = (1, 0)  # DLPack's (device type, device id)

_DEVICES = {1: "cpu", 2: "cuda", 3: "cuda_host", 8: "metal", 10: "rocm", 13: "cuda_managed"}
# Numpy learned to export read-only arrays, with the versioned protocol, in 2.1.
VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
DLPACK_VERSION = (1, 0)

# dtypes without a numpy type: the unsigned integer that holds the bits, and DLPack's (code, bits).
_BITS: dict[str, tuple[str, int, int]] = {
    "bfloat16": ("uint16", 4, 16),
    "float8_e4m3fn": ("uint8", 10, 8),
    "float8_e5m2": ("uint8", 12, 8),
}
WITHOUT_NUMPY = frozenset(_BITS)

# Compiled code has no complex dtypes: it takes and gives such a tensor in these real ones, with a
# last axis of two, as it lies in memory.
COMPLEX = {"complex64": "float32", "complex128": "float64"}

Exporter = Callable[[Any, str], Any]


def bits_of(dtype: str) -> np.dtype:
    """Numpy's dtype of that name, or the one that holds its bits."""
    return np.dtype(_BITS[dtype][0] if dtype in _BITS else dtype)


class NotATensor(TypeError):
    """Why a value cannot be read as a tensor, and what to do about it."""

    def __init__(self, reason: str, attempt: str = "") -> None:
        super().__init__(reason)
        self.attempt = attempt


class Seen:
    """A tensor argument as the checks see it: ``dtype``, ``shape``, ``device``, and its TVM view.
    ``source`` is the argument itself, where it does not lie on the CPU."""

    __slots__ = ("device", "dtype", "shape", "source", "tensor")
    source: Any

    def __init__(self, tensor: Any, dtype: str, shape: tuple[int, ...], device: Any) -> None:
        self.tensor = tensor
        self.dtype = dtype
        self.shape = shape
        self.device = device

    def array(self) -> np.ndarray:
        """The values as a numpy view (bits, for a dtype that numpy does not have); a copy of them,
        where they do not lie on the CPU."""
        if self.device != CPU:
            from .gpu_call import fetched

            return fetched(self)
        return as_numpy_bits(self.tensor, self.dtype)

    def item(self) -> int:
        """The value of a tensor with one element; ValueError for more."""
        return int(self.array().item())


def device_name(device: tuple[int, int]) -> str:
    kind, index = device
    name = _DEVICES.get(kind, f"device {kind}")
    return name if device == CPU else f"{name}:{index}"


# --- towards TVM ------------------------------------------------------------------------------------


def from_numpy(array: np.ndarray) -> Any:
    """A TVM tensor on the memory of a numpy array, read-only or not, strided or not."""
    if VERSIONED:
        return _ffi.from_dlpack(array.__dlpack__(max_version=DLPACK_VERSION))
    return _ffi.from_dlpack(array if array.flags.writeable else _alias(array))


def _alias(array: np.ndarray) -> np.ndarray:
    """A writable array on the memory of a read-only one, for the protocol that knows no other.
    Nothing writes to it: TVM's inputs are only read."""
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    holder = type("_Alias", (), {})()
    holder.__array_interface__ = interface
    holder.owner = array
    return np.asarray(holder)


def from_bits(bits: np.ndarray, dtype: str) -> Any:
    """A TVM tensor of ``dtype`` on the memory of an array that holds its bits."""
    if dtype not in _BITS:
        return from_numpy(bits)
    _, code, width = _BITS[dtype]
    if not VERSIONED and not bits.flags.writeable:
        bits = _alias(bits)
    capsule = bits.__dlpack__(max_version=DLPACK_VERSION) if VERSIONED else bits.__dlpack__()
    _set_dtype(capsule, code, width)
    return _ffi.from_dlpack(capsule)


def _set_dtype(capsule: Any, code: int, width: int) -> None:
    """Change the dtype in a DLPack capsule to another of the same width. The struct is in dlpack.h:
    the dtype lies 20 bytes into DLTensor, which is 32 bytes into the versioned struct."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
    versioned = bool(valid(capsule, b"dltensor_versioned"))
    start = pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    field = (ctypes.c_uint8 * 2).from_address(start + (32 if versioned else 0) + 20)
    if field[1] != width:
        raise ValueError(f"a dtype of {field[1]} bits cannot be taken for one of {width}")
    field[0] = code


def see(value: Any, elsewhere: tuple[int, int] = CPU) -> Seen:
    """Look at a tensor argument without copying it.

    Args:
        elsewhere: another device beside the CPU, whose tensors are looked at as well.

    Raises:
        NotATensor: it is none, or one whose numbers DLPack does not carry.
    """
    if isinstance(value, np.ndarray):
        return _see_numpy(value)
    if not hasattr(value, "__dlpack__"):
        raise NotATensor(_no_tensor(value), "")
    if getattr(value, "requires_grad", False):
        raise NotATensor("a tensor that requires grad", "detach() it")
    # A lazily negated or conjugated tensor exports the memory as it is, without the sign.
    for flag, attempt in (("is_neg", "resolve_neg() it"), ("is_conj", "resolve_conj() it")):
        if callable(getattr(value, flag, None)) and getattr(value, flag)():
            raise NotATensor(f"a tensor with {flag}() set", attempt)
    try:
        if not hasattr(value, "__dlpack_c_exchange_api__"):
            device = tuple(map(int, value.__dlpack_device__()))
            if device not in (CPU, elsewhere):
                return Seen(None, "", (), device)
        tensor = _ffi.from_dlpack(value)
    except Exception as error:  # whatever the producer raises: it does not export this tensor
        reason = str(error).strip().splitlines()
        raise NotATensor(
            f"a {type(value).__name__} that DLPack does not carry ({reason[0] if reason else ''})"
        ) from None
    if not tensor.data_ptr() and tensor.numel():
        # Such as torch's fake tensors, which have a shape alone, and its zeros that take no memory.
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise NotATensor(f"a tensor without data ({kind})", "a tensor with memory: torch.zeros(…)")
    try:
        dtype = str(tensor.dtype)
    except ValueError:  # one that TVM has no name for: complex numbers, among others
        name = str(getattr(value, "dtype", "unknown")).removeprefix("torch.")
        if name in COMPLEX:
            return Seen(tensor, name, tensor.shape, tensor.__dlpack_device__())
        return Seen(None, f"{name} (not a dtype of bundles)", tensor.shape, CPU)
    seen = Seen(tensor, dtype, tensor.shape, tensor.__dlpack_device__())
    if seen.device != CPU:
        seen.source = value
    return seen


def _no_tensor(value: Any) -> str:
    if isinstance(value, np.generic):
        return f"a numpy scalar ({type(value).__name__})"
    return "None" if value is None else f"a {type(value).__name__}"


def _see_numpy(array: np.ndarray) -> Seen:
    # Not np.ma, which numpy imports where it is first asked for: a child that was forked during that
    # import would wait for it for ever.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(array, masked):
        raise NotATensor("a masked array", "fill it: .filled(value)")
    plain = array.view(np.ndarray)
    dtype = plain.dtype
    if dtype.name in _BITS and dtype.kind != "u":
        bits = plain.view(_BITS[dtype.name][0])
        return Seen(from_bits(bits, dtype.name), dtype.name, plain.shape, CPU)
    if not dtype.isnative or dtype.kind not in "biufc":
        # No tensor behind it: the dtype alone tells that it does not fit.
        name = (
            f"{dtype.str} (not this machine's byte order)" if dtype.kind in "biufc" else dtype.name
        )
        return Seen(None, name, plain.shape, CPU)
    return Seen(from_numpy(plain), dtype.name, plain.shape, CPU)


# --- copies -----------------------------------------------------------------------------------------


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A contiguous array on a 64-byte boundary, not initialised."""
    size = dtype.itemsize
    for length in shape:
        size *= length
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def empty_tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """A TVM tensor without elements. Its strides are those that TVM works out from the shape: what
    other libraries make up for an empty tensor does not count as compact there."""
    bits = bits_of(dtype)
    strides = [bits.itemsize]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    memory = aligned_empty((ALIGNMENT,), bits)
    return from_bits(np.lib.stride_tricks.as_strided(memory, shape, strides), dtype)


def in_parts(array: np.ndarray, dtype: str) -> Any:
    """What compiled code takes for a complex array, which lies contiguous: a TVM tensor on it."""
    shape = (*array.shape, 2)
    if not array.size:
        return empty_tensor(shape, COMPLEX[dtype])
    return from_numpy(np.ascontiguousarray(array).view(COMPLEX[dtype]).reshape(shape))


class Slot(NamedTuple):
    """Aligned memory, and the TVM tensor on it, with its address; ``key`` are shape and dtype.
    ``small``: it is kept for the next call."""

    memory: np.ndarray
    tensor: Any
    place: int
    nbytes: int
    small: bool
    key: tuple[Any, str]


class Staging:
    """Aligned memory that copies of small inputs use again; one for each calling thread.

    A slot is taken out of ``free`` while it is in use, so that a call from within a call (a signal
    handler, a finalizer) gets memory of its own.
    """

    LARGEST = 1 << 18
    SLOTS = 64

    def __init__(self) -> None:
        self.free: dict[tuple[Any, str], Slot] = {}

    def copy(self, source: np.ndarray, dtype: str) -> Slot:
        """A slot that holds the values of ``source``.

        Args:
            source: the values; for a dtype that numpy does not have, their bits.
            dtype: the contract's name of the dtype.
        """
        slot = self.free.pop((source.shape, dtype), None) or self._new_slot(source, dtype)
        slot.memory[...] = source
        return slot

    def _new_slot(self, source: np.ndarray, dtype: str) -> Slot:
        if len(self.free) >= self.SLOTS:
            self.free.clear()
        bits = np.dtype(_BITS[dtype][0]) if dtype in _BITS else source.dtype
        memory = aligned_empty(source.shape, bits)
        tensor = from_bits(memory, dtype)
        small = memory.nbytes <= self.LARGEST
        key = (source.shape, dtype)
        return Slot(memory, tensor, tensor.data_ptr(), memory.nbytes, small, key)

    def give_back(self, slot: Slot) -> None:
        """Let the next copy of this shape and dtype use the memory."""
        if slot.small:
            self.free[slot.key] = slot


# --- back from TVM ----------------------------------------------------------------------------------


class _Capsule:
    """Something that answers __dlpack__ with a capsule made before."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def as_numpy_bits(tensor: Any, dtype: str) -> np.ndarray:
    """A numpy view of a TVM tensor, or of a result that `to_numpy` made; of its bits, when numpy does
    not have its dtype."""
    if isinstance(tensor, np.ndarray):
        return tensor.view(bits_of(dtype))
    if dtype not in _BITS:
        return np.from_dlpack(tensor)
    capsule = tensor.__dlpack__()
    _set_dtype(capsule, 1, _BITS[dtype][2])
    return np.from_dlpack(_Capsule(capsule))


def copy_of(tensor: Any) -> Any:
    """A TVM tensor with the same values in memory of its own."""
    dtype = str(tensor.dtype)
    return Staging().copy(as_numpy_bits(tensor, dtype), dtype).tensor


def to_numpy(tensor: Any, dtype: str) -> np.ndarray:
    """A TVM tensor as a numpy array that keeps its memory alive and can be written to.

    Raises:
        ModuleNotFoundError: a dtype that only the package ml_dtypes gives numpy.
    """
    if dtype in _BITS:
        return as_numpy_bits(tensor, dtype).view(getattr(_ml_dtypes(), dtype))
    array = np.from_dlpack(tensor)
    if dtype in COMPLEX:
        array = array.view(dtype).reshape(array.shape[:-1])
    return array if array.flags.writeable else array.copy()


def _ml_dtypes() -> Any:
    first = "ml_dtypes" not in sys.modules  # later calls wait for no load
    with LOADING if first else nullcontext():
        import ml_dtypes
    return ml_dtypes


def exporter_of(value: Any) -> Exporter:
    """How results go back to the library that ``value`` comes from: through its ``from_dlpack``, or
    as they are (with ``__dlpack__``) when it has none. Takes a TVM tensor and its dtype."""
    if hasattr(value, "__array_namespace__"):
        homes = [value.__array_namespace__()]
    else:
        # The modules of its class and the bases; they are imported already.
        names = [base.__module__.partition(".")[0] for base in type(value).__mro__]
        homes = [sys.modules.get(name) for name in names]
    for home in homes:
        found = getattr(home, "from_dlpack", None)
        if found is not None:
            return lambda tensor, dtype: found(
                to_numpy(tensor, dtype) if dtype in COMPLEX else tensor
            )
    return lambda tensor, dtype: to_numpy(tensor, dtype) if dtype in COMPLEX else tensor
