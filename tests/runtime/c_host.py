"""Calls libtcexport.so through its plain C interface: ``python c_host.py LIBRARY``, steps on stdin.

Neither tcexport nor tvm_ffi of Python are imported. Input and output are pickles. A step is ``(what,
arguments)``; the answer to each is ``("error", code, text, kind)`` or ``("done", values)``, where
``values`` are pairs of a path and an array or ``(type, text)``.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Value(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("tensor", ctypes.POINTER(DLTensor)),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char_p),
    )


class Range(ctypes.Structure):
    _fields_ = (
        ("dim", ctypes.c_char_p),
        ("lo", ctypes.c_int64),
        ("hi", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("endless", ctypes.c_int),
    )


class Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int),
        ("keys", ctypes.POINTER(ctypes.c_char_p)),
        ("key_count", ctypes.c_size_t),
        ("memory_limit", ctypes.c_int64),
        ("serves", ctypes.POINTER(Range)),
        ("serve_count", ctypes.c_size_t),
    )


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
_TYPES = ("tensor", "none", "bool", "int", "float", "str")


class Host:
    def __init__(self, library: str) -> None:
        self.c = ctypes.CDLL(library)
        for name in ("load", "call", "session_new", "session_call", "session_reset",
                     "session_keep", "session_restore", "session_seed", "model_metrics"):  # fmt: skip
            getattr(self.c, f"tcexport_{name}").restype = ctypes.c_void_p
        for name in ("error_code", "error_text", "error_message", "input_path"):
            getattr(self.c, f"tcexport_{name}").restype = ctypes.c_char_p
        self.c.tcexport_results_count.restype = ctypes.c_size_t
        self.c.tcexport_input_count.restype = ctypes.c_size_t
        self.c.tcexport_results_at.restype = ctypes.POINTER(Value)
        self.model, self.session = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.c.tcexport_abi() == 2

    def step(self, what: str, argument: Any) -> Any:
        """Do one thing: "load", "session", "call", "session call", "seed", "reset", "keep", "restore",
        "metrics"."""
        results = ctypes.c_void_p()
        if what == "load":
            self.close()
            path, asked = argument
            options = _options(**asked)
            error = self.c.tcexport_load(
                path.encode(), ctypes.byref(options), ctypes.byref(self.model)
            )
        elif what == "inputs":
            count = self.c.tcexport_input_count(self.model)
            assert self.c.tcexport_input_path(self.model, ctypes.c_size_t(count)) is None
            return "done", [
                self.c.tcexport_input_path(self.model, ctypes.c_size_t(at)).decode()
                for at in range(count)
            ]
        elif what == "session":
            self.c.tcexport_session_free(self.session)
            self.session = ctypes.c_void_p()
            error = self.c.tcexport_session_new(self.model, ctypes.byref(self.session))
        elif what == "reset":
            error = self.c.tcexport_session_reset(self.session)
        elif what == "seed":
            error = self.c.tcexport_session_seed(self.session, ctypes.c_int64(argument))
        elif what == "metrics":
            error = self.c.tcexport_model_metrics(self.model, ctypes.byref(results))
        elif what == "keep":
            error = self.c.tcexport_session_keep(self.session, ctypes.byref(results))
        else:
            values, kept = _values(argument)
            count = ctypes.c_size_t(len(argument))
            if what == "restore":
                error = self.c.tcexport_session_restore(self.session, values, count)
            else:
                call, owner = {
                    "call": (self.c.tcexport_call, self.model),
                    "session call": (self.c.tcexport_session_call, self.session),
                }[what]
                error = call(owner, values, count, ctypes.byref(results))
            del kept
        if error:
            return self._failed(ctypes.c_void_p(error))
        return "done", self._taken(results) if results else None

    def close(self) -> None:
        self.c.tcexport_session_free(self.session)
        self.c.tcexport_model_free(self.model)
        self.model, self.session = ctypes.c_void_p(), ctypes.c_void_p()

    def _failed(self, error: ctypes.c_void_p) -> Any:
        text = self.c.tcexport_error_text(error).decode()
        assert self.c.tcexport_error_message(error).decode() in text
        code = self.c.tcexport_error_code(error).decode()
        answer = "error", code, text, self.c.tcexport_error_kind(error)
        self.c.tcexport_error_free(error)
        return answer

    def _taken(self, results: ctypes.c_void_p) -> list[Any]:
        values = []
        count = self.c.tcexport_results_count(results)
        assert not self.c.tcexport_results_at(results, ctypes.c_size_t(count))
        for at in range(count):
            value = self.c.tcexport_results_at(results, ctypes.c_size_t(at)).contents
            kind = _TYPES[value.type]
            shown = _array(value.tensor.contents) if kind == "tensor" else (
                kind, value.text.decode(), value.integer, value.real
            )  # fmt: skip
            values.append((value.path.decode(), shown))
        self.c.tcexport_results_free(results)
        return values


def _options(
    require_signature: list[str] | None = None,
    memory_limit: int = 0,
    serves: Mapping[str, tuple[Any, ...]] | None = None,
) -> Options:
    """As `tcexport.load` takes them."""
    keys = require_signature or []
    listed = (ctypes.c_char_p * len(keys))(*map(str.encode, keys))
    pointer = ctypes.cast(listed, ctypes.POINTER(ctypes.c_char_p))
    asked = [
        Range(dim.encode(), lo, hi or 0, *step or (1,), hi is None)
        for dim, (lo, hi, *step) in (serves or {}).items()
    ]
    ranges = (Range * len(asked))(*asked)
    return Options(
        0, None if require_signature is None else pointer, len(keys), memory_limit,
        None if serves is None else ctypes.cast(ranges, ctypes.POINTER(Range)), len(asked),
    )  # fmt: skip


def _values(arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """An array of `Value`, and what must live as long."""
    values, kept = (Value * len(arguments))(), []
    for value, (path, given) in zip(values, arguments.items(), strict=True):
        value.path = path.encode()
        if isinstance(given, np.ndarray):
            tensor = _tensor(given)
            kept.append((tensor, given))
            value.tensor = ctypes.pointer(tensor)
            continue
        value.type = _TYPES.index("none" if given is None else type(given).__name__)
        if isinstance(given, str):
            value.text = given.encode()
        elif isinstance(given, float):
            value.real = given
        elif given is not None:
            value.integer = given
    return values, kept


def _tensor(array: np.ndarray) -> DLTensor:
    size = array.dtype.itemsize
    assert all(stride % size == 0 for stride in array.strides)
    strides = None
    if not array.flags.c_contiguous:
        strides = (ctypes.c_int64 * array.ndim)(*(stride // size for stride in array.strides))
    return DLTensor(
        array.ctypes.data, 1, 0, array.ndim, _CODES[array.dtype.kind], 8 * size, 1,
        (ctypes.c_int64 * array.ndim)(*array.shape), strides, 0,
    )  # fmt: skip


def _array(tensor: DLTensor) -> np.ndarray:
    shape = tensor.shape[: tensor.ndim]
    dtype = np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    count = int(np.prod(shape, dtype=np.int64))
    bits = ctypes.string_at(tensor.data + tensor.byte_offset, count * dtype.itemsize)
    return np.frombuffer(bits, dtype).reshape(shape)


if __name__ == "__main__":
    host = Host(sys.argv[1])
    answers = [host.step(*each) for each in pickle.load(sys.stdin.buffer)]
    host.close()
    assert not {"tvm_ffi", "tcexport"}.intersection(sys.modules)
    pickle.dump(answers, sys.stdout.buffer)
