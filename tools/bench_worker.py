"""One runtime in a process of its own: ``python -m tcexport.tools.bench_worker``.

It reads JSON lines from stdin and answers each with one on stdout: first a `Spec`, then commands

- ``{"do": "warm", "inputs": FILE}``: one call of these inputs, for what it leaves behind
- ``{"do": "first", "inputs": FILE, "outputs": FILE}``: one call of these inputs, its outputs kept
- ``{"do": "others", "outputs": FILE}``: that call of the model again with what it rounds moved (see
  `exporter.undecided`), kept in ``FILE.0``, ``FILE.1`` and so on
- ``{"do": "burst", "count": N}``: one call to wake up, then N that are timed
- ``{"do": "check", "inputs": FILE}``: the bundle's check of a call alone
- ``{"do": "end"}``: peak memory and notes

A failure is answered with ``{"error": …}``, and the process lives on. What the model or a compiler
prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from .bench_runtimes import Runtime, Spec, open_runtime

_CHECKS = 2000


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    spec = Spec(**json.loads(sys.stdin.readline()))
    # Started elsewhere, so that no file of the user's folder is imported by accident.
    os.chdir(spec.folder)
    runtime = _answered(answers, lambda: _start(spec))
    if isinstance(runtime, Runtime):
        _serve(runtime, answers)


def _start(spec: Spec) -> tuple[dict[str, Any], Runtime | None]:
    if spec.trace is not None:
        from .bench_peers import build

        return {"notes": build(spec)}, None
    runtime = open_runtime(spec)
    ready = {"at": time.monotonic(), "foreign": runtime.foreign, "shapes": runtime.shapes}
    return ready, runtime


def _serve(runtime: Runtime, answers: TextIO) -> None:
    call: Callable[[], Any] | None = None

    def answer(command: dict[str, Any]) -> tuple[dict[str, Any], None]:
        nonlocal call
        if command["do"] in ("warm", "first"):
            call = runtime.prepare(Path(command["inputs"]))
            before = runtime.compiled()
            start = time.perf_counter()
            result = call()
            seconds = time.perf_counter() - start
            if command["do"] == "first":
                runtime.save(result, Path(command["outputs"]))
            return {"seconds": seconds, "compiled": runtime.compiled() - before}, None
        if command["do"] == "others":
            return {"count": _others(runtime, call, command["outputs"])}, None
        if command["do"] == "burst":
            if call is None:
                raise ValueError("a burst before the first call")
            return {"seconds": _burst(call, command["count"])}, None
        if command["do"] == "check":
            check = runtime.check and runtime.check(Path(command["inputs"]))
            return {"seconds": _burst(check, _CHECKS) if check else None}, None
        return {"peak": _peak_memory(), "notes": runtime.notes()}, None

    for line in sys.stdin:
        command = json.loads(line)
        _answered(answers, lambda command=command: answer(command))  # type: ignore[misc]


def _answered(answers: TextIO, work: Callable[[], tuple[dict[str, Any], Any]]) -> Any:
    """Do something, tell how it went, and give what it left behind."""
    kept = None
    try:
        told, kept = work()
    except Exception as error:  # whatever a model or a compiler raises
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        told = {"error": f"{type(error).__name__}: {lines[0] if lines else 'no message'}"}
    answers.write(json.dumps(told) + "\n")
    answers.flush()
    return kept


def _others(runtime: Runtime, call: Callable[[], Any] | None, file: str) -> int:
    """How many further answers of the model were kept."""
    from ..exporter.undecided import other_answers

    if call is None:
        raise ValueError("further answers before the first call")
    again = call
    answers = other_answers(lambda: [again()])
    for number, (answer,) in enumerate(answers):
        runtime.save(answer, Path(f"{file}.{number}"))
    return len(answers)


def _burst(call: Callable[[], Any], count: int) -> float:
    """Seconds of one call, the mean of ``count`` in a row."""
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _peak_memory() -> int | None:
    """Bytes of resident memory at most. Not getrusage's, which starts at the parent's; None where
    the system does not tell."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


if __name__ == "__main__":
    main()
