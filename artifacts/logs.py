"""What the exporter and the runtime tell as they work, on stderr: TCEXPORT_LOGS and `set_logs`.

Names as in torch's TORCH_LOGS, separated by commas: ``TCEXPORT_LOGS=guards,dynamic``. Each has a
logger of Python's own, ``tcexport.guards``, which can be had without the switch, too.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable

from .errors import Diagnostic, UsageError
from .names import suggestions

ENVIRONMENT = "TCEXPORT_LOGS"
NAMES = {
    "graph_breaks": "each break of the graph as a trace meets it, before they are put in order",
    "guards": "each guard as it is found at export, held at load, and violated by a call",
    "dynamic": "the range of each dim: asked for, found, and what limits it",
    "variants": "each further trace at other sizes, each binary, and those taken: at load, by call",
    "runtime": "each load and how long it took, threads that are made for a caller, and forks",
    "lowering": "each op and what became of it, and the seconds of each stage of the compiler",
}

# Nothing is said unless someone asks for it: not even by Python's handler of last resort.
logging.getLogger("tcexport").addHandler(logging.NullHandler())

_set: frozenset[str] = frozenset()


def set_logs(**names: bool) -> None:
    """Turn logs on, as torch's ``torch._logging.set_logs`` does: ``set_logs(graph_breaks=True)``.

    A call replaces what an earlier one said; without arguments it turns off what that turned on.
    Names in TCEXPORT_LOGS stay on.

    Raises:
        UsageError: TC006, there is no such log.
    """
    global _set
    _require_known(names, "set_logs")
    wanted = frozenset(name for name, on in names.items() if on)
    before, _set = _set, wanted
    for name in before | wanted:
        log(name)


def log(name: str) -> logging.Logger | None:
    """The logger of a name where someone listens, else None: ask once, not for every line.

    Raises:
        UsageError: TC006, the switch names something that is not there.
    """
    typed = {each.strip().lstrip("+") for each in os.environ.get(ENVIRONMENT, "").split(",")} - {""}
    _require_known(typed, ENVIRONMENT)
    logger = logging.getLogger(f"tcexport.{name}")
    ours = [each for each in logger.handlers if isinstance(each, _OnStderr)]
    if name in typed | _set and not ours:
        logger.addHandler(_OnStderr(name))
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    elif name not in typed | _set and ours:
        for handler in ours:
            logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    return logger if logger.isEnabledFor(logging.INFO) and logger.hasHandlers() else None


def _require_known(names: Iterable[str], where: str) -> None:
    for unknown in sorted(set(names) - NAMES.keys()):
        raise UsageError(
            Diagnostic(
                "TC006",
                f"{where}: there is nothing called {unknown}",
                notes=tuple(f"{known}: {what}" for known, what in NAMES.items()),
                tries=tuple(f"{where} with {each}" for each in suggestions(unknown, NAMES)[:1]),
            )
        )


class _OnStderr(logging.Handler):
    """Writes to whatever stderr is at the time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(f"[tcexport {name}] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)
