"""What an export costs: seconds of each stage, on the clock and of the processors, and memory at most.

``python -m tcexport.tools.export_cost model.py --dynamic seq=1..512`` takes what ``tcexport export``
takes, runs it, and prints a table of its stages. Memory is the sum of the proportional set sizes (Pss)
of the command and all of its children, read from /proc (Linux) a few times a second: what two of them
share counts once. The processors' seconds are user and system time of all of these processes: other
work on the machine changes them less than those of the clock. Files that are read are in the page cache
at the second run, and may not be at the first.
"""

from __future__ import annotations

import os
import resource
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
class Stage:
    """``seconds`` on the clock and of the processors, and the most memory, in bytes."""

    seconds: float = 0.0
    processor: float = 0.0
    memory: int = 0


@dataclass
class Cost:
    """``seconds``: from start to end; ``processor``: those of the processors, of all processes;
    ``stages``: in order; ``most``: the memory of each process when their sum was largest, by what it
    is; ``weights``: the bytes of them in the bundle, 0 where the export did not say; ``status``: the
    exit status."""

    seconds: float = 0.0
    processor: float = 0.0
    stages: dict[str, Stage] = field(default_factory=dict)
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
        begun, before = time.perf_counter(), _of_children()
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
        cost.processor = _of_children() - before
    for name, each in cost.stages.items():
        each.memory = memory.get(name, 0)
    return cost


def _of_children() -> float:
    """User and system time of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _follow(process: subprocess.Popen[str], stage: list[str], cost: Cost) -> None:
    """Keep up with the stages, which the command tells on stderr; what else it says is passed on."""
    assert process.stderr is not None
    started, used = time.perf_counter(), 0.0
    for line in process.stderr:
        text = line.rstrip()
        if text.endswith(" …"):
            stage[0], started = text.removesuffix(" …"), time.perf_counter()
            used = tree_processor(process.pid)
        elif text.startswith(f"{stage[0]} ") and text.endswith(" s"):
            each = cost.stages.setdefault(stage[0], Stage())
            each.seconds += time.perf_counter() - started
            each.processor += tree_processor(process.pid) - used
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
    return {f"{_role(process, root)} ({process})": _pss(process) for process in _tree(root)}


def tree_processor(root: int) -> float:
    """User and system time, in seconds, of a process and all below it, those that ended included."""
    ticks = sum(int(word) for each in _tree(root) for word in _stat(each)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> list[int]:
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            below.setdefault(int(stat[1]), []).append(int(name))
    found = [root]
    for process in found:
        found += below.get(process, [])
    return found


def _stat(process: int) -> list[str]:
    """What /proc says of a process, from its state on; nothing of one that has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()


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
    lines = [
        "| stage | seconds | of the processors | memory at most |",
        "| --- | --- | --- | --- |",
    ]
    for name, each in cost.stages.items():
        memory = f"{each.memory / 1e9:.2f} GB" if each.memory else ""
        lines.append(f"| {name} | {each.seconds:.1f} | {each.processor:.1f} | {memory} |")
    parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in cost.most.items() if size > 1e7)
    limit = ""
    if cost.weights:
        limit = f"; 3 times the weights + 2 GB are {(3 * cost.weights + 2e9) / 1e9:.2f} GB"
    told = f"{cost.seconds:.1f} s, {cost.processor:.1f} s of the processors"
    lines += ["", f"{told}; {cost.peak / 1e9:.2f} GB at most ({parts}){limit}"]
    return "\n".join(lines)


def main() -> None:
    cost = measure(sys.argv[1:])
    print(table(cost))
    sys.exit(cost.status)


if __name__ == "__main__":
    main()
