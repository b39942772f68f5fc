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


def find_pool(runtime: ctypes.CDLL | None) -> Pool | None:
    """The calling thread's pool; None where there is none with workers, or it cannot be told for
    certain.

    Args:
        runtime: libtvm_runtime, as it was loaded.
    """
    if runtime is None:
        return None
    try:
        address, size = _storage(runtime)
        reset = getattr(runtime, _RESET)
    except (OSError, AttributeError):  # another C library, another TVM
        return None
    if not address:
        return None
    reset.argtypes, reset.restype = (), None
    data = ctypes.string_at(address, size)
    last = size - _FIELDS.size
    found = [Pool(address + at, reset) for at in range(0, last + 1, 8) if _is_pool(data, at)]
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


# --- the storage of a thread, by dlinfo(3) ----------------------------------------------------------
# Not by dl_iterate_phdr(3): it would call back into Python, and wait for the interpreter with the lock
# that a dlopen in another thread may be waiting for with the interpreter in its hands.

_LINK_MAP, _TLS_DATA = 2, 10  # RTLD_DI_LINKMAP, RTLD_DI_TLS_DATA
_HEADER = struct.Struct("<32xQ14xHH")  # of Elf64_Ehdr: e_phoff, e_phentsize, e_phnum
_PROGRAM = struct.Struct("<I36xQ")  # of Elf64_Phdr: p_type, p_memsz


def _storage(library: ctypes.CDLL) -> tuple[int, int]:
    """Where the calling thread has a library's variables (0: it has used none), and their size.

    Raises:
        OSError: the C library does not tell.
        AttributeError: it has no dlinfo.
    """
    address = _asked(library, _TLS_DATA) or 0
    link_map = _asked(library, _LINK_MAP)
    base = ctypes.c_void_p.from_address(link_map).value if link_map else None
    if not base or ctypes.string_at(base, 4) != b"\x7fELF":
        raise OSError("the library's header is not there")
    start, length, count = _HEADER.unpack(ctypes.string_at(base, _HEADER.size))
    for number in range(count):
        entry = ctypes.string_at(base + start + number * length, _PROGRAM.size)
        kind, size = _PROGRAM.unpack(entry)
        if kind == _PT_TLS:
            return address, size
    raise OSError("the library has no variables of threads")


def _asked(library: ctypes.CDLL, what: int) -> int | None:
    answer = ctypes.c_void_p()
    handle = ctypes.c_void_p(library._handle)
    if ctypes.CDLL(None).dlinfo(handle, what, ctypes.byref(answer)) != 0:
        raise OSError("dlinfo failed")
    return answer.value
