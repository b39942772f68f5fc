"""The stages of an export: their names as they start, and their seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, "float | None"], None]


class Stages:
    """Runs the stages and keeps their times."""

    def __init__(self, progress: Progress | None) -> None:
        self.done: list[tuple[str, float]] = []
        self._progress = progress

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._tell(name, None)
        start = time.perf_counter()
        yield
        self._finish(name, time.perf_counter() - start)

    def child(self, name: str, seconds: float | None) -> None:
        """A stage of the compiler's process."""
        if seconds is None:
            self._tell(name, None)
        else:
            self._finish(name, seconds)

    def _finish(self, name: str, seconds: float) -> None:
        self.done.append((name, seconds))
        self._tell(name, seconds)

    def _tell(self, name: str, seconds: float | None) -> None:
        if self._progress is not None:
            self._progress(name, seconds)
