"""Compiled kernels, kept between exports: equal source, architecture and compiler give the file again.

Any number of processes may use the folder: an entry appears by renaming, whole, and carries the
digest of its content, so that a damaged one counts as none.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER = "TCEXPORT_CACHE"
_MOST_BYTES = 1 << 29
_DIGEST = 32


def cache_folder() -> Path:
    """``$TCEXPORT_CACHE``, else ``tcexport`` in the user's folder for caches."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tcexport"


def key_of(*parts: str) -> str:
    """A name for what is made of ``parts`` and nothing else."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode()
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def lookup(key: str) -> bytes | None:
    """What was stored under ``key``, or None."""
    path = cache_folder() / "cuda" / key
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, content = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)  # the oldest are removed first
    return content


def store(key: str, content: bytes) -> None:
    """Keep ``content``. A folder that cannot be written to costs time at the next export only."""
    folder = cache_folder() / "cuda"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(draft, folder / key)
        except OSError:
            with suppress(OSError):
                os.unlink(draft)
            raise
        _shrink(folder)


def _shrink(folder: Path) -> None:
    """Remove what was not used for the longest time, beyond half a gibibyte."""
    entries = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process removes, too
            stat = path.stat()
            entries.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= _MOST_BYTES:
            return
        with suppress(OSError):
            path.unlink()
        total -= size
