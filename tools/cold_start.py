"""How long from nothing to the first answer: a bundle beside the model itself under torch.

``python -m tcexport.tools.cold_start m.tcpkg --against model.py`` starts each runtime in a process of
its own, in turn, several times, and prints medians of wall time, CPU time and peak memory, with the
ratio to the bundle. Times count from the start of the interpreter to the end of the first call; the
page cache is warm after the first round, which is not counted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

_BUNDLE = """
import sys
import numpy as np
import tcexport
from tcexport.tools.served import served
model = tcexport.load(sys.argv[1], device="cpu")
call = served(model)
with np.load(sys.argv[2]) as file:
    call(*[file[name] for name in file.files])
"""
_EAGER = """
import sys
import numpy as np
import torch
from tcexport.exporter.source import load_source
module = load_source(sys.argv[1]).module
with np.load(sys.argv[2]) as file, torch.inference_mode():
    module(*[torch.from_numpy(file[name]) for name in file.files])
"""
_IMPORT = "import torch"


@dataclass(frozen=True)
class Cost:
    """Of one process: seconds of wall and CPU time, and peak resident memory in MB."""

    wall: float
    cpu: float
    memory: float


def measure(script: str, arguments: list[str]) -> Cost:
    """Run a script in a new interpreter.

    Raises:
        RuntimeError: it failed; with what it printed.
    """
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        if status != 0:
            errors.seek(0)
            raise RuntimeError(errors.read().decode(errors="replace"))
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False))
@click.option("--against", help="The source it was exported from, to run under torch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def main(bundle: str, against: str | None, rounds: int, form: str) -> None:
    """Time from the start of a process to its first answer."""
    import numpy as np

    from ..artifacts.container import open_bundle
    from ..artifacts.contract import TensorInput
    from ..artifacts.expr import evaluate

    with open_bundle(bundle) as opened:
        contract = opened.manifest.contract
    sizes = {dim.name: dim.lo for dim in contract.dims}
    arrays = [
        np.zeros([evaluate(size, sizes) for size in item.shape], item.dtype)
        for item in contract.inputs
        if isinstance(item, TensorInput)
    ]
    with tempfile.TemporaryDirectory() as folder:
        inputs = str(Path(folder) / "inputs.npz")
        np.savez(inputs, *arrays)
        runtimes = {"bundle": (_BUNDLE, [bundle, inputs])}
        if against is not None:
            runtimes["torch, the model"] = (_EAGER, [against, inputs])
            runtimes["torch, import alone"] = (_IMPORT, [])
        costs: dict[str, list[Cost]] = {name: [] for name in runtimes}
        for round_number in range(rounds + 1):
            for name, (script, arguments) in runtimes.items():
                cost = measure(script, arguments)
                if round_number:
                    costs[name].append(cost)
    rows = {
        name: Cost(
            statistics.median(cost.wall for cost in runs),
            statistics.median(cost.cpu for cost in runs),
            statistics.median(cost.memory for cost in runs),
        )
        for name, runs in costs.items()
    }
    if form == "json":
        click.echo(json.dumps({name: vars(cost) for name, cost in rows.items()}, indent=1))
        return
    ours = rows["bundle"]
    click.echo(f"{'':22}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}   ratio to the bundle")
    for name, cost in rows.items():
        ratios = f"{cost.wall / ours.wall:.1f} / {cost.cpu / ours.cpu:.1f} / "
        ratios += f"{cost.memory / ours.memory:.1f}"
        click.echo(f"{name:22}{cost.wall:9.2f}{cost.cpu:9.2f}{cost.memory:9.0f}   {ratios}")


if __name__ == "__main__":
    main()
