"""What an export costs, stage by stage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tcexport.tools.export_cost import Cost, Stage, measure, table, tree_memory, tree_processor

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")


@linux
def test_memory_is_that_of_a_process_and_of_what_it_started() -> None:
    child = "import sys, time; held = bytearray(50_000_000); sys.stdout.write('.\\n'); "
    child += "sys.stdout.flush(); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b".\n"
    found = tree_memory(process.pid)
    process.stdin.close()
    process.stdout.close()
    assert process.wait() == 0
    assert len(found) == 2 and next(iter(found)).startswith("tcexport (")
    assert 50e6 < sum(found.values()) < 200e6 and max(found.values()) > 50e6


@linux
def test_the_seconds_of_children_that_ended_count() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); "
    parent += "print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    found = tree_processor(process.pid)
    process.stdin.close()
    process.stdout.close()
    assert process.wait() == 0
    assert 0.5 <= found < 2


@linux
def test_the_stages_of_a_check_have_seconds_and_memory(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\n\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.relu(x)\n\n"
        "model = Net()\n"
        "example_inputs = (torch.randn(2, 3),)\n"
    )
    cost = measure([str(model)])
    assert (
        cost.status == 0 and cost.seconds > sum(each.seconds for each in cost.stages.values()) > 0
    )
    assert cost.processor > sum(each.processor for each in cost.stages.values()) > 1
    assert {"load the source", "trace", "verify against eager"} <= set(cost.stages)
    assert cost.peak > 1e8  # torch alone is more
    assert "| trace | " in table(cost)


def test_a_table_says_what_is_allowed_beside_the_weights() -> None:
    stages = {"trace": Stage(3.5, 4.25, 2_000_000_000)}
    cost = Cost(12.0, 13.0, stages, {"tcexport (1)": 2_000_000_000}, 438_000_000)
    lines = table(cost).splitlines()
    assert "| trace | 3.5 | 4.2 | 2.00 GB |" in lines
    assert lines[-1].endswith("3 times the weights + 2 GB are 3.31 GB")
