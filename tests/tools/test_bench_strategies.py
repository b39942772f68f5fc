"""`tcexport bench --strategies`: eager, torch.compile in three ways, and bundles, at some sizes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tcexport.tools.bench_names import BUNDLE, COMPILE_WARMED, EAGER, STRATEGIES
from tcexport.tools.bench_results import Machine, Results, RuntimeResult, Timing
from tcexport.tools.bench_strategies import LABELS, strategy_lines
from tcexport.tools.bench_strategies_plot import strategies_svg
from tcexport.tools.cli import run_command

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return (x * self.scale).cumsum(1) / x.shape[1]

def model():
    return Net(0.5)
"""
INPUT = ("--input", "x=float32[batch=2,seq=5]", "--axes", "x=batch,seq")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    (folder / "net.py").write_text(MODEL)
    command = ["export", str(folder / "net.py"), *INPUT, "--target", "cpu:x86-64-v3", "-q"]
    out = str(folder / "net.tcpkg")
    assert run_command([*command, "--dynamic", "batch=1..8,seq=1..64", "-o", out]) == 0
    return folder


def test_each_strategy_is_timed_at_the_users_sizes_and_its_compilations_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bundle has no variants: its source is exported with some, for these sizes."""
    capsys.readouterr()
    command = ["bench", str(folder / "net.tcpkg"), "--against", str(folder / "net.py"), *INPUT]
    command += ["--strategies", "--sizes", "batch=2,seq=8", "--sizes", "batch=2,seq=32", "-q"]
    command += ["--rounds", "2", "--threads", "1", "--plot", str(folder / "plot.svg")]
    assert run_command([*command, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = {each["name"]: each for each in data["runtimes"]}
    assert list(found) == list(STRATEGIES)
    for name, each in found.items():
        assert not each["failure"] and not each["skipped"], (name, each)
        assert all(timing["right"] and timing["first"] > 0 for timing in each["timings"]), name
    compiled = {
        name: [timing["compiled"] for timing in each["timings"]] for name, each in found.items()
    }
    assert compiled[BUNDLE] == compiled["bundle-general"] == compiled[EAGER] == [0, 0]
    assert compiled["compile-auto"] == [1, 1], "static, then dynamic"
    assert compiled["compile-dynamic"] == [1, 0]
    assert compiled[COMPILE_WARMED] == [0, 0], "nobody waits for what was compiled before"
    totals = {name: each["compilations"] for name, each in found.items()}
    assert totals["compile-auto"] == totals[COMPILE_WARMED] == 2
    assert totals["compile-dynamic"] == 1 and totals[BUNDLE] == 0
    assert found[COMPILE_WARMED]["build"] > 0 and found[BUNDLE]["build"] > 0
    assert found[BUNDLE]["notes"]["variants"] == "at_0; at_1", "each size has code of its own"
    assert "variants" not in found["bundle-general"]["notes"]
    drawing = (folder / "plot.svg").read_text()
    assert drawing.count("<circle") == 2 * len(STRATEGIES) * 2 + 2
    ElementTree.fromstring(drawing)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--against", "net.py", "--runtimes", "eager"), "give one"),
        ((), "--against model.py"),
        (("--against", "net.py"), "say which sizes matter"),
        (("--against", "net.py", "--sizes", "batch=9,seq=1"), "the bundle serves batch=1..8"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert run_command(["bench", str(folder / "net.tcpkg"), "--strategies", "-q", *options]) == 2
    assert says in capsys.readouterr().err
    assert run_command(["bench", str(folder / "net.tcpkg"), "--train"]) == 2


def _made() -> Results:
    def timing(size: int, seconds: float, first: float, compiled: int) -> Timing:
        samples = (seconds, seconds)
        return Timing({"n": size}, first, samples, 0.0, True, compiled=compiled)

    runtimes = (
        RuntimeResult(BUNDLE, timings=(timing(1, 1e-5, 2e-5, 0), timing(8, 2e-5, 3e-5, 0))),
        RuntimeResult("bundle-general", skipped="no code for all sizes"),
        RuntimeResult(EAGER, timings=(timing(1, 2e-5, 1e-3, 0), timing(8, 3e-5, 4e-5, 0))),
        RuntimeResult(
            "compile-auto",
            timings=(timing(1, 1e-5, 4.0, 1), Timing({"n": 8}, failure="RuntimeError: no")),
        ),
        RuntimeResult("compile-dynamic", failure="it could not be loaded"),
        RuntimeResult(
            COMPILE_WARMED,
            build=9.0,
            built=2,
            timings=(timing(1, 4e-5, 5e-5, 0), timing(8, 2e-5, 3e-5, 0)),
        ),
    )
    machine = Machine("cpu", 2, "x86-64-v4", 1 << 30, "Linux", 0.1, {})
    sizes = ({"n": 1}, {"n": 8})
    return Results("m.tcpkg", "Net", "m.py", 1, 2, machine, (), sizes, runtimes)


def test_the_report_tells_first_calls_later_calls_and_compilations() -> None:
    lines = list(strategy_lines(_made()))
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    assert ["torch.compile", "4.00 s", "1", "10.0 µs", "1.00x", "error 0.0e+00"] in [
        [cell.strip() for cell in row] for row in cells
    ]
    told = "\n".join(lines)
    assert "failed: RuntimeError: no" in told
    assert "skipped, no code for all sizes" in told and "it could not be loaded" in told
    warmed = next(line for line in lines[::-1] if LABELS[COMPILE_WARMED] in line)
    assert warmed.split()[-5:] == ["9.00", "s", "80.0", "µs", "2.00x"], warmed


def test_the_plot_shows_every_call_and_names_what_failed() -> None:
    drawing = strategies_svg(_made())
    ElementTree.fromstring(drawing)
    assert drawing.count("<circle") == 2 * (2 + 2 + 1 + 2) + 2
    assert drawing.count(">failed<") == 1
    assert "first call 4.00 s" in drawing
