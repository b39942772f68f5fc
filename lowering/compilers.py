"""Processes that hold the compiler, each order in a fork of its own.

To import torch and TVM takes some seconds. One process does so once, while the model is traced, and
forks for each program that is to be lowered: a crash of TVM or of LLVM ends the fork alone, and each
program finds the state in which all others found it. It ends when this process does, however that ends,
and when nothing was asked of it for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from .messages import Ended, Order, Progress

# What Python, torch, TVM and the C library read where they start: a process that was started under
# other values is of no use.
_READ_AT_START = (
    *("CUDA", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_"),
    *("PYTHON", "PYTORCH", "TORCH", "TVM"),
)
# A fixed hash seed: sets of names are walked in the same order at every export. OpenBLAS, which numpy
# brings, starts its threads where it is imported, and a fork would not have them.
_SET_AT_START = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}

_LOOK_MS = 200


class _Compiler:
    def __init__(self, started_under: object) -> None:
        self.started_under = started_under
        # In a folder of its own: `-m` makes the current one importable, and the user's files there
        # are not to be taken for ours.
        self._folder = Path(tempfile.mkdtemp(prefix="tcexport-"))
        self._errors = self._folder / "stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | _SET_AT_START,
                cwd=self._folder,
                start_new_session=True,  # what it starts is ended with it
            )

    def run(
        self, request: Path, progress: Callable[[str, float | None], None]
    ) -> tuple[int, bytes] | None:
        """Lower what a request asks for.

        Returns:
            the exit status, or the negative number of the signal that ended it; what it said. None: it
            had waited for too long, and ended before it read the order.
        """
        errors = request.with_suffix(".stderr")
        errors.touch()
        order = Order(str(request), str(errors), tuple(os.environb.items()))
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before: what it said is the answer
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        for line in self._lines():
            told = msgspec.json.decode(line, type=Progress | Ended)
            if isinstance(told, Ended):
                return told.status, errors.read_bytes()
            progress(told.stage, told.seconds)
        status = self._process.wait()
        return (status, self._errors.read_bytes()) if status else None

    def _lines(self) -> Iterator[bytes]:
        """Each as it comes. To read and wait would be deaf to an interrupt that another thread of this
        process is chosen for, such as a progress bar's."""
        assert self._process.stdout is not None
        place = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(place, select.POLLIN)
        rest = b""
        while True:
            if not poll.poll(_LOOK_MS):
                continue
            data = os.read(place, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def forget(self) -> None:
        """In a fork of this process, whose parent ends it: nothing is ended here."""
        self._process.returncode = 0
        self._close()

    def end(self) -> None:
        """With all that it has started."""
        if self._process.poll() is None:  # else its number may be another's by now
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


_idle: list[_Compiler] = []
_lock = threading.Lock()


def start() -> None:
    """Let a compiler be there when it will be asked for: it starts beside what this process does."""
    _give_back(_taken())


def run(request: Path, progress: Callable[[str, float | None], None]) -> tuple[int, bytes]:
    """Lower what a request asks for, in a process of its own. Any number of threads may.

    Args:
        request: the file of an `answer.Request`, in the folder for what is made.
        progress: told the name of each stage where it begins (None), and its seconds where it ends.

    Returns:
        the exit status of the process, or the negative number of the signal that ended it, and the
        bytes that it wrote to stderr.
    """
    # One that had waited for too long reads no order: another is asked, which cannot have.
    ended = _asked(_taken(), request, progress) or _asked(_taken(), request, progress)
    return ended or (0, b"")


def _asked(
    compiler: _Compiler, request: Path, progress: Callable[[str, float | None], None]
) -> tuple[int, bytes] | None:
    """What a compiler gives; it is given back."""
    try:
        ended = compiler.run(request, progress)
    except BaseException:
        compiler.end()
        raise
    _give_back(compiler)
    return ended


def _taken() -> _Compiler:
    under = (
        sys.executable,
        {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)},
    )
    with _lock:
        compiler = _idle.pop() if _idle else None
    if compiler is not None and compiler.is_alive and compiler.started_under == under:
        return compiler
    if compiler is not None:
        compiler.end()
    return _Compiler(under)


def _give_back(compiler: _Compiler) -> None:
    """One is kept."""
    with _lock:
        if not _idle and compiler.is_alive:
            _idle.append(compiler)
            return
    compiler.end()


@atexit.register
def _end() -> None:
    while _idle:
        _idle.pop().end()


def _forget() -> None:
    """A fork of this process has none: its parent talks to them."""
    global _lock
    _lock = threading.Lock()
    for compiler in _idle:
        compiler.forget()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
