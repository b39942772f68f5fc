"""What a trace cannot keep: refused or reported, all in one run, on the user's own lines."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter.export import CheckReport, check
from tcexport.exporter.source import source_in_memory
from tcexport.exporter.state import Snapshot
from tcexport.tools.cli import run_command

from . import broken

ROWS = torch.linspace(0.01, 0.99, 30).reshape(5, 6)
MODELS = [
    each
    for each in vars(broken).values()
    if isinstance(each, type) and issubclass(each, nn.Module) and each is not broken.Mended
]
_OWED = re.compile(r"# ((?:TC\d{3} ?)+)(\w+)?$")


def owed(model: type) -> set[tuple[int, str]]:
    """(line, code) of every comment in the model's class, or that names the model elsewhere."""
    lines, first = inspect.getsourcelines(model)
    found = set()
    for number, line in enumerate(inspect.getsource(broken).splitlines(), 1):
        match = _OWED.search(line)
        if match is None:
            continue
        inside = first <= number < first + len(lines)
        if (match[2] is None and inside) or match[2] == model.__name__:
            found |= {(number, code) for code in match[1].split()}
    return found


def checked(module: nn.Module, *args: Any) -> CheckReport:
    axes: dict[str, Any] = {"x": ("n", None)}
    if len(args) == 3:
        axes["noise"] = ("n", None)
    return check(source_in_memory(module.eval(), args or (ROWS,), {}, axes), dynamic={"n": None})


def said_of(module: nn.Module) -> tuple[bool, tuple[tcexport.artifacts.errors.Diagnostic, ...]]:
    """Whether a model is refused, and all that is said of it."""
    try:
        return False, checked(module).notes
    except tcexport.ExportError as error:
        return True, error.diagnostics


def everything(module: nn.Module) -> dict[str, Any]:
    """All state that the user has, as plain text and bits."""
    return {
        "attributes": copy.deepcopy(
            [
                {key: each for key, each in vars(part).items() if _is_plain(key, each)}
                for part in module.modules()
            ]
        ),
        "tensors": {name: each.clone() for name, each in module.state_dict().items()},
        "globals": copy.deepcopy(
            (broken.COUNT, broken.SEEN, broken.SETTINGS, broken.Settings.calls)
        ),
        "random": (random.getstate(), broken.DICE.getstate(), str(np.random.get_state())),
        "torch": torch.get_rng_state(),
        "defaults": list(broken.remember.__defaults__ or ()),
        "modes": (torch.get_num_threads(), torch.is_grad_enabled()),
        "hooks": [id(each) for each in _hooks()],
        "logs": [logging.getLogger(name).level for name in ("torch._dynamo", "torch.export")],
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def _hooks() -> tuple[Any, ...]:
    return (sys.gettrace(), sys.getprofile(), sys.stdout, sys.stderr, open, torch.save)


def _is_plain(key: str, value: Any) -> bool:
    plain = isinstance(value, (int, float, str, bool, list, dict, type(None)))
    return plain and not key.startswith("_")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_each_line_gets_what_is_owed_and_the_model_stays_as_it_was(model: type) -> None:
    module = model().eval()
    before = everything(module)
    refused, found = said_of(module)
    wanted = owed(broken.If) if model is broken.InSubmodule else owed(model)
    said = {(each.location.line if each.location else 0, each.code) for each in found}
    assert said == wanted, "\n".join(each.render() for each in found)
    assert refused == any(each.severity == "error" for each in found)
    for each in found:
        assert each.location is not None and Path(each.location.file).name == "broken.py"
        assert "# TC" in each.location.text
        assert each.tries or each.severity == "note"
        assert not re.search(r"\bs\d+\b|\bu\d+\b|L\[|flat_args|orch\.compile|ynamo", each.render())
    _assert_equal(everything(module), before)


def _assert_equal(after: dict[str, Any], before: dict[str, Any]) -> None:
    tensors = {key: (after.pop(key), before.pop(key)) for key in ("tensors", "torch")}
    for one, other in tensors.values():
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert after == before


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        (broken.If, "torch.where(condition, a, b)"),
        (broken.If, "torch.cond("),
        (broken.EncoderMask, "is_causal=True"),
        (broken.ToList, "x > x.mean(), not x > x.mean().item()"),
        (broken.Unwrap, "the function of the same name in torch"),
        (broken.Checksum, "self.value = …"),
        (broken.Saves, "return the tensor"),
        (broken.ReadsFile, "read files in __init__"),
        (broken.WritesData, "y = y + 1, not y.data.add_(1)"),
        (broken.WritesInput, "x.clone()"),
        (broken.Counter, "take self.calls as an input and return the new value"),
        (broken.Cache, "compute it in __init__ and only read self.mask in forward"),
        (broken.TorchDice, "the random tensor as an input"),
        (broken.Time, "take the time as an input"),
        (broken.WritesToTerminal, "print(…)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "hint",
)
def test_a_refusal_says_what_to_type(model: type, hint: str) -> None:
    refused, found = said_of(model().eval())
    assert refused
    assert any(hint in attempt for each in found for attempt in each.tries)


def test_what_the_hints_say_is_taken_without_a_word() -> None:
    report = checked(broken.Mended(), ROWS, torch.rand(5, 6), torch.tensor(1.5))
    assert not report.notes


def test_a_cause_deep_in_torch_is_told_at_the_users_line_with_its_own_beside_it() -> None:
    _, (found,) = said_of(broken.EncoderMask().eval())
    assert found.location is not None
    assert found.location.text.startswith("return self.encoder(rows, mask=mask)")
    assert any("torch/nn/modules/" in note for note in found.notes)


def test_what_is_met_again_is_counted_not_repeated() -> None:
    _, (found,) = said_of(broken.Again().eval())
    assert "met 2 times in one call" in found.notes


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
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCEXPORT_LOGS", "graph_breaks")
    said_of(broken.Several().eval())
    told = capsys.readouterr().err
    assert "[tcexport graph_breaks]" in told
    for line in ("a branch depends on the values of a tensor", "zlib.crc32()", "torch.save()"):
        assert line in told
