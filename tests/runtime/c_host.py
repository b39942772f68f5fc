"""Calls libtcexport.so through its plain C interface: ``python c_host.py LIBRARY``, steps on stdin.

Neither tcexport nor tvm_ffi of Python are imported. Input and output are pickles. A step is ``(what,
arguments)``; the answer to each is ``("error", code, text, kind)`` or ``("done", values)``, where
``values`` are pairs of a path and an array or ``(type, text)``. An argument of a call may be a pair of
an array and a dict: fields of its DLTensor, or the ``type`` of the value, that are to be others.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np


def laid(
    data: bytes,
    place: int,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
) -> np.ndarray:
    """An array as it lay in memory: ``data`` from an address ``place`` beyond a boundary of 64 bytes,
    and the first element ``offset`` bytes behind its begin."""
    memory = np.empty(len(data) + 128, np.uint8)
    start = -memory.ctypes.data % 64 + place
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return np.ndarray(shape, dtype, memory, start + offset, strides)


def arrays_of(value: Any) -> Any:
    """The same with arrays for what is ``{"laid": …}``."""
    if isinstance(value, dict):
        if value.keys() == {"laid"}:
            return laid(*value["laid"])
        return {key: arrays_of(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(arrays_of(each) for each in value)
    return value


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
        ("device", ctypes.c_char_p),
        ("variant", ctypes.c_char_p),
        ("on_violation", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("count_sizes", ctypes.c_int),
    )


Violation = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Value), ctypes.c_size_t, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLPack's
_KINDS = {code: kind for kind, code in _CODES.items()}
_TYPES = ("tensor", "none", "bool", "int", "float", "str")


class Host:
    def __init__(self, library: str) -> None:
        self.c = ctypes.CDLL(library)
        for name in ("load", "call", "session_new", "session_call", "session_reset",
                     "session_keep", "session_restore", "session_seed", "model_metrics",
                     "model_seen", "release_memory"):  # fmt: skip
            getattr(self.c, f"tcexport_{name}").restype = ctypes.c_void_p
        for name in ("error_code", "error_text", "error_message", "input_path", "results_variant"):
            getattr(self.c, f"tcexport_{name}").restype = ctypes.c_char_p
        self.c.tcexport_results_count.restype = ctypes.c_size_t
        self.c.tcexport_input_count.restype = ctypes.c_size_t
        self.c.tcexport_results_at.restype = ctypes.POINTER(Value)
        self.model, self.session = ctypes.c_void_p(), ctypes.c_void_p()
        self.second = ctypes.c_void_p()
        self.variant, self.told = "", []
        self.listener = Violation(self._told)
        assert self.c.tcexport_abi() == 3

    def step(self, what: str, argument: Any) -> Any:
        """Do one thing: "load", "second" (loads the model that answers refused calls), "session",
        "call", "session call", "seed", "reset", "keep", "restore", "metrics", "seen", "release";
        "told": what the listener was told; "variant": that of the last results; "nulls"; "at once": a
        kind of call from several threads, with arguments for each; "in a child": a step in a process
        that is forked for it; "with little memory": a call."""
        results = ctypes.c_void_p()
        if what == "load":
            self.close()
            path, asked = argument
            options = self._options(**asked)
            error = self.c.tcexport_load(
                path.encode(), ctypes.byref(options), ctypes.byref(self.model)
            )
        elif what == "second":
            error = self.c.tcexport_load(argument.encode(), None, ctypes.byref(self.second))
        elif what in ("told", "variant"):
            return "done", self.variant if what == "variant" else [*self.told]
        elif what == "release":
            return "done", self._released()
        elif what == "nulls":
            return "done", self._nulls()
        elif what == "at once":
            return "done", self._at_once(*argument)
        elif what == "in a child":
            return self._in_a_child(*argument)
        elif what == "with little memory":
            return self._with_little_memory(argument)
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
        elif what == "seen":
            error = self.c.tcexport_model_seen(self.model, ctypes.byref(results))
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

    def _at_once(self, what: str, calls: list[list[Any]]) -> list[list[Any]]:
        """What each thread is answered, of its own calls."""
        answers: list[list[Any]] = [[] for _ in calls]
        ready = threading.Barrier(len(calls))

        def work(mine: list[Any], into: list[Any]) -> None:
            ready.wait()
            into += [self.step(what, argument) for argument in mine]

        pairs = zip(calls, answers, strict=True)
        threads = [threading.Thread(target=work, args=each) for each in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def _in_a_child(self, what: str, argument: Any) -> Any:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, pickle.dumps(self.step(what, argument)))
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return pickle.loads(answer)

    def _with_little_memory(self, argument: Any) -> Any:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
        try:
            return self.step("call", argument)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def _options(self, on_violation: bool = False, **asked: Any) -> Options:
        options = _options(**asked)
        if on_violation:
            options.on_violation = ctypes.cast(self.listener, ctypes.c_void_p)
            options.context = 17
        return options

    def _told(
        self, context: int, values: Any, count: int, refusal: int, results: Any
    ) -> int | None:
        """The listener: notes the refusal, and has the second model answer, where there is one."""
        code = self.c.tcexport_error_code(ctypes.c_void_p(refusal)).decode()
        self.told.append((code, [values[at].path.decode() for at in range(count)], context))
        if not self.second:
            return None
        answer: int | None = self.c.tcexport_call(
            self.second, values, ctypes.c_size_t(count), results
        )
        return answer

    def _released(self) -> tuple[int, int]:
        """By how many bytes the process became smaller; and once more."""
        given = []
        for _ in range(2):
            count = ctypes.c_int64()
            assert not self.c.tcexport_release_memory(self.model, ctypes.byref(count))
            given.append(count.value)
        return given[0], given[1]

    def _nulls(self) -> list[tuple[str, str]]:
        """What is said to NULL wherever something is needed, for each function."""
        c, somewhere = self.c, ctypes.byref(ctypes.c_void_p())
        one, seed = ctypes.c_size_t(1), ctypes.c_int64(1)
        values, kept = _values({"x": np.ones((1, 4), np.float32)})
        errors = [
            c.tcexport_load(None, None, somewhere),
            c.tcexport_load(b"m.tcpkg", None, None),
            c.tcexport_call(None, values, one, somewhere),
            c.tcexport_call(self.model, None, one, somewhere),
            c.tcexport_call(self.model, values, one, None),
            c.tcexport_model_metrics(None, somewhere),
            c.tcexport_model_metrics(self.model, None),
            c.tcexport_model_seen(None, somewhere),
            c.tcexport_model_seen(self.model, None),
            c.tcexport_release_memory(None, None),
            c.tcexport_session_new(None, somewhere),
            c.tcexport_session_new(self.model, None),
            c.tcexport_session_call(None, values, one, somewhere),
            c.tcexport_session_call(self.session, None, one, somewhere),
            c.tcexport_session_call(self.session, values, one, None),
            c.tcexport_session_seed(None, seed),
            c.tcexport_session_reset(None),
            c.tcexport_session_keep(None, somewhere),
            c.tcexport_session_keep(self.session, None),
            c.tcexport_session_restore(None, values, one),
            c.tcexport_session_restore(self.session, None, one),
        ]
        for options in (
            Options(keys=(ctypes.c_char_p * 1)(None), key_count=1),
            Options(serves=(Range * 1)(Range(None, 1, 2)), serve_count=1),
        ):
            errors.append(c.tcexport_load(b"m.tcpkg", ctypes.byref(options), somewhere))
        values[0].path = None
        errors.append(c.tcexport_call(self.model, values, one, somewhere))
        values[0].path, values[0].tensor = b"x", None
        errors.append(c.tcexport_call(self.model, values, one, somewhere))
        values[0].type = _TYPES.index("str")
        errors.append(c.tcexport_call(self.model, values, one, somewhere))
        del kept
        for free in ("error", "results", "model", "session"):
            getattr(c, f"tcexport_{free}_free")(None)
        assert c.tcexport_results_count(None) == c.tcexport_input_count(None) == 0
        assert not c.tcexport_results_at(None, one) and not c.tcexport_input_path(None, one)
        assert not c.tcexport_error_code(None) and not c.tcexport_results_variant(None)
        assert all(errors)
        return [self._failed(ctypes.c_void_p(each))[1:3] for each in errors]

    def _failed(self, error: ctypes.c_void_p) -> Any:
        text = self.c.tcexport_error_text(error).decode()
        assert self.c.tcexport_error_message(error).decode() in text
        code = self.c.tcexport_error_code(error).decode()
        answer = "error", code, text, self.c.tcexport_error_kind(error)
        self.c.tcexport_error_free(error)
        return answer

    def _taken(self, results: ctypes.c_void_p) -> list[Any]:
        values = []
        self.variant = self.c.tcexport_results_variant(results).decode()
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
    threads: int = 0,
    require_signature: list[str] | None = None,
    memory_limit: int = 0,
    serves: Mapping[str, tuple[Any, ...]] | None = None,
    device: str | None = None,
    variant: str | None = None,
    count_sizes: bool = False,
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
        threads, None if require_signature is None else pointer, len(keys), memory_limit,
        None if serves is None else ctypes.cast(ranges, ctypes.POINTER(Range)), len(asked),
        None if device is None else device.encode(), None if variant is None else variant.encode(),
        None, None, count_sizes,
    )  # fmt: skip


def _values(arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """An array of `Value`, and what must live as long."""
    values, kept = (Value * len(arguments))(), []
    for value, (path, given) in zip(values, arguments.items(), strict=True):
        value.path = path.encode()
        if isinstance(given, tuple):
            given, fields = given
            tensor = _tensor(given)
            kept.append((tensor, given))
            value.tensor = ctypes.pointer(tensor)
            value.type = fields.pop("type", 0)
            for name, other in fields.items():
                if name in ("shape", "strides"):
                    other = (ctypes.c_int64 * len(other))(*other)
                setattr(tensor, name, other)
            continue
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
    answers = [host.step(*arrays_of(each)) for each in pickle.load(sys.stdin.buffer)]
    host.close()
    assert not {"tvm_ffi", "tcexport"}.intersection(sys.modules)
    pickle.dump(answers, sys.stdout.buffer)
