"""What `tcexport bench` takes for right of a model that rounds to integers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tcexport.artifacts.contract import TensorOutput
from tcexport.tools.bench_judged import judged, outputs_file
from tcexport.tools.bench_names import BUNDLE, EAGER
from tcexport.tools.bench_processes import WorkerFailed
from tcexport.tools.bench_results import Timing

_CODES = torch.arange(100, dtype=torch.float32)


class Again:
    """Eager's process, which gives a code that is one step away in each further answer, or fails."""

    def __init__(self, step: float) -> None:
        self.step, self.asked = step, 0

    def ask(self, command: str, *, outputs: str) -> dict[str, Any]:
        self.asked += 1
        if not self.step:
            raise WorkerFailed("out of memory")
        for number in range(2):
            save_file({"0": _CODES + self.step * (_CODES == number)}, f"{outputs}.{number}")
        return {"count": 2}


@pytest.mark.parametrize(
    ("away", "step", "right"),
    [(0.0, 1.0, True), (1.0, 1.0, True), (9.0, 1.0, False), (1.0, 0.0, False)],
)
def test_as_far_as_eager_is_from_itself(
    tmp_path: Path, away: float, step: float, right: bool
) -> None:
    save_file({"0": _CODES}, outputs_file(tmp_path, EAGER))
    save_file({"0": _CODES + away * (_CODES == 50)}, outputs_file(tmp_path, BUNDLE))
    output = TensorOutput(path="result", dtype="float32", shape=(100,), result=0)
    firsts = {name: Timing({}, first=1.0) for name in (EAGER, BUNDLE)}
    eager = Again(step)
    found = judged(firsts, SimpleNamespace(outputs=(output,)), tmp_path, eager)
    assert found[EAGER].right is True
    assert found[BUNDLE].right is right
    assert found[BUNDLE].error == away
    assert eager.asked == (away != 0)
