"""The main job from the command line: export, inspect, run; and what is left when it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

MODEL = """
import torch
from neighbour import WIDTH

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 3)

    def forward(self, x, scale: float = 2.0):
        return {"y": torch.relu(self.layer(x)) * scale, "rows": x.shape[0]}

model = Net()
example_inputs = (torch.randn(2, WIDTH),)
axes = {"x": ("batch", None)}
"""
TARGET = ("--target", "cpu:x86-64-v3")


def write(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / "neighbour.py").write_text("WIDTH = 5\n")


def run(folder: Path, *args: str, status: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "tcexport", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with model.tcpkg in it, and what the export wrote on stdout and stderr."""
    folder = tmp_path_factory.mktemp("main_job")
    write(folder)
    return (folder, *run(folder, "model.py", "--dynamic", "batch=1..8", *TARGET))


def test_export_prints_the_path_and_tells_the_rest_on_stderr(
    exported: tuple[Path, str, str],
) -> None:
    folder, out, err = exported
    assert out == "model.tcpkg\n"
    assert sorted(each.name for each in folder.glob("*.tcpkg")) == ["model.tcpkg"]
    assert not [each for each in folder.iterdir() if each.name.startswith(".")]
    lines = err.splitlines()
    assert any(line.startswith("load the source ") and line.endswith(" s") for line in lines)
    assert "batch: 1..8   (<= 8 and >= 1: --dynamic batch=1..8)" in lines
    assert any(line.startswith("equals eager ") for line in lines)
    assert any("for cpu:x86-64-v3, of which weights" in line for line in lines)
    assert lines[-3].startswith(
        "a call is 3 ops (2 in kernels of ours) and 60 FLOP at batch=2, 100 %"
    )
    assert lines[-1].startswith("too small to gain in speed")
    assert lines[-2] == (
        "the gain was not measured: tcexport bench model.tcpkg --against model.py "
        "-o model.bench.json"
    )


def test_the_bundle_runs_with_eagers_numbers(exported: tuple[Path, str, str]) -> None:
    import torch

    folder = exported[0]
    x = np.linspace(-1, 1, 35, dtype=np.float32).reshape(7, 5)
    np.save(folder / "x.npy", x)
    out, _ = run(folder, "run", "model.tcpkg", "--input", "x=x.npy", "-o", "out.npz")
    assert "float32[7, 3]" in out and "called in" in out and out.endswith("out.npz\n")
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    with np.load(folder / "out.npz") as found, torch.no_grad():
        (y,) = (found[name] for name in found.files if found[name].ndim == 2)
        np.testing.assert_allclose(y, layer(torch.from_numpy(x)).relu().numpy() * 2, atol=1e-5)
        (rows,) = (found[name] for name in found.files if found[name].ndim == 0)
        assert rows == 7


@pytest.mark.parametrize(
    ("rows", "option", "code", "said"),
    [(9, [], "TC301", "batch"), (4, ["--input", "scale=3.0"], "TC308", "scale")],
)
def test_a_call_outside_the_contract_has_status_4(
    exported: tuple[Path, str, str], rows: int, option: list[str], code: str, said: str
) -> None:
    folder = exported[0]
    np.save(folder / "bad.npy", np.zeros((rows, 5), np.float32))
    out, err = run(
        folder, "run", "model.tcpkg", "--input", "x=bad.npy", *option, "-o", "bad.npz", status=4
    )
    assert out == ""
    assert f"[{code}]" in err and said in err
    assert not (folder / "bad.npz").exists()


def test_a_device_that_the_bundle_is_not_for_is_refused(exported: tuple[Path, str, str]) -> None:
    folder = exported[0]
    command = ("run", "model.tcpkg", "--input", "x=x.npy", "--device", "cuda")
    _, err = run(folder, *command, status=3)
    assert err.startswith("error[TC407] device='cuda': ")


def test_external_weights_are_verified_where_they_will_be(exported: tuple[Path, str, str]) -> None:
    folder = exported[0]
    options = ("--dynamic", "batch=1..8", *TARGET, "--weights", "external", "-o", "apart.tcpkg")
    run(folder, "model.py", *options)
    (beside,) = folder.glob("weights-*.safetensors")
    run(folder, "weights", "inside", "apart.tcpkg", "-o", "again.tcpkg")
    assert (folder / "again.tcpkg").read_bytes() == (folder / "model.tcpkg").read_bytes()
    beside.unlink()
    (folder / "again.tcpkg").unlink()
    (folder / "apart.tcpkg").unlink()


def test_inspect_shows_the_bundle(exported: tuple[Path, str, str]) -> None:
    out, _ = run(exported[0], "inspect", "model.tcpkg")
    assert "model.tcpkg: Net, format 1" in out
    assert "[batch, 5]" in out and "fixed: 2.0" in out and "[batch, 3]" in out


def test_quiet_json_is_one_document(tmp_path: Path) -> None:
    write(tmp_path)
    out, err = run(
        tmp_path, "model.py:Net", "--input", "x=float32[batch=2,5]", "--dynamic", "batch",
        "-q", "--format", "json", *TARGET,
    )  # fmt: skip
    report = json.loads(out)
    assert (report["path"], err) == ("Net.tcpkg", "")
    assert report["size"] == (tmp_path / "Net.tcpkg").stat().st_size
    assert report["dims"][0]["name"] == "batch" and report["stages"] and report["verified"]
    assert report["advice"]["parameters"] == 18 and report["advice"]["flops"] == 60
    assert {each["op"] for each in report["ops"]} >= {"aten.linear.default"}


@pytest.mark.parametrize(
    "number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "kill"]
)
def test_a_signal_in_the_middle_leaves_what_was_there(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    write(tmp_path)
    (tmp_path / "model.tcpkg").write_text("the old one")
    process = subprocess.Popen(
        [sys.executable, "-m", "tcexport", "model.py", "--dynamic", "batch", *TARGET],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("derive the contract ") and line.endswith(" s\n"):
            break
    time.sleep(1)  # the compiler's process is starting, or at work
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (status, "")
    assert number != signal.SIGINT or err.splitlines()[-1] == "interrupted: nothing was written"
    assert "Traceback" not in err
    assert (tmp_path / "model.tcpkg").read_text() == "the old one"
    names = {each.name for each in tmp_path.iterdir() if each.name != "__pycache__"}
    assert names == {"model.py", "neighbour.py", "model.tcpkg"}
    assert _alive(process.pid) == [], "no process of the export goes on"


def _alive(session: int) -> list[str]:
    """The command lines of the processes in a session."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((each / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
