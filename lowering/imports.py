"""Imports of what stays until the process ends, without the collector's work on it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """While active, nothing is collected; what is there at the end is never looked at again.

    Torch and TVM make a million objects that live as long as the process, and the collector goes
    through all of them, several times as they come, and again whenever a trace makes many more. For
    processes of our own: in anybody else's, what is garbage by then would stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
