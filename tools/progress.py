"""The stages of an export as they go by, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

Report: TypeAlias = Callable[[str, "float | None"], None]


class Progress:
    """Called with ``(stage, None)`` when a stage starts and ``(stage, seconds)`` when it ends.

    On a terminal a spinner stands beside the stage that runs; elsewhere each start and end is a
    line; a quiet one says nothing.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console: Any = None
        self._status: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def __call__(self, stage: str, seconds: float | None) -> None:
        if self._quiet:
            return
        if self._console is None:
            ended = " …" if seconds is None else f" {seconds:.1f} s"
            print(f"{stage}{ended}", file=sys.stderr, flush=True)
        elif seconds is None:
            self._spin(f"{stage} …")
        else:
            self._stop()
            self._console.print(f"[green]✓[/green] {stage}  [dim]{seconds:.1f} s[/dim]")
            # The compiler's process tells only of ends: a sign of life until the next.
            self._spin("…")

    def _spin(self, text: str) -> None:
        self._stop()
        self._status = self._console.status(text)
        self._status.start()

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
