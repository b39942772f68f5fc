"""The container: deterministic, aligned, readable by others; strict, and honest when it fails."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tcexport.artifacts import container
from tcexport.artifacts.container import open_bundle, publish, write_bundle
from tcexport.artifacts.contract import Contract, TupleNode
from tcexport.artifacts.errors import BundleError, UsageError
from tcexport.artifacts.manifest import Entry, Manifest, Provenance, encode

MANIFEST = Manifest(
    format_version=1,
    model="Tiny",
    contract=Contract((), (), (), (), (), (), TupleNode(())),
    entry=Entry("main", (), (), (), 0),
    targets=(),
    runtimes=(),
    provenance=Provenance("0.1.0", "tiny.py", "", {}, {}, ""),
    members=(),
)
MEMBERS: list[tuple[str, Path | bytes]] = [
    ("weights.safetensors", bytes(range(256)) * 40),
    ("targets/cpu-x86-64-v3/model.so", b"code" * 1000),
    ("empty", b""),
]
QUIET = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "m.tcpkg", MANIFEST, MEMBERS)
    return tmp_path / "m.tcpkg"


def refused(path: Path, code: str = "TC401") -> str:
    with pytest.raises(BundleError) as caught, open_bundle(path) as bundle:
        bundle.verify()
    assert caught.value.code == code
    return str(caught.value)


# --- what is written ------------------------------------------------------------------------------


def test_what_is_written_is_read_back(path: Path) -> None:
    with open_bundle(path) as bundle:
        assert bundle.manifest.model == "Tiny"
        for name, content in MEMBERS:
            assert bytes(bundle.view(name)) == content
            assert bundle.offsets[name] % 4096 == 0
            assert bundle.view(name).readonly
        bundle.verify()


def test_other_zip_readers_agree(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", *sorted(name for name, _ in MEMBERS)]
        for name, content in MEMBERS:
            assert archive.read(name) == content
    if shutil.which("unzip"):
        assert (
            subprocess.run(["unzip", "-tq", path], capture_output=True, check=False).returncode == 0
        )


def test_order_and_source_of_the_members_do_not_change_the_bytes(
    tmp_path: Path, path: Path
) -> None:
    on_disk: list[tuple[str, Path | bytes]] = []
    for number, (name, content) in enumerate(reversed(MEMBERS)):
        assert isinstance(content, bytes)
        (tmp_path / str(number)).write_bytes(content)
        on_disk.append((name, tmp_path / str(number)))
    write_bundle(tmp_path / "again.tcpkg", MANIFEST, on_disk)
    assert (tmp_path / "again.tcpkg").read_bytes() == path.read_bytes()


def test_zip64_is_used_where_needed(tmp_path: Path) -> None:
    """Sparse files stand in for two members of 4 GiB; a CRC of 0 is not that of their zeros."""
    size = (1 << 32) + 5
    entries = [
        container._Entry("manifest.json", 2, 0),
        container._Entry("a", size, 0),
        container._Entry("b", size, 0),
    ]
    layout = container._layout(entries)
    with open(tmp_path / "z", "wb") as file:
        for (at, header), start in zip(layout.headers, layout.starts, strict=True):
            file.seek(at)
            file.write(header)
            assert file.tell() == start
        file.seek(layout.tail_at)
        file.write(layout.tail)
    with zipfile.ZipFile(tmp_path / "z") as archive:
        infos = archive.infolist()
        assert [info.file_size for info in infos] == [2, size, size]
        assert infos[2].header_offset == layout.headers[2][0] > 1 << 32
        with archive.open(infos[2]) as member:
            assert member.read(4) == bytes(4)
    data = container._map(tmp_path / "z")
    assert container._directory(data) == entries
    container._compare(data, entries, layout)
    data.close()


@pytest.mark.parametrize(
    "name",
    ["/a", "../a", "a/../b", "a//b", "a\\b", "a/", "", ".hidden", "é", "a\0b", "C:a", "a" * 256],
)
def test_bad_member_names_are_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="bad member name"):
        write_bundle(tmp_path / "m.tcpkg", MANIFEST, [(name, b"")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a"), ("a", "a/b"), ("MANIFEST.json",)])
def test_clashing_member_names_are_not_written(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"twice|below"):
        write_bundle(tmp_path / "m.tcpkg", MANIFEST, [(name, b"") for name in names])


# --- whole or not at all ----------------------------------------------------------------------------


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"TC012.*nowhere.*No such file"):
        write_bundle(tmp_path / "nowhere" / "m.tcpkg", MANIFEST, MEMBERS)


def test_a_directory_in_its_place_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "m.tcpkg").mkdir()
    with pytest.raises(UsageError, match=r"TC012.*directory"):
        write_bundle(tmp_path / "m.tcpkg", MANIFEST, MEMBERS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.tcpkg"]


def test_a_full_disk_leaves_what_was_there(path: Path) -> None:
    """A limit on file sizes stands in for the full disk: the write fails in the middle."""
    before = path.read_bytes()
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "from tcexport.artifacts.container import open_bundle, write_bundle\n"
        "path = Path(sys.argv[1])\n"
        "manifest = open_bundle(path).manifest\n"
        "write_bundle(path, manifest, [('weights', b'x' * 100_000)])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=False
    )
    assert "UsageError" in answer.stderr and "TC012" in answer.stderr and "m.tcpkg" in answer.stderr
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["m.tcpkg"]


def test_an_unreadable_member_is_not_blamed_on_the_output(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        write_bundle(tmp_path / "m.tcpkg", MANIFEST, [("a", tmp_path / "absent")])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path / "m.tcpkg", MANIFEST, MEMBERS)
    assert list(tmp_path.iterdir()) == []


def test_publish_replaces_and_a_failure_removes_the_draft(tmp_path: Path, path: Path) -> None:
    draft = tmp_path / "draft"
    draft.write_bytes(b"new")
    publish(draft, path)
    assert path.read_bytes() == b"new"
    draft.write_bytes(b"newer")
    with pytest.raises(UsageError, match=r"TC012"):
        publish(draft, tmp_path / "nowhere" / "m.tcpkg")
    assert not draft.exists()
    assert path.read_bytes() == b"new"


def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path, path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: (path.unlink(), path.mkdir()), "directory"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: path.write_bytes(b"hello"), "does not start like a ZIP"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "cut short"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "bytes behind"),
        (lambda path: path.write_bytes(b"#!" + path.read_bytes()), "does not start like a ZIP"),
    ],
)
def test_what_is_no_bundle_is_refused(
    path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(path)
    answer = refused(path)
    assert message in answer
    assert str(path) in answer


def test_a_file_without_permission_is_refused(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    path.chmod(0)
    assert "permission denied" in refused(path)


def zipped(path: Path, edit: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        edit(archive)
    return path


def link(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("manifest.json")
    info.external_attr = 0o120777 << 16
    archive.writestr(info, "{}")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda z: z.writestr("other.json", "{}"), "first member"),
        (lambda z: z.writestr("manifest.json", "{}", zipfile.ZIP_DEFLATED), "compressed"),
        (lambda z: z.writestr("../manifest.json", "{}"), "bad member name"),
        (lambda z: z.writestr("/manifest.json", "{}"), "bad member name"),
        (lambda z: z.writestr("a\\b", "{}"), "bad member name"),
        (lambda z: z.writestr("é", "{}"), "not ASCII"),
        (lambda z: z.writestr("a/", ""), "directory|bad member name"),
        (link, "link"),
        (lambda z: z.writestr("manifest.json", "{}"), "header|need|form"),
        (lambda z: None, "does not start like a ZIP"),
    ],
)
def test_zips_of_another_form_are_refused(
    path: Path, edit: Callable[[zipfile.ZipFile], None], message: str
) -> None:
    assert any(part in refused(zipped(path, edit)) for part in message.split("|"))


def test_two_members_of_one_name_are_refused(path: Path) -> None:
    def edit(archive: zipfile.ZipFile) -> None:
        archive.writestr("manifest.json", "{}")
        archive.writestr("Manifest.json", "{}")

    assert "twice" in refused(zipped(path, edit))


def patch(path: Path, find: bytes, put: bytes, occurrence: int = 0) -> None:
    data = path.read_bytes()
    at = -1
    for _ in range(occurrence + 1):
        at = data.index(find, at + 1)
    path.write_bytes(data[:at] + put + data[at + len(put) :])


@pytest.mark.parametrize(
    ("find", "offset_field", "value", "message"),
    [
        (b"PK\x01\x02", 8, struct.pack("<H", 1), "encrypted"),
        (b"PK\x01\x02", 8, struct.pack("<H", 8), "data descriptor"),
        (b"PK\x01\x02", 20, struct.pack("<L", 5), "lies about its size"),
        (b"PK\x01\x02", 42, struct.pack("<L", 5), "form of a bundle"),
        (b"PK\x01\x02", 12, struct.pack("<L", 5), "form of a bundle"),
        (b"PK\x03\x04", 6, struct.pack("<H", 8), "header of member"),
        (b"PK\x03\x04", 10, struct.pack("<H", 8), "header of member"),
        (b"PK\x05\x06", 4, struct.pack("<H", 1), "several disks"),
        (b"PK\x05\x06", 8, struct.pack("<2H", 9, 9), "directory"),
        (b"PK\x05\x06", 16, struct.pack("<L", 9), "not where its end says"),
    ],
)
def test_single_lies_in_the_headers_are_refused(
    path: Path, find: bytes, offset_field: int, value: bytes, message: str
) -> None:
    data = path.read_bytes()
    at = data.index(find) + offset_field
    path.write_bytes(data[:at] + value + data[at + len(value) :])
    assert message in refused(path)


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    """A file with another manifest in it, otherwise in perfect form."""
    with open_bundle(path) as bundle:
        head = change(encode(bundle.manifest))
        contents = [head, *(bytes(bundle.view(member.name)) for member in bundle.manifest.members)]
        names = ["manifest.json", *(member.name for member in bundle.manifest.members)]
    entries = [
        container._Entry(name, len(content), container.zlib.crc32(content))
        for name, content in zip(names, contents, strict=True)
    ]
    layout = container._layout(entries)
    parts = [
        part
        for (_, header), content in zip(layout.headers, contents, strict=True)
        for part in (header, content)
    ]
    path.write_bytes(b"".join(parts) + layout.tail)


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        (b'"format_version": 1', b'"format_version": 2', "TC403", "newer than this tcexport"),
        (b'"format_version": 1', b'"format_version": 0', "TC401", "does not exist"),
        (b'"format_version": 1', b'"format_version": 1.5', "TC401", "format_version"),
        (b'"format_version": 1', b'"format_version": NaN', "TC401", "manifest.json"),
        (b'"model": "Tiny"', b'"model": "Tiny", "more": 1', "TC401", "more"),
        (b'"model": "Tiny"', b'"model": 3', "TC401", "model"),
        (b'"model": "Tiny"', b'"model": "\xff"', "TC401", "manifest.json"),
        (b'"name": "empty"', b'"name": "full"', "TC401", "'full' of the manifest is not in"),
        (b'"size": 0', b'"size": 1', "TC401", "0 bytes, the manifest says 1"),
        (b'"size": 0', b'"size": 1e99', "TC401", "manifest.json"),
        (b'"sha256": "e3b0', b'"sha256": "e3b1', "TC402", "member empty"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    path: Path, old: bytes, new: bytes, code: str, message: str
) -> None:
    rewritten(path, lambda text: text.replace(old, new))
    assert message in refused(path, code)


def test_a_newer_version_is_told_apart_even_when_nothing_else_is_known(path: Path) -> None:
    rewritten(path, lambda text: b'{"format_version": 7, "all": "else is new"}')
    assert "format version 7 is newer" in refused(path, "TC403")


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b"null", b""])
def test_hostile_json_is_refused(path: Path, text: bytes) -> None:
    rewritten(path, lambda _: text)
    assert "manifest.json" in refused(path)


def test_swapped_members_are_found(tmp_path: Path) -> None:
    members: list[tuple[str, Path | bytes]] = [("a", b"1" * 5000), ("b", b"2" * 5000)]
    write_bundle(tmp_path / "m", MANIFEST, members)
    data = (tmp_path / "m").read_bytes().replace(b"1" * 5000, b"3" * 5000)
    data = data.replace(b"2" * 5000, b"1" * 5000).replace(b"3" * 5000, b"2" * 5000)
    (tmp_path / "m").write_bytes(data)
    assert "member a" in refused(tmp_path / "m", "TC402")


def test_verify_looks_only_at_the_members_named(path: Path) -> None:
    patch(path, b"code", b"edoc")
    with open_bundle(path) as bundle:
        bundle.verify(["weights.safetensors"])
        with pytest.raises(BundleError, match=r"TC402.*model.so"):
            bundle.verify(["targets/cpu-x86-64-v3/model.so"])


def test_a_copy_is_what_was_hashed_when_the_file_changes_later(tmp_path: Path) -> None:
    name, content = "targets/cpu-x86-64-v3/model.so", b"code" * 1000
    write_bundle(tmp_path / "m", MANIFEST, [(name, content)])
    with open_bundle(tmp_path / "m") as bundle:
        bundle.verify(copied=[name])
        patch(tmp_path / "m", b"codecode", b"evilevil")
        assert bundle.copy(name) == content
        with pytest.raises(BundleError, match=r"TC402.*model.so"):
            bundle.copy(name)
        with pytest.raises(BundleError, match=r"TC402.*model.so"):
            bundle.verify(copied=[name])
        with pytest.raises(BundleError, match=r"TC402.*model.so"):
            bundle.copy(name)


@QUIET
@given(st.data())
def test_a_damaged_file_is_refused_or_says_the_same(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, cut out, put in or moved: never another content, never another exception."""
    write_bundle(tmp_path / "m", MANIFEST, MEMBERS)
    whole = (tmp_path / "m").read_bytes()
    # Mostly where the structure is: a uniform place would nearly always hit weights or padding.
    hot = [at for at in range(len(whole)) if whole[at : at + 2] == b"PK"]
    place = st.one_of(
        st.integers(0, len(whole)),
        st.integers(0, 60).flatmap(lambda d: st.sampled_from([at + d for at in hot])),
        st.integers(len(whole) - 400, len(whole)),
    )
    damaged = whole
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(place)
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "copy", "truncate"]))
        length = data.draw(st.integers(1, 8))
        if kind == "flip":
            put = data.draw(st.binary(min_size=length, max_size=length))
            damaged = damaged[:at] + put + damaged[at + length :]
        elif kind == "cut":
            damaged = damaged[:at] + damaged[at + length :]
        elif kind == "insert":
            damaged = damaged[:at] + data.draw(st.binary(max_size=length)) + damaged[at:]
        elif kind == "copy":
            other = data.draw(place)
            damaged = damaged[:at] + whole[other : other + 50] + damaged[at + 50 :]
        else:
            damaged = damaged[:at]
    (tmp_path / "d").write_bytes(damaged)
    with open_bundle(tmp_path / "m") as bundle:
        expected = bundle.manifest
    try:
        with open_bundle(tmp_path / "d") as bundle:
            bundle.verify()
            assert bundle.manifest == expected
            assert all(bytes(bundle.view(name)) == content for name, content in MEMBERS)
    except BundleError as error:
        assert error.code in ("TC401", "TC402", "TC403")


@given(st.binary(max_size=300))
@example(b"PK\x03\x04" + b"PK\x05\x06" + bytes(18))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_arbitrary_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    for attempt in (content, b"PK\x03\x04" + content + b"PK\x05\x06" + bytes(8) + content[:10]):
        (tmp_path / "d").write_bytes(attempt)
        refused(tmp_path / "d")


# --- life of the map --------------------------------------------------------------------------------


def test_views_outlive_the_bundle_and_the_file(path: Path) -> None:
    with open_bundle(path) as bundle:
        view = bundle.view("targets/cpu-x86-64-v3/model.so")
    path.unlink()
    assert bytes(view[:8]) == b"codecode"
    with pytest.raises(ValueError, match="closed"):
        bundle.view("empty")


def test_a_bundle_replaced_while_mapped_keeps_its_bytes(path: Path) -> None:
    with open_bundle(path) as bundle:
        write_bundle(path, msgspec.structs.replace(MANIFEST, model="Other"), [("x", b"y")])
        bundle.verify()
        assert bundle.manifest.model == "Tiny"
    with open_bundle(path) as bundle:
        assert bundle.manifest.model == "Other"


def test_opening_leaks_no_descriptor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with open_bundle(path) as bundle:
            bundle.verify()
    (path.parent / "bad").write_bytes(b"PK")
    for _ in range(20):
        refused(path.parent / "bad")
    assert len(os.listdir("/proc/self/fd")) == before
