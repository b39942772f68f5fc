"""The switch TCEXPORT_LOGS: what the exporter and the runtime tell as they work, on stderr.

Names as in torch's TORCH_LOGS, separated by commas: ``TCEXPORT_LOGS=guards,dynamic``. Each has a
logger of Python's own, ``tcexport.guards``, which can be had without the switch, too.
"""

from __future__ import annotations

import logging
import os
import sys

from .errors import Diagnostic, UsageError

ENVIRONMENT = "TCEXPORT_LOGS"
NAMES = {
    "guards": "each guard as it is found at export, held at load, and violated by a call",
    "dynamic": "the range of each dim: asked for, found, and what limits it",
    "graph_breaks": "each break of the graph as a trace meets it, before they are put in order",
}


def log(name: str) -> logging.Logger | None:
    """The logger of a name where someone listens, else None: ask once, not for every line.

    Raises:
        UsageError: TC008, the switch names something that is not there.
    """
    asked = {each.strip().lstrip("+") for each in os.environ.get(ENVIRONMENT, "").split(",")} - {""}
    for unknown in sorted(asked - NAMES.keys()):
        raise UsageError(
            Diagnostic(
                "TC008",
                f"{ENVIRONMENT}: there is nothing called {unknown}",
                notes=tuple(f"{known}: {what}" for known, what in NAMES.items()),
            )
        )
    logger = logging.getLogger(f"tcexport.{name}")
    if name in asked and not any(isinstance(each, _OnStderr) for each in logger.handlers):
        logger.addHandler(_OnStderr(name))
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
    return logger if logger.isEnabledFor(logging.INFO) and logger.hasHandlers() else None


class _OnStderr(logging.Handler):
    """Writes to whatever stderr is at the time."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(f"[tcexport {name}] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)
