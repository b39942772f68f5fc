"""What an export costs: seconds of each stage, and the memory of all of its processes at most.

``python -m tcexport.tools.export_cost model.py --dynamic seq=1..512`` takes what ``tcexport export``
takes, runs it, and prints a table of its stages. Memory is the sum of the proportional set sizes (Pss)
of the command and all of its children, read from /proc (Linux) a few times a second: what two of them
share counts once. Files that are read are in the page cache at the second run, and may not be at the
first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PAUSE = 0.2  # seconds between two looks; a look takes a millisecond for each GB


@dataclass
class Cost:
    """``seconds``: from start to end; ``stages``: the seconds and the most memory (bytes) of each, in
    order; ``most``: the memory of each process when their sum was largest, by what it is; ``weights``:
    the bytes of them in the bundle, 0 where the export did not say; ``status``: the exit status."""

    seconds: float = 0.0
    stages: dict[str, tuple[float, int]] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    weights: int = 0
    status: int = 0

    @property
    def peak(self) -> int:
        return sum(self.most.values())


def measure(arguments: Sequence[str]) -> Cost:
    """Run ``tcexport`` with these arguments and watch it."""
    cost = Cost()
    memory: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tcexport-cost-") as folder:
        out = Path(folder) / "m.tcpkg"
        given = [] if {"-o", "--output"} & set(arguments) else ["-o", str(out)]
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "tcexport", *arguments, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stage = ["start of Python"]
        reader = threading.Thread(target=_follow, args=(process, stage, cost), daemon=True)
        reader.start()
        while process.poll() is None:
            now = stage[0]
            found = tree_memory(process.pid)
            total = sum(found.values())
            memory[now] = max(memory.get(now, 0), total)
            if total > cost.peak:
                cost.most = found
            time.sleep(_PAUSE)
        reader.join()
        cost.seconds, cost.status = time.perf_counter() - begun, process.returncode
    cost.stages = {name: (took, memory.get(name, 0)) for name, (took, _) in cost.stages.items()}
    return cost


def _follow(process: subprocess.Popen[str], stage: list[str], cost: Cost) -> None:
    """Keep up with the stages, which the command tells on stderr; what else it says is passed on."""
    assert process.stderr is not None
    started = time.perf_counter()
    for line in process.stderr:
        text = line.rstrip()
        if text.endswith(" …"):
            stage[0], started = text.removesuffix(" …"), time.perf_counter()
        elif text.startswith(f"{stage[0]} ") and text.endswith(" s"):
            took, most = cost.stages.get(stage[0], (0.0, 0))
            cost.stages[stage[0]] = took + time.perf_counter() - started, most
            stage[0] = f"after {stage[0]}"
        else:
            print(text, file=sys.stderr)
            found = text.partition("of which weights ")[2]
            if found:
                cost.weights = _bytes(found)


def _bytes(text: str) -> int:
    number, unit = text.split()[:2]
    return int(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit])


def tree_memory(root: int) -> dict[str, int]:
    """The proportional set size, in bytes, of a process and all below it, by what they are."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent(int(name))
            if parent is not None:
                below.setdefault(parent, []).append(int(name))
    found: dict[str, int] = {}
    todo = [root]
    while todo:
        process = todo.pop()
        todo += below.get(process, [])
        found[f"{_role(process, root)} ({process})"] = _pss(process)
    return found


def _parent(process: int) -> int | None:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None  # it has ended
    return int(stat.rpartition(")")[2].split()[1])


def _role(process: int, root: int) -> str:
    """The command, the module that Python runs, or the program."""
    if process == root:
        return "tcexport"
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended"
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1].removeprefix("tcexport.")
    return Path(words[0]).name


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def table(cost: Cost) -> str:
    """The stages as a table of Markdown, and the sum in a line."""
    lines = ["| stage | seconds | memory at most |", "| --- | --- | --- |"]
    for name, (took, most) in cost.stages.items():
        lines.append(
            f"| {name} | {took:.1f} | {most / 1e9:.2f} GB |"
            if most
            else f"| {name} | {took:.1f} | |"
        )
    parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in cost.most.items() if size > 1e7)
    limit = ""
    if cost.weights:
        limit = f"; 3 times the weights + 2 GB are {(3 * cost.weights + 2e9) / 1e9:.2f} GB"
    lines += ["", f"{cost.seconds:.1f} s; {cost.peak / 1e9:.2f} GB at most ({parts}){limit}"]
    return "\n".join(lines)


def main() -> None:
    cost = measure(sys.argv[1:])
    print(table(cost))
    sys.exit(cost.status)


if __name__ == "__main__":
    main()
