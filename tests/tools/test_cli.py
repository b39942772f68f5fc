"""The command as a person meets it: help, mistakes, statuses, streams, interruptions."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tcexport.tools import cli

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100, 4)

    def forward(self, ids):
        print("a model that prints")
        return self.table(ids)

example_inputs = (torch.zeros(2, 5, dtype=torch.int64),)
axes = {"ids": ("batch", "seq")}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "tcexport", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Typed:
    """A command line run within this process (torch is imported once for all of them)."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *args: str) -> None:
        self.status = cli.run_command(args)
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err


# --- help and start -------------------------------------------------------------------------------


def test_help_shows_the_main_job_and_every_command(tmp_path: Path) -> None:
    for args in ([], ["--help"], ["-h"]):
        shown = run(*args, cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "tcexport model.py --dynamic seq" in shown.stdout
        for name, what in cli.COMMANDS.items():
            assert re.search(rf"^  {name}  +{re.escape(what)}$", shown.stdout, re.MULTILINE)
        assert "Exit statuses: 0 done, 1 export refused" in shown.stdout


def test_version_is_the_installed_one(tmp_path: Path) -> None:
    from importlib.metadata import version

    assert run("--version", cwd=tmp_path).stdout == f"tcexport {version('tcexport')}\n"


@pytest.mark.parametrize("args", [["--help"], ["export", "--help"], ["explain", "TC210"]])
def test_a_light_command_imports_nothing_heavy(tmp_path: Path, args: list[str]) -> None:
    code = dedent(f"""
        import sys
        from tcexport.tools.cli import run_command
        status = run_command({args!r})
        heavy = {{"torch", "tvm", "tvm_ffi", "numpy", "rich", "sympy", "safetensors"}}
        print("heavy:", sorted(heavy & set(sys.modules)), status)
    """)
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.endswith("heavy: [] 0\n")


def test_help_costs_less_than_150_ms_on_top_of_python(tmp_path: Path) -> None:
    def cheapest(*args: str) -> float:
        """Seconds of processor time; the clock on the wall would measure who else is at work."""
        seconds = []
        for _ in range(5):
            process = subprocess.Popen(
                [sys.executable, *args], stdout=subprocess.DEVNULL, cwd=tmp_path
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            seconds.append(usage.ru_utime + usage.ru_stime)
        return min(seconds)

    assert cheapest("-m", "tcexport", "--help") - cheapest("-c", "pass") < 0.15


# --- mistakes that need no torch ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (
            "inspct m.tcpkg",
            "error[TC008] there is no command inspct\n"
            "  commands: export, check, inspect, run, explain, bench, advise, diff, keygen, "
            "sign, verify-signature, weights\n"
            "  try: tcexport inspect\n",
        ),
        (
            "model.py --dynamc seq",
            "error[TC008] tcexport export has no option --dynamc\n"
            "  try: --dynamic\n"
            "  try: tcexport export --help\n",
        ),
        (
            "model.py --dynamic seq=1-1024",
            "error[TC008] cannot read --dynamic seq=1-1024\n"
            "  '1-1024' is not a range; it is read as NAME, NAME=LO..HI, NAME=LO..HI:STEP or "
            "NAME=LO..\n"
            "  try: --dynamic seq=1..1024\n",
        ),
        ("export", "error[TC008] Missing argument 'SOURCE'\n  try: tcexport export --help\n"),
        (
            "check model.py --format yaml",
            "error[TC008] Invalid value for '--format': 'yaml' is not one of 'text', 'json', 'sarif', "
            "'github'\n"
            "  try: tcexport check --help\n",
        ),
        (
            "explain TC2122",
            "error[TC006] there is no code TC2122\n"
            "  try: tcexport explain TC222\n"
            "  try: tcexport explain   (lists all codes)\n",
        ),
    ],
)
def test_what_is_typed_wrong_says_what_to_type(
    folder: Path, capsys: pytest.CaptureFixture[str], typed: str, shown: str
) -> None:
    found = Typed(capsys, *typed.split())
    assert (found.status, found.out, found.err) == (2, "", shown)


def test_errors_are_json_where_json_was_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for args in (["--dynamc", "x"], ["--dynamic", "x=1"], ["--input", "nope=int64[2]"]):
        found = Typed(capsys, "check", "model.py", "--format", "json", "-q", *args)
        assert (found.status, found.err) == (2, "")
        (diagnostic,) = json.loads(found.out)["error"]["diagnostics"]
        assert diagnostic["code"] in ("TC008", "TC006")
        assert diagnostic["message"] and diagnostic["severity"] == "error"


def test_explain_prints_a_page_by_code_or_number(capsys: pytest.CaptureFixture[str]) -> None:
    pages = {Typed(capsys, "explain", code).out for code in ("TC210", "tc210", "210")}
    assert len(pages) == 1
    assert pages.pop().startswith("TC210: range can't be served\n\nA range given with `--dynamic`")
    listed = Typed(capsys, "explain").out.splitlines()
    assert "TC001  source not found" in listed and len(listed) > 40


# --- mistakes about the source --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (
            "modle.py --dynamic seq",
            "error[TC001] there is no file modle.py\n  try: tcexport model.py\n",
        ),
        (
            "model.py --dynamic sequence",
            "error[TC006] no axis is called sequence\n"
            "  axes: ids (batch, seq)\n"
            "  try: --dynamic seq\n",
        ),
        (
            "model.py --dynamic xyz",
            "error[TC006] no axis is called xyz\n"
            "  axes: ids (batch, seq)\n"
            "  try: --dynamic batch\n",
        ),
        (
            "model.py --axes idx=batch,seq",
            "error[TC006] axes: there is no input idx\n"
            "  tensor inputs: ids\n"
            "  try: --axes ids=batch,seq\n"
            "  try: axes={\"ids\": ('batch', 'seq')}\n",
        ),
        (
            "model.py:Nett",
            "error[TC002] model.py defines no Nett\n"
            "  nn.Module classes in it: Net\n"
            "  try: tcexport model.py:Net\n",
        ),
        (
            "model.py -o nowhere/m.tcpkg",
            "error[TC012] cannot write nowhere/m.tcpkg: there is no folder nowhere\n",
        ),
    ],
)
def test_what_does_not_fit_the_source_says_what_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str], typed: str, shown: str
) -> None:
    found = Typed(capsys, *typed.split(), "-q")
    assert (found.status, found.out, found.err) == (2, "", shown)
    assert sorted(each.name for each in folder.iterdir()) == ["model.py"]


def test_a_file_that_fails_shows_its_own_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text(
        "import torch\n\n\ndef make():\n    return 1 / 0\n\n\nmake()\n"
    )
    found = Typed(capsys, "broken.py", "-q")
    assert found.status == 2
    lines = [line for line in found.err.splitlines() if "^" not in line]
    assert lines == [
        "error[TC003] broken.py raised ZeroDivisionError: division by zero",
        "  broken.py:5   return 1 / 0",
        "  Traceback (most recent call last):",
        f'    File "{folder}/broken.py", line 8, in <module>',
        "      make()",
        f'    File "{folder}/broken.py", line 5, in make',
        "      return 1 / 0",
        "  ZeroDivisionError: division by zero",
    ]


def test_a_missing_extra_is_named_with_the_line_that_installs_it(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from tcexport.tools.cli import run_command;"
        "sys.exit(run_command(['model.py', '--dynamic', 'seq']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (
        "error[TC011] exporting needs what is not installed here: torch\n"
        "  loading and running bundles works without\n"
        "  try: pip install 'tcexport[export]', or '.[export]' in a checkout\n"
    )


def test_a_missing_extra_is_named_in_python_too(folder: Path) -> None:
    code = """
        import sys
        sys.modules["torch"] = None
        import tcexport
        try:
            tcexport.export(None, out="x")
        except tcexport.UsageError as error:
            print(error.code)
    """
    command = [sys.executable, "-c", dedent(code)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "TC011\n"


# --- what works -----------------------------------------------------------------------------------


def test_check_shows_ranges_and_guards_with_their_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Typed(capsys, "check", "model.py", "--dynamic", "seq=1..64,batch")
    assert found.status == 0
    assert "seq: 1..64   (<= 64 and >= 1: --dynamic seq=1..64)" in found.out
    assert "guard: 0 <= ids <= 99, each value" in found.out
    assert "return self.table(ids)  (model.py:11)" in found.out
    assert "a model that prints" in found.err, "what the model prints is no result"
    assert "a model that prints" not in found.out
    stages = [line for line in found.err.splitlines() if re.fullmatch(r"[\w ]+ \d+\.\d s", line)]
    assert stages[0].startswith("load the source") and len(stages) >= 3


def test_check_as_json_is_the_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Typed(capsys, "check", "model.py", "--dynamic", "seq", "--format=json", "-q")
    contract = json.loads(found.out)["contract"]
    assert [dim["name"] for dim in contract["dims"]] == ["seq"]
    assert contract["inputs"][0]["path"] == "ids"


def test_a_branch_on_data_is_refused_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
    import torch
    class Net(torch.nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x * 2
            return x * 3
    """
    (folder / "branch.py").write_text(dedent(text))
    found = Typed(capsys, "branch.py", "--input", "x=float32[n=4]", "--dynamic", "n", "-q")
    assert found.status == 1
    assert "error[TC102]" in found.err
    assert "branch.py:5   if x.sum() > 0:" in found.err
    assert not list(folder.glob("*.tcpkg"))


# --- terminals, pipes, signals --------------------------------------------------------------------


def on_a_terminal(*args: str, cwd: Path, **environment: str) -> tuple[int, str]:
    """Status and output of the command with stderr and stdout on a terminal."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "tcexport", *args], stdout=slave, stderr=slave, cwd=cwd, env=env
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(master)
    return process.wait(), shown.decode()


def test_a_terminal_gets_colours_and_a_spinner(folder: Path) -> None:
    status, shown = on_a_terminal("check", "model.py", "--dynamic", "sq", cwd=folder)
    assert status == 2
    assert "load the source …" in shown
    assert "\x1b[1;31merror[TC006]\x1b[0m" in shown
    assert "\x1b[32m  try: --dynamic seq\x1b[0m" in shown


def test_no_color_means_no_colour(folder: Path) -> None:
    status, shown = on_a_terminal("check", "nofile.py", cwd=folder, NO_COLOR="1")
    assert status == 2
    assert "error[TC001] there is no file nofile.py" in shown
    assert "\x1b[1;31m" not in shown and "\x1b[32m" not in shown


def test_ctrl_c_is_clean(folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import sys, time\nprint('READY', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tcexport", "slow.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = ""
    while "READY" not in seen:
        seen += process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == "interrupted: nothing was written\n"
    assert not list(folder.glob("*.tcpkg"))


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "tcexport", "explain"],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        check=False,
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")


def test_a_fault_of_ours_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tcexport.tools import explain

    monkeypatch.setattr(explain, "page", lambda rule: 1 / 0)
    found = Typed(capsys, "explain", "TC001")
    assert found.status == 5
    assert "error[TC590] ZeroDivisionError: division by zero" in found.err
    assert "this is a bug in tcexport" in found.err
    assert "Traceback" not in found.err
    assert "try:" not in found.err  # `explain` has no -v


def test_a_fault_of_ours_advises_v_where_there_is_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tcexport.tools import export

    monkeypatch.setattr(export.command, "callback", lambda **options: 1 / 0)
    for given in (["model.py"], ["export", "model.py"]):
        assert "try: again with -v" in Typed(capsys, *given).err
        found = Typed(capsys, *given, "-v").err
        assert "Traceback" in found
        assert "again with -v" not in found


# --- the package ----------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy(tmp_path: Path) -> None:
    code = """
        import sys
        import tcexport
        tcexport.GuardError, tcexport.__version__
        print(sorted({"torch", "tvm", "tvm_ffi", "click", "rich", "sympy"} & set(sys.modules)))
        print([name for name in tcexport.__all__ if name not in dir(tcexport)])
    """
    command = [sys.executable, "-c", dedent(code)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout == "[]\n[]\n"


def test_a_name_that_the_package_has_not_is_an_attribute_error() -> None:
    import tcexport

    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        tcexport.lod  # noqa: B018
