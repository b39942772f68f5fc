"""The tools on a model that keeps state: each call is on the state of the export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tcexport.runtime import load
from tcexport.tools import cold_start
from tcexport.tools.cli import run_command
from tcexport.tools.soak import draw_cases, soak
from tcexport.tools.zoo_row import run_row
from tcexport.tools.zoo_rows import Model, floats

MODEL = """
import torch

class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return x + self.total

model = Sums()
example_inputs = (torch.randn(3, 4),)
axes = {"x": ("n", None)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stateful")
    (folder / "sums.py").write_text(MODEL)
    options = [
        "--dynamic",
        "n=1..64",
        "--specialize",
        "n=8",
        "--keep-variants",
        "--target",
        "cpu:x86-64-v3",
        "-q",
    ]
    out = str(folder / "sums.tcpkg")
    assert run_command(["export", str(folder / "sums.py"), *options, "-o", out]) == 0
    return folder


def test_bench_begins_anew_at_each_size_in_every_runtime(folder: Path, capsys) -> None:
    command = ["bench", str(folder / "sums.tcpkg"), "--against", str(folder / "sums.py"), "-q"]
    command += ["--runtimes", "bundle,eager,aoti", "--sizes", "n=3", "--sizes", "n=8"]
    assert run_command([*command, "--rounds", "2", "--format", "json"]) == 0
    bundle, eager, aoti = json.loads(capsys.readouterr().out)["runtimes"]
    assert [each["right"] for each in bundle["timings"]] == [True, True]
    assert [each["right"] for each in eager["timings"]] == [True, True]
    assert "keeps state (total)" in aoti["failure"]


def test_advise_and_cold_start_call_it(folder: Path, capsys) -> None:
    command = ["advise", str(folder / "sums.tcpkg"), "-q", "--rounds", "4", "--format", "json"]
    assert run_command(command) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["sizes"] == {"n": 8}
    arguments = [str(folder / "sums.tcpkg"), "--rounds", "1", "--format", "json"]
    done = CliRunner().invoke(cold_start.main, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["bundle"]["wall"] > 0


NOISE = """
import torch

class Noise(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)

model = Noise()
example_inputs = (torch.randn(3, 4),)
"""


def test_run_takes_a_seed_for_what_a_model_draws(tmp_path: Path, capsys) -> None:
    source, bundle = tmp_path / "noise.py", str(tmp_path / "noise.tcpkg")
    source.write_text(NOISE)
    options = ["--target", "cpu:x86-64-v3", "-q", "-o", bundle]
    assert run_command(["export", str(source), *options]) == 0
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    command = ["run", bundle, "--input", f"x={tmp_path / 'x.npy'}"]
    assert run_command(command) == 2
    said = capsys.readouterr().err
    assert "TC325" in said and "try: --seed 1234" in said
    drawn = []
    for seed in ("7", "7", "8"):
        out = tmp_path / "out.npy"
        assert run_command([*command, "--seed", seed, "-o", str(out)]) == 0
        drawn.append(np.load(out))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any() and drawn[0].min() >= 0 and drawn[0].max() < 1


def test_a_soak_compares_equal_calls(folder: Path) -> None:
    model = load(folder / "sums.tcpkg", device="cpu", num_threads=1)
    wrong, _ = soak(model, draw_cases(model, 4), threads=4, seconds=1, tell=lambda line: None)
    assert wrong == 0
    assert model.metrics.calls > 4


def _sums() -> tuple[torch.nn.Module, dict]:
    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.sum(0))
            return x + self.total

    return Sums(), {"x": floats("n", 4)}


def test_a_row_of_the_zoo_may_keep_state() -> None:
    outcome = run_row(Model("sums", _sums, {"n": (1, 9)}))
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert outcome.sizes > 1
