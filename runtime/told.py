"""What a model tells of its calls: counts, refusals, sizes, and lines of the log."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..artifacts.errors import GuardError
from ..artifacts.logs import log
from .guards import Sizes
from .threads import COUNTING
from .worker import Counts, Metrics, Worker


class Told:
    """Counts of one model; any thread may ask and tell. What a thread counts in its own `Counts` needs
    no lock; all else is under one that forks wait for.

    Args:
        variants: the names of the routes.
        counted: dims whose values are the last that the checks answer, before the route's number.
    """

    def __init__(self, path: Path, variants: Sequence[str], counted: Sequence[str]) -> None:
        self._path = path
        self._variants = tuple(variants)
        self._counted = tuple(counted)
        self._violations: Counter[str] = Counter()
        self._guards: Counter[str] = Counter()
        self._seen: Counter[Sizes] = Counter()
        self._ended = Counts(len(variants))
        self._counts: list[tuple[weakref.ref[Worker], Counts]] = []

    def new_counts(self) -> Counts:
        return Counts(len(self._variants))

    def join(self, worker: Worker) -> None:
        """A thread's worker is there; the counts of those that are gone are kept."""
        with COUNTING:
            living = []
            for reference, counted in self._counts:
                if reference() is None:
                    self._ended.add(counted)
                else:
                    living.append((reference, counted))
            self._counts = [*living, (weakref.ref(worker), worker.counts)]

    def workers(self) -> list[Worker]:
        with COUNTING:
            return [each for each in (reference() for reference, _ in self._counts) if each]

    def see(self, sizes: Sizes) -> None:
        with COUNTING:
            self._seen[sizes[-1 - len(self._counted) : -1]] += 1

    def refuse(self, error: GuardError) -> None:
        with COUNTING:
            self._violations[error.code] += 1
            self._guards[error.guard] += 1
        listener = log("guards")  # asked anew: it may have been turned on since
        if listener is not None:
            listener.info("%s: violated %s", self._path, error)

    def seen(self) -> list[dict[str, int]]:
        with COUNTING:
            most = self._seen.most_common()
        return [{**dict(zip(self._counted, key, strict=True)), "calls": n} for key, n in most]

    def metrics(self) -> Metrics:
        with COUNTING:
            total = Counts(len(self._variants))
            for counted in [self._ended, *(counts for _, counts in self._counts)]:
                total.add(counted)
            several = len(self._variants) > 1
            return Metrics(
                sum(total.calls),
                total.copies,
                total.copied_bytes,
                dict(self._violations),
                dict(self._guards),
                1e-9 * total.nanoseconds,
                dict(zip(self._variants, total.calls, strict=True)) if several else {},
                total.replays,
            )
