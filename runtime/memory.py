"""Memory of calls: a limit that is held before they run, and giving back what is kept between them."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..artifacts.contract import Guard, Origin
from ..artifacts.errors import BundleError, Diagnostic, UsageError
from ..artifacts.manifest import Manifest, Target, contract_of, memory_unknown
from ..artifacts.parts import box_of
from ..artifacts.prove import bounds
from .worker import Worker


def limited(manifest: Manifest, target: Target, limit: int, path: Path) -> Manifest:
    """The bundle with what keeps a call of ``target`` within ``limit`` bytes, as guards like the
    others. Where it has variants, each has its own: a call goes to the first that takes it and keeps
    within the limit.

    Raises:
        UsageError: TC008, the limit is no positive number, or the bundle does not say what it needs.
        BundleError: TC406, no call at all is within the limit.
    """
    if type(limit) is not int or limit < 1:
        raise UsageError(
            Diagnostic("TC008", f"memory_limit={limit!r:.40}: needs a number of bytes from 1")
        )
    parts = [(each.memory, contract_of(manifest, each)) for each in manifest.variants]
    reason = memory_unknown(manifest)
    if target.entry is not None or target.entries:
        parts = [(None, manifest.contract)]
        reason = f"what it says is of other functions than those of {target.name}"
    least = math.inf
    held = []
    for memory, contract in parts or [(manifest.memory, manifest.contract)]:
        if memory is None:
            raise UsageError(
                Diagnostic(
                    "TC008",
                    f"memory_limit={limit}: {path} does not say what a call needs",
                    notes=(reason,),
                    tries=("a limit of the process: ulimit -v, MemoryMax=",),
                )
            )
        box = box_of(contract.dims)
        least = min(least, max((bounds(each, box)[0] for each in memory), default=0))
        origin = Origin(f"load(memory_limit={limit})")
        guards = [Guard(("<=", each, limit), origin) for each in memory]
        held.append(msgspec.structs.replace(contract, guards=(*contract.guards, *guards)))
    if least > limit:
        raise BundleError(
            Diagnostic(
                "TC406",
                f"{path}: a call needs {least:.0f} bytes at the least, memory_limit={limit}",
                tries=(f"memory_limit={least:.0f}",),
            )
        )
    if not manifest.variants:
        return msgspec.structs.replace(manifest, contract=held[0])
    variants = tuple(
        msgspec.structs.replace(each, contract=contract)
        for each, contract in zip(manifest.variants, held, strict=True)
    )
    return msgspec.structs.replace(manifest, variants=variants)


def give_back(workers: Iterable[Worker]) -> int | None:
    """Drop what workers keep for their next calls, and let the C library give free memory back.

    Returns:
        by how many bytes the process's resident memory became smaller; None where the system does
        not tell.
    """
    before = _resident()
    for worker in workers:
        worker.let_go()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others do it by themselves
    if trim is not None:
        trim(ctypes.c_size_t(0))
    after = _resident()
    return None if before is None or after is None else max(0, before - after)


def _resident() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
