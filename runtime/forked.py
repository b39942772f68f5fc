"""A thread's TVM pool in a forked child, whose worker threads stayed behind in the parent.

The pool is an object in the thread's own storage. In a child its destructor waits for workers that
are not there: the process would hang when it ends (glibc waits for whoever sleeps on a condition
variable that is destroyed, or for the thread that is joined). TVM has no call to let go of a pool,
so it is emptied where it lies: a vector of queues and a pointer to the threads, which the child
forgets. Afterwards TVM's own ``ResetThreadPool`` starts workers anew.

The place is found, and held against what is known of the pool, when the pool is made; a child only
writes there. Where it is not found (another C library, another TVM) the caller is told.

The object's fields (src/runtime/thread_pool.cc of TVM, in the order of the compiler's layout): the
workers that there are and those in use (int32 each), a bool, ``std::vector`` of the queues (begin,
end, end of its memory), ``std::unique_ptr`` of the threads.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_RESET = "_ZN3tvm7runtime9threading15ResetThreadPoolEv"
_FIELDS = struct.Struct("<ii?7x4Q")
_PT_TLS = 7


@dataclass(frozen=True)
class Pool:
    """A thread's pool: where it lies, and TVM's function that starts its workers anew."""

    address: int
    reset: Callable[[], None]

    def forget_workers(self) -> None:
        """In a child: nothing of the pool refers to the parent's threads any more. Until `reset`,
        TVM takes it for one that has the calling thread alone."""
        there = (ctypes.c_char * _FIELDS.size).from_address(self.address)
        workers, _, flag, *_ = _FIELDS.unpack(there.raw)
        there.raw = _FIELDS.pack(workers, 1, flag, 0, 0, 0, 0)


def find_pool() -> Pool | None:
    """The calling thread's pool; None where there is none with workers, or it cannot be told for
    certain."""
    try:
        storage = _storage()
    except (OSError, AttributeError):  # another C library
        return None
    found: list[Pool] = []
    for name, address, size in storage:
        try:
            library = ctypes.CDLL(name, mode=_NOLOAD)
            reset = getattr(library, _RESET)
        except (OSError, AttributeError):
            continue  # not TVM's runtime
        reset.argtypes, reset.restype = (), None
        data = ctypes.string_at(address, size)
        found += [
            Pool(address + at, reset)
            for at in range(0, size - _FIELDS.size + 1, 8)
            if _is_pool(data, at)
        ]
    return found[0] if len(found) == 1 else None


def _is_pool(data: bytes, at: int) -> bool:
    workers, used, _, begin, end, limit, threads = _FIELDS.unpack_from(data, at)
    return (
        2 <= workers <= 4096
        and 1 <= used <= workers
        and data[at + 8] in (0, 1)
        and begin > 0
        and end - begin == 8 * workers
        and end <= limit
        and threads > 0
    )


# --- the storage of a thread, by dl_iterate_phdr(3) -----------------------------------------------

_NOLOAD = 0x00002 | 0x00004  # RTLD_NOW | RTLD_NOLOAD


class _Header(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = (
        ("type", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("offset", ctypes.c_uint64),
        ("vaddr", ctypes.c_uint64), ("paddr", ctypes.c_uint64), ("filesz", ctypes.c_uint64),
        ("memsz", ctypes.c_uint64), ("align", ctypes.c_uint64),
    )  # fmt: skip


class _Object(ctypes.Structure):
    """dl_phdr_info; ``storage`` is where the calling thread has the object's variables."""

    _fields_ = (
        ("addr", ctypes.c_uint64), ("name", ctypes.c_char_p), ("headers", ctypes.POINTER(_Header)),
        ("count", ctypes.c_uint16), ("adds", ctypes.c_ulonglong), ("subs", ctypes.c_ulonglong),
        ("module", ctypes.c_size_t), ("storage", ctypes.c_void_p),
    )  # fmt: skip


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p
)


def _storage() -> list[tuple[str, int, int]]:
    """Name, address and size of the calling thread's storage of every loaded object."""
    found: list[tuple[str, int, int]] = []

    def look(info: Any, size: int, _: Any) -> int:
        each = info.contents
        if size >= ctypes.sizeof(_Object) and each.storage and each.name:
            for header in each.headers[: each.count]:
                if header.type == _PT_TLS:
                    name = each.name.decode("utf-8", "surrogateescape")
                    found.append((name, each.storage, header.memsz))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_Callback(look), None)
    return found
