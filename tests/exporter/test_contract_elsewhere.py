"""The same calls get the same answers with asserts off, and where neither torch nor TVM is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

CALLS = """
import json, sys
import numpy as np

def calls():
    x, ids, y = np.ones((3, 8), np.float32), np.array([0, 5, 9]), np.ones(16, np.float32)
    divisor = np.array([1, 2, 3])
    good = {"batch": {"x": x, "ids": ids}, "y": y, "divisor": divisor}
    yield good
    yield {**good, "batch": {"x": x}}
    yield {**good, "batch": {"x": [1.0], "ids": ids}}
    yield {**good, "batch": {"x": x, "ids": ids.astype("int32")}}
    yield {**good, "batch": {"x": x[0], "ids": ids}}
    yield {**good, "batch": {"x": x[:0], "ids": ids}}
    yield {**good, "batch": {"x": x[:2], "ids": ids}}
    nine = {"x": np.ones((9, 8), np.float32), "ids": np.zeros(9, np.int64)}
    yield {**good, "batch": nine, "divisor": np.ones(9, np.int64)}
    yield {**good, "y": y[:15]}
    yield {**good, "batch": {"x": x, "ids": np.array([0, 10, 1])}}
    yield {**good, "batch": {"x": x * 7, "ids": ids}}
    yield {**good, "batch": {"x": x * 0, "ids": ids}}
    yield {**good, "divisor": np.array([1, 0, 3])}
    yield {**good, "scale": True}
    yield {**good, "extra": 1}
    yield good

def answers(path):
    from tcexport.artifacts.errors import GuardError
    from tcexport.runtime import load
    model = load(path)
    for call in calls():
        try:
            yield [np.asarray(each).tolist() for each in model(**call)]
        except GuardError as error:
            yield [error.code, error.argument, error.axis, error.got, error.needs, str(error)]
    yield [model.metrics.violations, model.metrics.guards]
"""
ELSEWHERE = (
    CALLS
    + """
class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tvm", "sympy", "onnx", "z3"):
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
assert False, "asserts are on"
print(json.dumps(list(answers(sys.argv[1]))))
"""
)


class Every(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, batch, y, divisor, scale=2):
        x, ids = batch["x"], batch["ids"]
        if x.shape[0] > x.shape[1]:
            raise ValueError("more rows than columns")
        torch._assert_async((x > 0).all(), "all positive")
        computed = self.table((x * 2).long()).mean((1, 2))
        return computed + self.table(ids).sum(-1) + y.mean(), ids // divisor * scale


def test_every_refusal_is_the_same_elsewhere(export_once: Callable[..., Path]) -> None:
    scope: dict[str, Any] = {}
    exec(CALLS, scope)
    good = next(iter(scope["calls"]()))
    example = {
        "batch": {name: torch.from_numpy(each) for name, each in good["batch"].items()},
        "y": torch.from_numpy(good["y"]),
        "divisor": torch.from_numpy(good["divisor"]),
    }
    path = export_once(
        "every", Every().eval(), (), kwargs=example,
        axes={
            "batch.x": ("n", "m"), "batch.ids": ("n",), "y": ("2*m",), "divisor": ("n",),
        },
        dynamic={"n": None, "m": None},
    )  # fmt: skip
    here = json.loads(json.dumps(list(scope["answers"](path))))
    codes = [answer[0] for answer in here[1:-2]]
    assert codes == [
        "TC302", "TC303", "TC304", "TC305", "TC301", "TC306", "TC307", "TC306", "TC309", "TC309",
        "TC311", "TC311", "TC308", "TC302",
    ]  # fmt: skip
    assert here[0] == here[-2], "the model is whole after a refusal"
    with torch.no_grad():
        want = Every().eval()(**example)
    assert np.shape(here[0][0]) == want[0].shape and here[0][1] == want[1].tolist()
    for flags in ([], ["-O"]):
        script = ELSEWHERE if flags else ELSEWHERE.replace('assert False, "asserts are on"', "")
        done = subprocess.run(
            [sys.executable, *flags, "-c", script, str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not done.returncode, done.stderr
        assert json.loads(done.stdout) == here
