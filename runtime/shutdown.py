"""The end of the process, while daemon threads call models.

Python ends such a thread where it next asks for the interpreter; within a call of compiled code that
unwinds frames which must not be unwound, and aborts the process. So, before the interpreter goes,
threads that are within a call are waited for, and threads that begin another one are left waiting for
ever, which is what Python does to them in any case. The thread that ends the process may go on calling.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

MAX_WAIT = 60.0  # seconds for calls to end; beyond it the process takes its chances

_HERE = str(Path(__file__).parent)
GENERATED = "<call>"  # the file name of what is compiled at load

_models: weakref.WeakSet[Any] = weakref.WeakSet()
_ending: list[int] = []  # the thread that ends the process


def watch(model: Any) -> None:
    """A model whose short ways are closed when the process ends."""
    if not _models:
        atexit.unregister(_end)
        atexit.register(_end)  # late, so that it runs early
    _models.add(model)


def is_ending() -> bool:
    return bool(_ending)


def wait_if_ending() -> None:
    """Before a call or a load: return, or, in a thread that the end of the process leaves behind, do
    not."""
    if _ending and _ending[0] != threading.get_ident():
        threading.Event().wait()


def _end() -> None:
    _ending.append(threading.get_ident())
    for model in list(_models):
        model.close_short_ways()
    limit = time.monotonic() + MAX_WAIT
    while time.monotonic() < limit and any(
        _is_within(frame) for thread, frame in sys._current_frames().items() if thread != _ending[0]
    ):
        time.sleep(0.001)


def _is_within(frame: FrameType | None) -> bool:
    """Whether a thread is within a call or a load, and not left waiting before it."""
    within = False
    while frame is not None:
        code = frame.f_code
        if code is wait_if_ending.__code__:
            return False
        within = within or code.co_filename == GENERATED or code.co_filename.startswith(_HERE)
        frame = frame.f_back
    return within
