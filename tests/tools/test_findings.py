"""What is found in a source, in every format, and the levels that a project gives it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tcexport.artifacts.errors import Diagnostic, Location
from tcexport.artifacts.rules import RULES
from tcexport.tools import cli
from tcexport.tools.annotations import annotation
from tcexport.tools.failures import Place
from tcexport.tools.sarif import sarif

# The schema of https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/, unchanged.
SCHEMA = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text())

MODEL = """
import os
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        print("50 %, done")
        x = x * float(os.environ.get("SCALE", "2"))
        return x.relu()

class Branch(torch.nn.Module):
    def forward(self, x):
        print("either")
        return x if x.sum() > 0 else -x

class Histogram(torch.nn.Module):
    def forward(self, x):
        return x.histc(4)

example_inputs = (torch.ones(2, 5),)
axes = {"x": ("rows", None)}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the model in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "model.py").write_text(MODEL)
    return tmp_path


class Typed:
    """A command line run within this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], typed: str) -> None:
        capsys.readouterr()
        self.status = cli.run_command(typed.split())
        self.out, self.err = capsys.readouterr()


def results(log: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """Code, level, file and line of each result of a SARIF log that the schema accepts."""
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    found = []
    for each in log["runs"][0]["results"]:
        place = each["locations"][0]["physicalLocation"]
        file, line = place["artifactLocation"]["uri"], place["region"]["startLine"]
        rule = log["runs"][0]["tool"]["driver"]["rules"][each["ruleIndex"]]
        assert rule["id"] == each["ruleId"]
        found.append((each["ruleId"], each["level"], file, line))
    return found


# --- statuses and tables --------------------------------------------------------------------------


def test_an_op_that_cannot_be_lowered_is_status_1_with_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Typed(capsys, "check nets/model.py:Histogram -q --dynamic rows")
    assert found.status == 1
    assert "error[TC501] aten.histc.default is not supported" in found.err
    lines = found.out.splitlines()
    assert "no guard: dtypes, ranks, sizes and ranges are all that a call is held against" in lines
    assert "ops: 1, of 1 kind; 1 cannot be lowered" in lines
    row = next(line for line in lines if "aten.histc" in line)
    assert row.split()[:3] == ["aten.histc.default", "1", "no:"]
    assert row.endswith("model.py:18   return x.histc(4)")
    as_json = json.loads(Typed(capsys, "check nets/model.py:Histogram -q --format json").out)
    assert [each["code"] for each in as_json["error"]["diagnostics"]] == ["TC501"]
    assert as_json["ops"][0]["supported"] is False and as_json["contract"]["inputs"]


def test_notes_and_warnings_alone_are_status_0_and_no_dim_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Typed(capsys, "check nets/model.py:Net -q")
    assert found.status == 0
    assert "note[TC110]" in found.err and "warning[TC106]" in found.err
    lines = found.out.splitlines()
    assert lines[0] == "no dynamic dim: every size is that of the example"
    assert lines[1].startswith("no guard: ")
    assert "ops: 2, of 2 kinds; all can be lowered" in lines


def test_a_table_that_is_missing_is_not_called_empty(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    import tcexport
    from tcexport.tools.check import lines

    found = tcexport.check(torch.nn.Identity().eval(), (torch.ones(2),))
    assert "no op: the graph only hands its inputs on" in lines(found)
    failed = replace(found, errors=(Diagnostic("TC503", "was killed"),), advice=None)
    assert not any(line.startswith(("no op", "ops:")) for line in lines(failed))


# --- formats --------------------------------------------------------------------------------------


def test_sarif_has_every_finding_with_the_file_as_it_lies_in_the_checkout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Typed(capsys, "check nets/model.py:Net -q --format sarif")
    assert (found.status, found.err.replace("50 %, done\n", "")) == (0, "")
    assert sorted(results(json.loads(found.out))) == [
        ("TC106", "warning", "nets/model.py", 8),
        ("TC110", "note", "nets/model.py", 7),
    ]
    for typed in ("check nets/model.py:Branch -q", "nets/model.py:Branch -q -o m.tcpkg"):
        found = Typed(capsys, f"{typed} --format=sarif")
        assert found.status == 1
        assert results(json.loads(found.out)) == [
            ("TC102", "error", "nets/model.py", 14),
            ("TC110", "note", "nets/model.py", 13),
        ]
    found = Typed(capsys, "check nets/modle.py -q --format sarif")
    log = json.loads(found.out)
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    assert (found.status, log["runs"][0]["results"][0]["ruleId"]) == (2, "TC001")


def test_sarif_of_every_rule_and_severity_fits_the_schema() -> None:
    texts = ("", "x = 'ü' + \"%s\"")
    found = [
        Diagnostic(
            code, "what: it, is", Location("a b/ü.py", 3, text), ("why",), ("try",), severity
        )
        for code in RULES
        for severity, text in zip(("error", "warning"), texts, strict=True)
    ]
    found.append(Diagnostic("TC105", "without a place", severity="note"))
    log = sarif(found, lambda location: None)
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    results = log["runs"][0]["results"]
    assert len(results) == 2 * len(RULES) + 1 and "locations" not in results[-1]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].isascii()
    del log["runs"][0]["tool"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate(log)


def test_github_gets_a_command_for_each_finding(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Typed(capsys, "check nets/model.py:Branch -q --format github")
    assert found.status == 1
    first, second = found.out.splitlines()
    assert first.startswith(
        "::error file=nets/model.py,line=14,title=TC102::a branch depends on the values of a tensor"
        "%0Atry: torch.where(condition, a, b)"
    )
    assert second.startswith("::notice file=nets/model.py,line=13,title=TC110::print() happens")


def test_what_github_would_read_as_its_own_is_escaped() -> None:
    each = Diagnostic("TC106", "100 %\r\n::error::x", Location("a,b:c%.py", 3), severity="warning")
    shown = annotation(each, lambda location: location.file)
    assert shown == ("::warning file=a%2Cb%3Ac%25.py,line=3,title=TC106::100 %25%0D%0A::error::x")
    elsewhere = annotation(each, lambda location: None)
    assert elsewhere.startswith("::warning title=TC106::") and elsewhere.endswith(
        "%0Aa,b:c%25.py:3"
    )


def test_a_line_is_not_looked_for_in_another_file_of_the_same_name(folder: Path) -> None:
    place = Place(folder / "nets")
    line = "return x if x.sum() > 0 else -x"
    assert place.file(Location("model.py", 14, line)) == "nets/model.py"
    assert place.file(Location("model.py", 13, line)) is None
    assert place.file(Location("model.py", 400, line)) is None
    assert place.file(Location("torch/nn/functional.py", 14, line)) is None


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_text_is_coloured_on_a_terminal_alone(folder: Path, no_colour: str) -> None:
    command = [sys.executable, "-m", "tcexport", "check", "nets/model.py:Branch", "-q"]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": no_colour}
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, cwd=folder)
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        shown += data
        if not data:
            break
    os.close(master)
    assert process.wait() == 1
    assert (b"\x1b[1;31merror[TC102]" in shown) == (not no_colour)
    assert (b"\x1b[" in shown) == (not no_colour)
    plain = subprocess.run(command, capture_output=True, cwd=folder, check=False)
    assert b"error[TC102]" in plain.stderr and b"\x1b" not in plain.stderr + plain.stdout


# --- levels ---------------------------------------------------------------------------------------


def test_the_project_sets_levels_and_the_command_line_goes_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = folder / "pyproject.toml"
    project.write_text('[tool.tcexport]\nerror = ["TC106"]\nallow = ["TC110"]\n')
    found = Typed(capsys, "check nets/model.py:Net -q")
    assert found.status == 1
    assert "error[TC106]" in found.err and "TC110" not in found.err
    found = Typed(capsys, "check nets/model.py:Net -q --error TC110")
    assert found.status == 1 and "error[TC110]" in found.err
    (folder / "nets" / "pyproject.toml").write_text("[project]\nname = 'nets'\n")
    found = Typed(capsys, "check nets/model.py:Net -q")
    assert found.status == 0, "the nearest file counts, and says nothing"


@pytest.mark.parametrize(
    ("table", "code", "said"),
    [
        ('allow = ["TC102"]', "TC013", "allow = TC102: branch on data cannot be silenced"),
        ('allow = ["TC106"]', "TC013", "cannot be silenced, the bundle may answer otherwise"),
        ('error = ["TC1O6"]', "TC006", "error = TC1O6: there is no such code"),
        ('eror = ["TC106"]', "TC006", "has no key eror"),
        ('error = "TC106"', "TC008", "error in [tool.tcexport] is no list of codes"),
        ("error = [", "TC008", "cannot read"),
    ],
)
def test_what_a_project_says_wrongly_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], table: str, code: str, said: str
) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.tcexport]\n{table}\n")
    found = Typed(capsys, "check nets/model.py:Net -q")
    assert (found.status, found.out) == (2, "")
    assert f"error[{code}]" in found.err and said in found.err and "pyproject.toml" in found.err


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ("--allow TC999", "TC006", "--allow TC999: there is no such code"),
        ("--error TC11", "TC006", "try: --error TC1"),
        ("--error TC301", "TC013", "no export finds this"),
        ("--allow TC504", "TC013", "cannot be silenced, it refuses the export"),
        ("--allow TC110 --error TC110", "TC008", "TC110 stands in --error and in --allow"),
    ],
)
def test_a_level_that_cannot_be_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], typed: str, code: str, said: str
) -> None:
    for command in ("check nets/model.py:Net", "nets/model.py:Net"):
        found = Typed(capsys, f"{command} -q {typed}")
        assert (found.status, found.out) == (2, "")
        assert f"error[{code}]" in found.err and said in found.err
