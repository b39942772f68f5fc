"""The processes that hold the compiler: used again, never shared, and ended with who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tcexport.artifacts.errors import ExportError
from tcexport.lowering import compilers, lower

from .conftest import TARGET, trace


@pytest.fixture(autouse=True)
def without_others() -> Iterator[None]:
    compilers._end()
    yield
    compilers._end()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_running(pid)


def held() -> int:
    (compiler,) = compilers._idle
    return compiler._process.pid


def lower_one(folder: Path) -> None:
    folder.mkdir()
    program = trace(nn.Linear(8, 4).eval(), (torch.randn(3, 8),))
    lower.lower(program, (TARGET,), folder, lambda stage, seconds: None)


def test_one_process_serves_order_after_order_and_each_equals_the_first(tmp_path: Path) -> None:
    compilers.start()
    first = held()
    for name in ("a", "b"):
        lower_one(tmp_path / name)
        assert held() == first
    made = [sorted((tmp_path / name).rglob("*.so")) for name in ("a", "b")]
    assert made[0] and [each.read_bytes() for each in made[0]] == [
        each.read_bytes() for each in made[1]
    ]


def test_a_fork_that_dies_leaves_the_process_for_the_next(tmp_path: Path) -> None:
    lower_one(tmp_path / "a")
    first = held()
    with pytest.raises(ExportError, match="exit code 1") as error:
        (tmp_path / "b").mkdir()
        request = tmp_path / "b" / "request.json"
        request.write_text("no request")
        lower._run_worker(request, lambda stage, seconds: None)
    assert any("DecodeError" in note for note in error.value.diagnostics[0].notes)
    lower_one(tmp_path / "c")
    assert held() == first


def test_another_environment_of_what_it_imports_takes_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower_one(tmp_path / "a")
    first = held()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lower_one(tmp_path / "b")
    assert held() != first and gone(first)


def test_threads_have_one_each(tmp_path: Path) -> None:
    """Two orders at once: neither is told of the other."""
    ended: dict[str, tuple[int, bytes]] = {}

    def work(name: str) -> None:
        request = tmp_path / name / "request.json"
        request.parent.mkdir()
        request.write_text(f'{{"programs": "{name}"}}')
        ended[name] = compilers.run(request, lambda stage, seconds: None)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        status, stderr = ended[name]
        assert status == 1 and stderr.count(b"ValidationError") == 1
        assert (tmp_path / name / "request.stderr").read_bytes() == stderr
    assert len(compilers._idle) == 1


def test_a_fork_of_the_caller_has_none_and_leaves_the_callers(tmp_path: Path) -> None:
    lower_one(tmp_path / "a")
    first = held()
    child = os.fork()
    if child == 0:
        os._exit(len(compilers._idle))
    assert os.waitpid(child, 0)[1] == 0
    lower_one(tmp_path / "b")
    assert held() == first


def test_one_that_nothing_is_asked_of_ends_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    # Two seconds in place of two minutes.
    (site / "sitecustomize.py").write_text(
        "import select\nwait = select.select\n"
        "def sooner(*args):\n"
        "    assert len(args) == 3 or args[3] > 60\n"
        "    return wait(*args[:3], *(2 for _ in args[3:]))\n"
        "select.select = sooner\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    lower_one(tmp_path / "a")
    (left,) = compilers._idle
    first = held()
    assert gone(first)
    # It may end between the look at it and the order.
    assert left.run(tmp_path / "a" / "request.json", lambda stage, seconds: None) is None
    lower_one(tmp_path / "b")
    assert held() != first


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_it_ends_with_the_process_that_started_it(how: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom tcexport.lowering import compilers\ncompilers.start()\n"
        "print(compilers._idle[0]._process.pid, compilers._idle[0]._folder, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        pid, folder = process.stdout.readline().split()
        assert is_running(int(pid))
        if how == "is killed":
            process.send_signal(signal.SIGKILL)
        process.stdin.close()
        process.wait()
    assert gone(int(pid))
    end = time.monotonic() + 30
    while Path(folder).exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_an_order_ends_with_the_process_that_gave_it(tmp_path: Path) -> None:
    """The compiler is deep in a program when its caller is killed."""
    site = tmp_path / "site"
    site.mkdir()
    pid_file = tmp_path / "pid"
    (site / "sitecustomize.py").write_text(
        "import os, time, pathlib\n"
        "def hold():\n"
        f"    pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "os.register_at_fork(after_in_child=hold)\n"
    )
    code = (
        "import os, pathlib, sys\nfrom tcexport.lowering import compilers\n"
        "os.environ['PYTHONPATH'] = os.pathsep.join([sys.argv[2], os.environ.get('PYTHONPATH', '')])\n"
        "compilers.run(pathlib.Path(sys.argv[1]), lambda stage, seconds: None)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "request.json"), str(site)]
    with subprocess.Popen(command) as process:
        end = time.monotonic() + 60
        while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert gone(int(pid_file.read_text()))
