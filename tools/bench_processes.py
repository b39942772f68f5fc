"""The parent's side of a runtime's process: start it, ask it, see how it ended."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .bench_runtimes import Spec

MAX_SECONDS = 1200  # for one answer; a compiler may take its time
_LAST_LINES = 3


class WorkerFailed(Exception):
    """What a runtime's process said went wrong, or how it ended."""


class Worker:
    """A process with one runtime in it.

    Attributes:
        started: seconds from its start until the runtime was loaded, this program's own share of
            the work left out.
        ready: what it answered then.
    """

    def __init__(
        self, spec: Spec, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process and wait until its runtime is loaded, or built.

        Args:
            folder: for its temporary files and caches.
            environment: what else is set for it.

        Raises:
            WorkerFailed: it could not be loaded.
        """
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tcexport.tools.bench_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=folder,
            env={**_environment(spec, folder), **(environment or {})},
            bufsize=0,  # nothing may be left to flush into a process that is gone
        )
        try:
            self.ready = self._exchange(dataclasses.asdict(spec))
        except BaseException:
            self.close()
            raise
        self.started: float = self.ready.get("at", begun) - begun - self.ready.get("foreign", 0.0)

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            WorkerFailed: it was answered with an error, or not at all.
        """
        return self._exchange({"do": do, **command})

    def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise WorkerFailed(self._ending()) from None
        if not select.select([self._process.stdout], [], [], MAX_SECONDS)[0]:
            self._process.kill()
            raise WorkerFailed(f"no answer within {MAX_SECONDS} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(self._ending())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def _ending(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return ": ".join([f"the process ended with {ended}", *last])

    def close(self) -> None:
        """End the process. It has nothing to lose."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _environment(spec: Spec, folder: Path) -> dict[str, str]:
    """The same number of threads for every pool there may be, and no compiler's leftovers."""
    threads = str(spec.threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TCEXPORT_NUM_THREADS")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache-{spec.runtime}")}
    return {**os.environ, **dict.fromkeys(names, threads), **cache}
