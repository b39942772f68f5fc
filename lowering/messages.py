"""What an exporter and a process that holds the compiler write to each other, a JSON line each."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    """Lower what a file asks for: in its folder, with this environment, errors into ``stderr``."""

    request: str
    stderr: str
    environment: tuple[tuple[bytes, bytes], ...]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A stage that begins (None), or that is over, and how many seconds it took."""

    stage: str
    seconds: float | None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """An order is done: its process ended with this exit status, or by the signal ``-status``."""

    status: int
