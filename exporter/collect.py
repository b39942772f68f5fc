"""Every graph break of a model in one run, not only the first.

torch.compile goes on after a break, in Python, and logs each
(https://docs.pytorch.org/docs/main/compile/programming_model.observability.html). Only the branches
taken are followed. The run writes no files and prints nothing.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch._dynamo.callback import callback_handler

from ..artifacts.errors import Diagnostic
from ..lowering.locations import is_library
from .breaks import explain_break, frames_in
from .eager import quietly

_HEADER = re.compile(r"in user code at (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_REASON = re.compile(r"^Graph Break Reason:\s*(?P<text>.*)$", re.MULTILINE)
_LOG = "torch._dynamo.symbolic_convert"


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def collect_breaks(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], ignored: set[Any]
) -> list[Diagnostic]:
    """All graph breaks that a run of the model on this call meets, each once, in the order met.

    Args:
        args, kwargs: the call; its tensors may be written to.
        ignored: functions that count as doing nothing (printing, logging).
    """
    log = torch._logging.getArtifactLogger(_LOG, "graph_breaks")
    records = _Records()
    level, propagate = log.level, log.propagate
    log.addHandler(records)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    torch._dynamo.reset()
    try:
        with (
            torch.no_grad(),
            quietly(),
            _nothing_leaves(),
            torch._dynamo.config.patch(
                capture_scalar_outputs=True,
                capture_dynamic_output_shape_ops=True,
                ignore_logging_functions=ignored,
            ),
            # Breaks are what is wanted: whatever stops the run ends the list, and the strict
            # trace's own refusal is in it in any case.
            contextlib.suppress(Exception),
        ):
            torch.compile(module, backend="eager", dynamic=True)(*args, **kwargs)
    finally:
        log.removeHandler(records)
        log.setLevel(level)
        log.propagate = propagate
        torch._dynamo.reset()
    found = (_explained(message) for message in records.messages)
    return list(dict.fromkeys(each for each in found if each is not None))


def _explained(message: str) -> Diagnostic | None:
    head, _, trace = message.partition("User code traceback:")
    frames = _from_here(frames_in(trace))
    if not frames:
        header = _HEADER.search(head)
        frames = [(header["file"], int(header["line"]))] if header else []
    found = explain_break(_kind(head), head, frames)
    # After a break the functions of libraries are compiled one by one, from where they were never
    # meant to start; what has no page of its own there is no doing of the model's.
    inside = bool(frames) and is_library(frames[-1][0])
    echo = found.code == "TC101" and (inside or "graph break in loop" in head)
    return None if echo else found


def _from_here(frames: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The frames that this module's call led to."""
    own = [index for index, (file, _) in enumerate(frames) if file == __file__]
    return frames[own[-1] + 1 :] if own else frames


def _kind(head: str) -> str:
    """Torch's name for a break: the line before its explanation."""
    before = head.partition("\n  Explanation:")[0].strip().splitlines()
    reason = _REASON.match(before[-1]) if before else None
    return reason["text"] if reason else (before[-1].strip() if before else "unknown")


def counted(found: list[Diagnostic]) -> list[Diagnostic]:
    """Equal diagnostics once, with how often each was met."""
    counts: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], Diagnostic] = {}
    for each in found:
        key = (str(each.location), each.message)
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, each)
    return [
        msgspec.structs.replace(each, notes=(*each.notes, f"met {counts[key]} times in one call"))
        if counts[key] > 1
        else each
        for key, each in first.items()
    ]


def merged(found: list[Diagnostic]) -> list[Diagnostic]:
    """What several witnesses say, each code once a line, in the order of lines.

    Where one witness knows the user's line and another knows none, or a library's, and where one
    has a code of its own for what another only calls a break, the better one stays.
    """
    groups: dict[tuple[str, int, str], Diagnostic] = {}
    for each in found:
        where = (each.location.file, each.location.line) if each.location else ("", 0)
        kept = groups.setdefault((*where, each.code), each)
        if len(each.notes) > len(kept.notes):
            groups[(*where, each.code)] = each
    named = {key[:2] for key in groups if key[2] not in _GENERAL}
    told = named | {key[:2] for key in groups if key[2] not in ("TC101", "TC190")}
    placed = {key[2] for key in groups if key[0]}
    users = any(key[0] and not is_library(key[0]) for key in groups)
    return [
        each
        for key, each in sorted(groups.items())
        if not (
            (key[2] in _GENERAL and key[:2] in named)
            or (key[2] in ("TC101", "TC190") and key[:2] in told)
            or (key[2] in ("TC102", "TC107") and (*key[:2], "TC105") in groups)
            or (key[2] == "TC119" and (*key[:2], "TC102") in groups)
            or (key[2] == "TC190" and named)
            or (not key[0] and key[2] in placed)
            or (key[0] and users and is_library(key[0]))
        )
    ]


_GENERAL = ("TC101", "TC109", "TC118", "TC190")


@contextlib.contextmanager
def _nothing_leaves() -> Iterator[None]:
    """Between the graphs the model's Python runs as it is: here without writing files.

    Dynamo must see the true functions while it compiles, and the code that runs must not.
    """
    true_open, true_save, true_io_open = builtins.open, torch.save, io.open

    def reading(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = any(letter in mode for letter in "wax+") and not isinstance(file, int)
        return true_open(os.devnull if writes else file, mode.replace("x", "w"), *args, **kwargs)

    def put(open_: Callable[..., Any], save: Callable[..., Any], io_open: Any) -> None:
        builtins.open, torch.save, io.open = open_, save, io_open

    def compiling(_: Any) -> None:
        put(true_open, true_save, true_io_open)

    def running(_: Any) -> None:
        put(reading, lambda *args, **kwargs: None, reading)

    callback_handler.register_start_callback(compiling)
    callback_handler.register_end_callback(running)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(compiling)
        callback_handler.remove_end_callback(running)
        put(true_open, true_save, true_io_open)
