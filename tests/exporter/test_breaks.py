"""What a trace cannot keep, beside the snippets: effects outside, state everywhere, logs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.errors import Diagnostic
from tcexport.exporter.export import check
from tcexport.exporter.source import source_in_memory
from tcexport.exporter.state import Snapshot
from tcexport.tools.cli import run_command

ROWS = torch.linspace(0.01, 0.99, 30).reshape(5, 6)


def said_of(module: nn.Module) -> tuple[bool, tuple[Diagnostic, ...]]:
    """Whether a model is refused, and all that is said of it."""
    source = source_in_memory(module.eval(), (ROWS,), {}, {"x": ("n", None)})
    try:
        return False, check(source, dynamic={"n": None}).notes
    except tcexport.ExportError as error:
        return True, error.diagnostics


class WritesHere(nn.Module):
    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.calls = 0

    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        torch.save(x, self.folder / "saved.pt")
        with open(self.folder / "log.txt", "a") as file:
            file.write("called\n")
        return x


def test_a_model_with_effects_outside_is_called_once_and_not_again(tmp_path: Path) -> None:
    refused, found = said_of(WritesHere(tmp_path))
    assert refused
    assert {each.code for each in found} == {"TC102", "TC111", "TC112"}
    assert (tmp_path / "log.txt").read_text() == "called\n"


class Nested(nn.Module):
    """State in every place that a call can reach."""

    def __init__(self):
        super().__init__()
        self.deep = {"a": [1, {"b": 2}], "t": (torch.zeros(2), [3])}
        self.array = np.zeros(3)
        self.generator = torch.Generator().manual_seed(5)
        self.plain = torch.zeros(3)
        self.register_buffer("buffer", torch.zeros(3))
        self.weight = nn.Parameter(torch.zeros(3))
        self.order = {"x": 1, "y": 2}

    def forward(self, x):
        self.deep["a"][1]["b"] += 1
        self.deep["t"][1].append(x)
        self.array += 1
        noise = torch.rand(6, generator=self.generator)
        self.plain.add_(1)
        self.buffer.numpy()[0] = 7
        self.weight.data.mul_(0).add_(2)
        self.order["x"] = self.order.pop("x")
        self.new = x
        del self.deep["a"][0]
        return x + noise


def test_state_is_found_wherever_it_is_and_put_back_exactly() -> None:
    module = Nested().eval()
    snapshot = Snapshot(module)
    objects = (module.deep, module.deep["a"], module.deep["t"][1], module.array, module.plain)
    refused, found = said_of(module)
    assert refused
    said = " ".join(each.message for each in found)
    for name in (
        "self.deep['a'][1]",
        "self.deep['t'][1]",
        "self.array",
        "plain",
        "buffer",
        "weight",
    ):
        assert name in said, said
    assert not snapshot.changes()
    assert objects == (
        *(module.deep, module.deep["a"], module.deep["t"][1], module.array, module.plain),
    )
    assert module.deep["a"] == [1, {"b": 2}] and module.deep["t"][1] == [3]
    assert list(module.order) == ["x", "y"] and not hasattr(module, "new")
    for tensor in (module.plain, module.buffer, module.weight):
        assert tensor.tolist() == [0.0, 0.0, 0.0]


def test_check_shows_lines_and_json_carries_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import os, torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        x = x * float(os.environ.get('SCALE', '2'))\n"
        "        if x.sum() > 0:\n"
        "            x = x * 2\n"
        "        torch.save(x, os.devnull)\n"
        "        return x\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(text)
    arguments = ["check", "net.py", "--input", "x=float32[n=4]", "--dynamic", "n", "-q"]
    assert run_command([*arguments]) == 1
    told = capsys.readouterr().err
    for line in (
        "error[TC102]", "net.py:5   if x.sum() > 0:", "try: torch.where",
        "error[TC112]", "net.py:7   torch.save(x, os.devnull)",
        "warning[TC106] os.environ['SCALE']", "net.py:4   x = x * float(os.environ",
    ):  # fmt: skip
        assert line in told
    assert run_command([*arguments, "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)["error"]["diagnostics"]
    assert [(each["code"], each["location"]["line"], each["severity"]) for each in data] == [
        ("TC102", 5, "error"),
        ("TC112", 7, "error"),
        ("TC106", 4, "warning"),
    ]


def test_breaks_are_told_as_they_are_met_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCEXPORT_LOGS", "graph_breaks")
    said_of(WritesHere(tmp_path))
    told = capsys.readouterr().err
    assert "[tcexport graph_breaks]" in told
    for line in ("a branch depends on the values of a tensor", "open()", "torch.save()"):
        assert line in told


class Counts(nn.Module):
    """Gives back the buffer that it has just written to, as it is."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        return self.total


def test_a_buffer_that_is_written_and_given_back_is_state_and_no_accident() -> None:
    model = Counts()
    refused, found = said_of(model)
    assert not refused
    assert [each.code for each in found] == ["TC122"]
    assert not model.total.any()
