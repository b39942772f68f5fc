"""Worker threads: how many a model uses, and TVM's pools, of which every calling thread has one.

TVM sizes a thread's pool at its first use there, binds its threads (the caller's included) to
cores, and lets idle workers spin for a tenth of a second, unless the environment says otherwise.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..artifacts.errors import Diagnostic, InternalError, UsageError
from ..artifacts.logs import log
from .forked import Pool, find_pool

ENVIRONMENT = "TCEXPORT_NUM_THREADS"
MAX_THREADS = 1024

# Read by TVM at the first parallel call. Where the user has set one of them, it stands.
# Spinning bridges the gaps between the kernels of one call (microseconds) but not those between calls.
_POOL_DEFAULTS = {"TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "2000"}


def set_pool_defaults() -> None:
    """Tell TVM not to bind threads and to sleep soon; called before a pool is made."""
    for name, value in _POOL_DEFAULTS.items():
        os.environ.setdefault(name, value)


def thread_count(asked: int | None) -> int:
    """How many threads a model uses: ``asked``, or TCEXPORT_NUM_THREADS, or the usable cores.

    Raises:
        UsageError: TC008, not a number from 1 to 1024.
    """
    if asked is not None:
        return _checked("num_threads", asked, asked)
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        return usable_cores()
    return _checked(ENVIRONMENT, text, int(text) if text.isdecimal() else None)


def _checked(source: str, given: object, count: object) -> int:
    if type(count) is not int or not 1 <= count <= MAX_THREADS:
        raise UsageError(
            Diagnostic("TC008", f"{source}={given!r}: needs a number from 1 to {MAX_THREADS}")
        )
    return count


def usable_cores() -> int:
    """The physical cores that this process may run on, within its cgroup's quota; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
        cores = len({_siblings(cpu) for cpu in cpus})
    else:
        cores = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _siblings(cpu: int) -> str:
    """What the hardware threads of one core have in common."""
    return _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or f"cpu {cpu}"


def _cgroup_quota() -> float | None:
    """CPUs' worth of time that the cgroup grants (version 2, then 1); None when unlimited."""
    limit = (_read("/sys/fs/cgroup/cpu.max") or "").split()
    if len(limit) == 2 and limit[0].isdigit():
        return int(limit[0]) / int(limit[1])
    quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None  # not Linux, or not mounted


def held_over_forks() -> AbstractContextManager[bool]:
    """A lock that a fork waits for: a child never finds it taken by a thread that it does not have.
    Whoever holds it waits for nobody."""
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


class _Here(threading.local):
    """The calling thread's pool: for how many threads it was made (0: not yet) and is set now."""

    made = 0
    count = 0
    pool: Pool | None = None
    forked = False  # its worker threads stayed behind in the parent


class ThreadPools:
    """Keeps each calling thread's TVM pool at the size that the model it calls was loaded with.

    A pool never grows: it is made for the largest count of all models loaded before the thread's
    first call. A model that is loaded later with a larger count gets as many as there are.

    Attributes:
        here: the calling thread's own state; ``here.count`` is what its pool is set to.
        runtime: libtvm_runtime, once it is loaded and if it is known.
    """

    def __init__(self) -> None:
        self.here = _Here()
        self.runtime: ctypes.CDLL | None = None
        self._largest = 1
        self._lock = held_over_forks()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        here = self.here
        if here.pool is not None:
            here.pool.forget_workers()
        if here.pool is not None or here.made > 1:
            here.forked, here.count = True, 0

    def expect(self, count: int) -> None:
        """A model with this count was loaded."""
        with self._lock:
            self._largest = max(self._largest, count)

    def set(self, count: int, configure: Any) -> None:
        """Set this thread's pool to ``count`` threads.

        Args:
            configure: TVM's global function ``runtime.config_threadpool``.

        Raises:
            InternalError: TC601, the process was forked, this pool's threads stayed behind, and on
                this system there is no way to start them anew.
        """
        here = self.here
        if here.forked and here.pool is not None:
            here.pool.reset()
            here.forked = False
            listener = log("runtime")
            if listener is not None:
                listener.info("process %d was forked: worker threads started anew", os.getpid())
        elif here.forked and count > 1:
            raise _left_behind(here.made)
        if not here.made:
            with self._lock:  # the loader's lock is taken: not within a fork
                configure(_BIG, self._largest, _cpus(self._largest))
                here.made = self._largest
                here.pool = find_pool(self.runtime)
        configure(_BIG, count, _cpus(count))
        here.count = count


def _left_behind(count: int) -> InternalError:
    return InternalError(
        Diagnostic(
            "TC601",
            "the process was forked after this thread had called a model with "
            f"{count} threads, which do not exist in the child",
            tries=(
                "call the model in a new thread of the child",
                "fork before the first call, or load with num_threads=1",
            ),
        )
    )


_BIG = 1  # TVM's mode for machines whose cores are alike


def _cpus(count: int) -> list[str]:
    """TVM takes the number of threads from the length of a list of cores. With binding off, it
    does not use the cores."""
    return [str(number) for number in range(count)]


POOLS = ThreadPools()
COUNTING = held_over_forks()  # for what all threads that call a model share
