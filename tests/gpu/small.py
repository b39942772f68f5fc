"""Small models and what their tests look at: contracts, tensors on the stand-in, numbers by hand."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tcexport.artifacts.contract import Contract, IndexGuard, Origin, TensorInput, TensorOutput
from tcexport.runtime.cuda import device_at
from tcexport.runtime.library import load_ffi

from ..runtime.bundles import add_weight, compiled, contract_of, dim

WEIGHT = np.arange(4, dtype=np.float32)
TABLE = np.arange(512 * 8, dtype=np.float32).reshape(512, 8)


def added_contract() -> Contract:
    return contract_of(
        {"x": TensorInput("x", "float32", ("n", 4))},
        [TensorOutput("out", "float32", ("n", 4), 0)],
        [dim("n", 0, 0, 1, 4096)],
    )


def gathered_contract() -> Contract:
    return contract_of(
        {"ids": TensorInput("ids", "int64", ("b", "s"))},
        [
            TensorOutput("rows", "float32", ("b", "s", 8), 0),
            TensorOutput("ids", "int64", ("b", "s"), 1),
            TensorOutput("table", "float32", (512, 8), 2),
        ],
        [dim("b", 0, 0, 1, 8), dim("s", 0, 1, 1, 512)],
        index_guards=(IndexGuard(0, 0, 511, Origin("rows of the table")),),
    )


def long_chain(builder: Any) -> None:
    """``main(x[n, 4], w[4]) = tanh(x + w) @ ones``: several kernels, so that memory is taken."""
    from tvm import relax, tirx

    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    w = relax.Var("w", relax.TensorType((4,), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            h = builder.emit(relax.op.tanh(relax.op.add(x, w)))
            h = builder.emit(relax.op.nn.softmax(h))
            out = builder.emit_output(relax.op.nn.softmax(relax.op.multiply(h, x)))
        builder.emit_func_output(out)


def by_hand(x: np.ndarray) -> np.ndarray:
    h = np.tanh(x + WEIGHT)
    for factor in (1, x):
        e = np.exp(h * factor)
        h = e / e.sum(1, keepdims=True)
    return h


_kept: dict[str, bytes] = {}


def compiled_add() -> bytes:
    if "add" not in _kept:
        _kept["add"] = compiled(add_weight)
    return _kept["add"]


def used(libraries: tuple[ctypes.CDLL, ctypes.CDLL], device: int = 0) -> int:
    libraries[0].standin_used.restype = ctypes.c_size_t
    return int(libraries[0].standin_used(device))


def on_device(array: np.ndarray, index: int = 0, pad: int = 0) -> Any:
    """A tensor of tvm_ffi's on the GPU, ``pad`` bytes behind an aligned address."""
    device = device_at(index)
    slab = device.empty(array.nbytes + pad + 1)
    with device.current():
        device.cudart.copy(slab.data_ptr() + pad, array.ctypes.data, array.nbytes, 0)
        device.cudart.wait(0)
    return device.view(slab, array.shape, array.dtype.name, pad)


def to_host(tensor: Any, index: int = 0, stream: int = 0) -> np.ndarray:
    device = device_at(index)
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    with device.current():
        device.cudart.copy(array.ctypes.data, tensor.data_ptr(), array.nbytes, stream)
        device.cudart.wait(stream)
    return array


class Foreign:
    """A tensor of a library whose streams nobody knows."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def strided(tensor: Any) -> Any:
    """Every other row of a tensor of 8 rows."""
    capsule = tensor.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = b"dltensor_versioned" if "versioned" in repr(capsule) else b"dltensor"
    start = get(capsule, name) + (32 if name != b"dltensor" else 0)
    for at, value in ((24, 4), (32, 2 * tensor.shape[1])):  # shape and strides of a DLTensor
        ctypes.c_int64.from_address(
            ctypes.c_void_p.from_address(start + at).value or 0
        ).value = value
    box = type("Box", (), {"__dlpack__": lambda self, **_: capsule})()
    return Foreign(load_ffi().from_dlpack(box))
