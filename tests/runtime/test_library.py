"""One TVM runtime in a process, whoever brings it; torch and tvm untouched. Each in a new process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.manifest import Manifest
from tcexport.runtime import load

PRELUDE = """
import os, sys, threading
import numpy as np
def check(path):
    from tcexport.runtime import load
    model = load(path)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(model(x), x + np.arange(4))
    return model
path, *more = sys.argv[1:]
"""


def python(script: str, *arguments: Path | str, **environment: str) -> str:
    """Run a script in a new process; its output. Fails with its error."""
    import os

    answer = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout.strip()


def test_loading_and_calling_leaves_the_big_ones_out(added: Path) -> None:
    script = """
import tcexport
import importlib.util
check(path)
big = ["torch", "tvm", "sympy", "rich", "click", "onnx", "z3"]
print([name for name in big if name in sys.modules], importlib.util.find_spec("torch") is not None)
"""
    assert python(script, added) == "[] True"


def test_importing_the_package_loads_no_library(added: Path) -> None:
    script = """
import tcexport, tcexport.runtime
print([name for name in ("tvm_ffi", "torch", "tvm", "tcexport.runtime.model") if name in sys.modules])
"""
    assert python(script, added) == "[]"


def test_torch_imported_before_or_after_works_as_ever(added: Path) -> None:
    after = """
model = check(path)
import torch
x = torch.ones(2, 4)
assert torch.equal(model(x), x + torch.arange(4.0))
assert torch.nn.Linear(4, 2)(x).shape == (2, 2)
print(torch.Tensor.__name__, "TVM_FFI_DISABLE_TORCH_C_DLPACK" in os.environ)
"""
    assert python(after, added) == "Tensor False"
    assert python("import torch" + after, added) == "Tensor False"


def test_another_thread_may_import_torch_meanwhile(added: Path) -> None:
    script = """
failures = []
def work():
    try:
        import torch
        assert torch.ones(2).sum() == 2
    except BaseException as error:
        failures.append(error)
thread = threading.Thread(target=work)
thread.start()
check(path)
thread.join()
print(failures)
"""
    assert python(script, added) == "[]"


def test_tvm_imported_before(added: Path) -> None:
    script = "import tvm\ncheck(path)\nprint(tvm.__version__)"
    assert python(script, added).startswith("0.27")


def test_tvm_imported_after(added: Path) -> None:
    """Works because the installed tvm's own library is the bundle's, byte for byte."""
    script = """
model = check(path)
import tvm
from tvm import relax
check(path)
print(relax.__name__)
"""
    assert python(script, added) == "tvm.relax"


def test_where_no_tvm_is_installed_the_bundle_brings_it(added: Path) -> None:
    """The import of tvm is hidden, as if it were not installed."""
    script = """
sys.modules["tvm"] = None
check(path)
maps = open("/proc/self/maps").read()
assert "memfd:tcexport:libtvm_runtime.so" in maps
handles = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n != "3"]
print(any("memfd" in handle for handle in handles))
"""
    assert python(script, added) == "False"


def rewritten(
    source: Path, path: Path, edit: Callable[[Manifest], Manifest], runtime: bytes | None = None
) -> Path:
    """The same bundle with another manifest, and another runtime library if given."""
    with open_bundle(source) as bundle:
        contents = {entry.name: bytes(bundle.view(entry.name)) for entry in bundle.manifest.members}
        manifest = edit(msgspec.structs.replace(bundle.manifest, members=()))
    if runtime is not None:
        contents[manifest.runtimes[0].library] = runtime
    write_bundle(path, manifest, list(contents.items()))
    return path


def with_runtime(**fields: str) -> Callable[[Manifest], Manifest]:
    def edit(manifest: Manifest) -> Manifest:
        changed = msgspec.structs.replace(manifest.runtimes[0], **fields)
        return msgspec.structs.replace(manifest, runtimes=(changed,))

    return edit


@pytest.fixture
def other(added: Path, tmp_path: Path) -> Path:
    """A bundle whose runtime is not the installed tvm's: another file, and said to be TVM 0.26."""
    with open_bundle(added) as bundle:
        library = bytes(bundle.view(bundle.manifest.runtimes[0].library))
    return rewritten(
        added, tmp_path / "other.tcpkg", with_runtime(version="0.26.0"), library + b"\0"
    )


def test_importing_another_tvm_after_is_an_error_not_a_crash(other: Path) -> None:
    script = """
check(path)
try:
    import tvm
except ImportError as error:
    print(error.name, "Import tvm before" in str(error))
check(path)
"""
    assert python(script, other) == "tvm True"


def test_a_bundle_of_another_tvm_is_refused(added: Path, other: Path) -> None:
    script = """
check(path)
from tcexport.artifacts.errors import BundleError
try:
    check(more[0])
except BundleError as error:
    print(error)
check(path)
"""
    for first, second, version in ((added, other, "0.26.0"), (other, added, "0.27.0.post1")):
        answer = python(script, first, second)
        assert "TC405" in answer and f"built for the TVM runtime {version}" in answer
        assert "in a process of its own" in answer
    assert "TC405" in python("import tvm\n" + script.replace("check(path)\n", ""), added, other)


def test_another_version_of_the_ffi_is_refused(added: Path, tmp_path: Path) -> None:
    path = rewritten(added, tmp_path / "m.tcpkg", with_runtime(ffi="0.1.99"))
    with pytest.raises(BundleError, match=r"TC405(.|\n)*pip install 'apache-tvm-ffi==0.1.99'"):
        load(path)


def test_a_runtime_for_another_machine_is_refused(added: Path, tmp_path: Path) -> None:
    path = rewritten(added, tmp_path / "m.tcpkg", with_runtime(machine="riscv64"))
    with pytest.raises(BundleError, match=r"TC404.*a runtime for linux riscv64, found linux"):
        load(path)


def test_a_library_that_is_none_is_refused(added: Path, tmp_path: Path) -> None:
    with open_bundle(added) as bundle:
        contents = {entry.name: bytes(bundle.view(entry.name)) for entry in bundle.manifest.members}
        manifest = msgspec.structs.replace(bundle.manifest, members=())
    contents[manifest.targets[0].library] = b"\x7fELF nothing more"
    write_bundle(tmp_path / "m.tcpkg", manifest, list(contents.items()))
    with pytest.raises(BundleError, match=r"TC404.*cannot load targets/cpu-x86-64-v3/model.so"):
        load(tmp_path / "m.tcpkg")


def test_without_memory_files_a_private_folder_serves(added: Path, tmp_path: Path) -> None:
    script = """
del os.memfd_create
sys.modules["tvm"] = None
model = check(path)
print(os.listdir(os.environ["TMPDIR"]))
"""
    assert python(script, added, TMPDIR=str(tmp_path)) == "[]"


def test_a_thousand_loads_leak_nothing(added: Path) -> None:
    script = """
import gc
from tcexport.runtime import load
def count():
    gc.collect()
    maps = open("/proc/self/maps").read()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:"), maps.count(path)
for number in range(1000):
    model = load(path)
    if number == 10:
        before = count()
print(count() == before)
"""
    assert python(script, added) == "True"


def test_two_processes_may_load_at_once(added: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", PRELUDE + "check(path)", added]) for _ in range(2)
    ]
    assert [process.wait(60) for process in running] == [0, 0]
