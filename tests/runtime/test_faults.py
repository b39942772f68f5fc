"""Files that are damaged, replaced, gone or oddly placed, and systems that lack something: a clear
error, or it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcexport.artifacts.container import open_bundle, write_bundle
from tcexport.artifacts.errors import BundleError
from tcexport.artifacts.manifest import Manifest
from tcexport.artifacts.weights import write_weights
from tcexport.runtime import load

from .bundles import pack
from .conftest import WEIGHT
from .test_library import PRELUDE, python

X = np.ones((2, 4), np.float32)


def test_a_loaded_bundle_may_be_deleted_or_replaced(
    added: Path, gathered: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.tcpkg"
    shutil.copy(added, path)
    model = load(path)
    os.replace(shutil.copy(gathered, tmp_path / "new"), path)
    np.testing.assert_array_equal(model(X), X + WEIGHT)
    path.unlink()
    np.testing.assert_array_equal(model(X), X + WEIGHT)


def test_odd_and_relative_paths(
    added: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mödell 模型"
    folder.mkdir()
    shutil.copy(added, folder / "a b.tcpkg")
    monkeypatch.chdir(folder)
    model = load("a b.tcpkg")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(model(X), X + WEIGHT)
    assert model.path == folder / "a b.tcpkg"


@pytest.mark.parametrize("path", ["", ".", "/dev/null", "/nowhere/m.tcpkg", "a\0b"])
def test_paths_that_hold_no_bundle(path: str) -> None:
    with pytest.raises(BundleError, match="TC401"):
        load(path)


def test_weights_that_are_not_there_or_damaged_are_refused(added: Path, tmp_path: Path) -> None:
    with open_bundle(added) as bundle:
        contents = {entry.name: bytes(bundle.view(entry.name)) for entry in bundle.manifest.members}
        manifest = bundle.manifest
    write_weights(tmp_path / "w", {"other": WEIGHT})
    for damaged in ((tmp_path / "w").read_bytes(), b"", contents["weights.safetensors"][:-1]):
        changed = {**contents, "weights.safetensors": damaged}
        write_bundle(tmp_path / "m.tcpkg", _bare(manifest), list(changed.items()))
        with pytest.raises(BundleError, match="TC401"):
            load(tmp_path / "m.tcpkg")


def _bare(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, members=())


def test_the_file_is_mapped_not_read(tmp_path: Path, added: Path, code: bytes) -> None:
    """A weight of 64 MB costs no private memory beyond what runs."""

    with open_bundle(added) as bundle:
        contract = bundle.manifest.contract
    weights = {"w": WEIGHT, "unused": np.ones(16 << 20, np.float32)}
    path = pack(tmp_path / "m.tcpkg", contract, {"x86-64-v3": code}, {"w": WEIGHT})
    with open_bundle(path) as bundle:
        contents = {entry.name: bytes(bundle.view(entry.name)) for entry in bundle.manifest.members}
        manifest = bundle.manifest
    write_weights(tmp_path / "w", weights)
    contents["weights.safetensors"] = (tmp_path / "w").read_bytes()
    write_bundle(path, _bare(manifest), list(contents.items()))
    script = """
import re
def anonymous():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"Anonymous:\\s+(\\d+)", text).group(1))
import tcexport.runtime.model
before = anonymous()
check(path)
print(anonymous() - before < 16_000)
"""
    assert python(script, path) == "True"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_bundle_with_one_byte_changed_is_refused(
    added: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Any byte of a member; the rest of the file is the container's own test."""
    with open_bundle(added) as bundle:
        places = {member.name: bundle.offsets[member.name] for member in bundle.manifest.members}
        sizes = {member.name: member.size for member in bundle.manifest.members}
    name = data.draw(st.sampled_from(sorted(places)))
    at = places[name] + data.draw(st.integers(0, sizes[name] - 1))
    content = bytearray(added.read_bytes())
    content[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "m.tcpkg").write_bytes(content)
    with pytest.raises(BundleError, match=f"TC402.*{name}"):
        load(tmp_path / "m.tcpkg")


# --- systems that lack something ------------------------------------------------------------------

NO_MEMORY_FILES = "del os.memfd_create; sys.modules['tvm'] = None\n"
REFUSED = """
from tcexport.artifacts.errors import BundleError
try:
    check(path)
except BundleError as error:
    print(error)
"""


def within(mounts: str, script: str, *arguments: Path) -> str:
    """Run a script in a mount namespace of its own, after some mounts; its output."""
    inside = [sys.executable, "-c", PRELUDE + script, *map(str, arguments)]
    alone = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m"]
    done = subprocess.run(
        [*alone, "sh", "-ec", f'{mounts}\nexec "$@"', "sh", *inside],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def may_mount() -> bool:
    alone = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m"]
    try:
        mounted = ["sh", "-c", "mount -t tmpfs none /mnt"]
        return subprocess.run([*alone, *mounted], capture_output=True).returncode == 0
    except OSError:
        return False


mounting = pytest.mark.skipif(not may_mount(), reason="no mount namespaces here")


@mounting
def test_a_container_that_is_read_only_without_shm_or_tmp(added: Path) -> None:
    """All that a call needs is memory."""
    mounts = """
mount --bind "$(dirname "$4")" /mnt
for place in /dev/shm /tmp /var/tmp /run; do mount -t tmpfs -o ro none $place; done
mount -o remount,bind,ro /mnt
mount -o remount,bind,ro /
set -- "$1" "$2" "$3" "/mnt/$(basename "$4")"
"""
    script = """
sys.modules["tvm"] = None
check(path)
try:
    open(path + ".x", "w")
except OSError as error:
    print(error.strerror)
"""
    assert within(mounts, script, added) == "Read-only file system"


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@mounting
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("size=64k", "no space left on device"),
        ("noexec", "failed to map segment"),
        ("ro", "no usable temporary directory"),
    ],
)
def test_without_memory_files_a_bad_folder_for_temporary_files_is_named(
    added: Path, mount_point: Path, options: str, reason: str
) -> None:
    mounts = f"mount -t tmpfs -o {options} none {mount_point}; export TMPDIR={mount_point}"
    closed = f"""
import tempfile
tempfile._candidate_tempdir_list = lambda: [{str(mount_point)!r}]
"""
    answer = within(mounts, NO_MEMORY_FILES + closed + REFUSED, added)
    assert "TC404" in answer and "cannot load runtime/" in answer
    assert "there are no memory files" in answer and reason in answer.lower()
    assert "a TMPDIR with room that allows execution" in answer


def test_memory_files_that_may_not_be_made_or_run_are_done_without(added: Path) -> None:
    """As under vm.memfd_noexec, or a seccomp filter: a temporary file serves."""
    script = """
sys.modules["tvm"] = None
import ctypes, errno
if more[0] == "made":
    def refuse(name, flags):
        raise OSError(errno.EPERM, "Operation not permitted")
    os.memfd_create = refuse
else:
    load = ctypes.CDLL
    class Refusing(load):
        def __init__(self, path, *arguments, **options):
            if str(path).startswith("/proc/self/fd/"):
                raise OSError("failed to map segment from shared object")
            super().__init__(path, *arguments, **options)
    ctypes.CDLL = Refusing
check(path)
maps = open("/proc/self/maps").read()
print("memfd:tcexport:libtvm_runtime" in maps, "libtvm_runtime" in maps)
"""
    for case in ("made", "run"):
        assert python(script, added, case) == "False True"


def test_without_proc_a_temporary_file_serves(added: Path) -> None:
    script = """
sys.modules["tvm"] = None
there = os.path.isdir
os.path.isdir = lambda path: path != "/proc/self/fd" and there(path)
check(path)
"""
    python(script, added)


def test_too_few_descriptors_are_a_clear_error(added: Path) -> None:
    script = """
import resource, tcexport.runtime.model
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
"""
    assert "too many open files" in python(script + REFUSED, added)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_permission_denied_is_a_clear_error(added: Path, open_folder: Path) -> None:
    path = Path(shutil.copy(added, open_folder / "m.tcpkg"))
    path.chmod(0)
    script = """
import tcexport.runtime.model
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
"""
    answer = python(script + REFUSED, path)
    assert "TC401" in answer and "permission denied" in answer


def test_a_path_that_no_locale_can_show_is_spelled_out(added: Path, tmp_path: Path) -> None:
    """A name that is not UTF-8, in a process whose locale has ASCII alone."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.tcpkg")
    shutil.copy(added, path)
    script = """
check(path)
os.unlink(path)
from tcexport.artifacts.errors import BundleError
try:
    check(path)
except BundleError as error:
    print(str(error).encode("ascii").decode())
"""
    answer = python(script, path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert "no such file" in answer and "\\udcff\\udcfe.tcpkg" in answer


def test_a_file_that_is_cut_short_while_it_is_loaded(added: Path, tmp_path: Path) -> None:
    """In place, which a mapped file does not survive: read into memory it does (test_signature);
    and what opens it next says what is wrong."""
    path = Path(shutil.copy(added, tmp_path / "m.tcpkg"))
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(BundleError, match=r"TC401.*cut short"):
        load(path)


@mounting
def test_outputs_on_a_full_disk_are_a_clear_error(added: Path, mount_point: Path) -> None:
    script = f"""
from tcexport.tools.cli import run_command
np.save("{mount_point}/x.npy", np.ones((64, 4), np.float32))
status = run_command(
    ["run", path, "--input", "x={mount_point}/x.npy", "-o", "{mount_point}/deep/out.npy"]
)
print(status, os.listdir("{mount_point}/deep"))
"""
    mounts = (
        f"mount -t tmpfs -o size=64k none {mount_point}; mkdir {mount_point}/deep; "
        f"mount -t tmpfs -o size=4k,nr_inodes=1 none {mount_point}/deep"
    )
    answer = within(mounts, script, added)
    assert answer.splitlines()[-1] == "2 []"
