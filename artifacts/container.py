"""The container: a ZIP with exactly one byte-for-byte form for a given list of members.

Every header, the directory and its end follow from the names, sizes and CRCs of the members, so the
reader takes these from the directory, builds the headers again and compares. What is not equal is
refused: holes, overlaps, flags, compressed members, comments, links, bytes before or behind.
Members are STORED; the manifest comes first and every other member starts on a page, so that it
can be mapped. Sources: PKWARE APPNOTE 6.3.10; the alignment field 0xD935 is Android's.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import secrets
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeAlias, final

import msgspec

from .errors import BundleError, Diagnostic, UsageError
from .manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    WEIGHTS_NAME,
    Manifest,
    ManifestError,
    Member,
    decode,
    encode,
)
from .sbom import SBOM_NAME, sbom

Content: TypeAlias = "Path | bytes | memoryview"  # of a member; a path is that of a file to read

ALIGNMENT = 4096
MAX_MEMBERS = 4096
MAX_NAME = 255
MAX_FILE_BYTES = 1 << 44

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_LOCAL_ID, _CENTRAL_ID, _END_ID = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END64_ID, _LOCATOR_ID = b"PK\x06\x06", b"PK\x06\x07"

_ZIP64_FIELD, _ALIGNMENT_FIELD = 0x0001, 0xD935
_LIMIT32 = 0xFFFFFFFF
_VERSION, _VERSION_ZIP64 = 20, 45
_MADE_BY_UNIX = 3 << 8
_MODE = (stat.S_IFREG | 0o644) << 16
_TIME, _DATE = 0, 0x21  # 1980-01-01 00:00:00, the first moment that a ZIP can name

_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Entry:
    name: str
    size: int
    crc: int


@dataclass(frozen=True)
class _Layout:
    """Where everything lies: local ``headers`` and data ``starts`` for each entry, and the ``tail``
    (directory and its end) with its place."""

    headers: tuple[tuple[int, bytes], ...]
    starts: tuple[int, ...]
    tail_at: int
    tail: bytes

    @property
    def size(self) -> int:
        return self.tail_at + len(self.tail)


def _layout(entries: Sequence[_Entry]) -> _Layout:
    position = 0
    headers, starts, central = [], [], []
    for entry in entries:
        at, name = position, entry.name.encode("ascii")
        large = entry.size >= _LIMIT32
        size32 = _LIMIT32 if large else entry.size
        extra = struct.pack("<2H2Q", _ZIP64_FIELD, 16, entry.size, entry.size) if large else b""
        if entry.name != MANIFEST_NAME:
            extra += _padding(at + _LOCAL.size + len(name) + len(extra))
        header = _LOCAL.pack(
            _LOCAL_ID, _VERSION_ZIP64 if large else _VERSION, 0, 0, _TIME, _DATE,
            entry.crc, size32, size32, len(name), len(extra),
        )  # fmt: skip
        header += name + extra
        headers.append((at, header))
        starts.append(at + len(header))
        position = at + len(header) + entry.size

        wide = [entry.size, entry.size] if large else []
        if at >= _LIMIT32:
            wide.append(at)
        extra = struct.pack(f"<2H{len(wide)}Q", _ZIP64_FIELD, 8 * len(wide), *wide) if wide else b""
        version = _VERSION_ZIP64 if wide else _VERSION
        central.append(
            _CENTRAL.pack(
                _CENTRAL_ID, _MADE_BY_UNIX | version, version, 0, 0, _TIME, _DATE, entry.crc,
                size32, size32, len(name), len(extra), 0, 0, 0, _MODE, min(at, _LIMIT32),
            )
            + name + extra
        )  # fmt: skip
    directory = b"".join(central)
    count, length = len(central), len(directory)
    end = b""
    if position >= _LIMIT32:
        end += _END64.pack(
            _END64_ID, _END64.size - 12, _MADE_BY_UNIX | _VERSION_ZIP64, _VERSION_ZIP64, 0, 0,
            count, count, length, position,
        )  # fmt: skip
        end += _LOCATOR.pack(_LOCATOR_ID, 0, position + length, 1)
    end += _END.pack(_END_ID, 0, 0, count, count, length, min(position, _LIMIT32), 0)
    return _Layout(tuple(headers), tuple(starts), position, directory + end)


def _padding(position: int) -> bytes:
    """An extra field that ends on a page when it starts at ``position``; it is never shorter than
    its own head, and always there, so that the form has no special case."""
    head = 6
    fill = -(position + head) % ALIGNMENT
    return struct.pack("<3H", _ALIGNMENT_FIELD, 2 + fill, ALIGNMENT) + bytes(fill)


def _check_names(names: Sequence[str]) -> None:
    """Raises ValueError for a name, or a pair of names, that no system should have to extract."""
    seen: set[str] = set()
    for name in names:
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise ValueError(
                f"bad member name {name!r:.80}: allowed are relative paths of the characters "
                "A-Z a-z 0-9 . _ + - whose parts do not start with a dot"
            )
        folded = name.lower()
        if folded in seen:
            raise ValueError(f"member {name!r} is there twice (upper and lower case are the same)")
        seen.add(folded)
    for name in seen:
        parts = name.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in seen:
                raise ValueError(f"member {name!r} lies below another member")


# --- writing ----------------------------------------------------------------------------------------


def write_bundle(
    path: Path,
    manifest: Manifest,
    members: Sequence[tuple[str, Content]],
    *,
    bill: bool = False,
) -> None:
    """Write a bundle to ``path``: whole, or not at all.

    ``manifest`` comes with ``members=()``; sizes and digests are filled in here. The file is
    written beside its name, synced, and renamed; equal arguments give equal bytes, in whatever
    order the members come. ``bill`` adds the bill of materials as a member (see `sbom`).

    Raises:
        UsageError: TC012, the file cannot be written; what stood at ``path`` is untouched.
        ValueError: names that a bundle cannot hold.
        OSError: a member's own file cannot be read.
    """
    known = {name: describe(name, content) for name, content in members}
    if bill:
        text = sbom(manifest, [known[name][0] for name in sorted(known)])
        members = [*members, (SBOM_NAME, text)]
        known[SBOM_NAME] = describe(SBOM_NAME, text)
    ordered = sorted(members, key=lambda member: member[0])
    _check_names([MANIFEST_NAME, *(name for name, _ in ordered)])
    if len(ordered) >= MAX_MEMBERS:
        raise ValueError(f"{len(ordered)} members, at most {MAX_MEMBERS - 1} fit")
    described = tuple(known[name][0] for name, _ in ordered)
    entries = [known[name][1] for name, _ in ordered]
    head = encode(msgspec.structs.replace(manifest, members=described))
    entries.insert(0, _Entry(MANIFEST_NAME, len(head), zlib.crc32(head)))
    layout = _layout(entries)
    contents: list[Content] = [head, *(content for _, content in ordered)]

    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        # Created here and now, and no one else's: a leftover of another run is never reused.
        with open(draft, "xb") as file:
            for (_, header), content, entry in zip(layout.headers, contents, entries, strict=True):
                file.write(header)
                crc = 0
                for chunk in chunks(content):
                    file.write(chunk)
                    crc = zlib.crc32(chunk, crc)
                if crc != entry.crc:
                    raise OSError(errno.EIO, f"member {entry.name} changed while it was written")
            file.write(layout.tail)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        _discard(draft)
        # An error that names another file is about reading a member.
        if isinstance(error, OSError) and str(error.filename or draft) == str(draft):
            raise _cannot_write(path, error) from None
        raise
    publish(draft, path)


def publish(draft: Path, path: Path) -> None:
    """Give a finished file its name, in one step that survives a crash.

    Raises:
        UsageError: TC012; ``draft`` is removed and what stood at ``path`` is untouched.
    """
    try:
        os.replace(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        _discard(draft)
        raise _cannot_write(path, error) from None


def chunks(content: Content) -> Iterator[bytes | memoryview]:
    """What a member will hold, in pieces that memory has room for."""
    if not isinstance(content, Path):
        yield content
        return
    with open(content, "rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


def describe(name: str, content: Content) -> tuple[Member, _Entry]:
    """A member as the manifest and the directory name it."""
    digest, crc, size = hashlib.sha256(), 0, 0
    for chunk in chunks(content):
        digest.update(chunk)
        crc = zlib.crc32(chunk, crc)
        size += len(chunk)
    return Member(name, size, digest.hexdigest()), _Entry(name, size, crc)


def _discard(draft: Path) -> None:
    with suppress(FileNotFoundError):
        draft.unlink()


def _cannot_write(path: Path, error: OSError) -> UsageError:
    reason = error.strerror or str(error)
    return UsageError(Diagnostic("TC012", f"cannot write {path}: {reason}"))


# --- reading ----------------------------------------------------------------------------------------


@final
class Bundle:
    """An open bundle: ``path``, ``manifest``, and ``offsets`` of every member's data in the file.

    The file is mapped read-only and shared, or, opened with ``accept``, read into memory of the
    process. Views stay valid after `close`: the map goes with the last of them. Replace a bundle by
    renaming another over it; a mapped file that is cut short in place kills the process that reads
    it, as with any mapped file.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        offsets: dict[str, int],
        mapped: mmap.mmap,
        in_memory: bool = False,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.offsets = offsets
        self._members = {member.name: member for member in manifest.members}
        self._mapped: mmap.mmap | None = mapped
        self._in_memory = in_memory
        self._beside: mmap.mmap | None = None
        if manifest.external_weights is not None:
            self._members[WEIGHTS_NAME] = manifest.external_weights
        self._copies: dict[str, bytes] = {}

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the map. Not an mmap.close(), which fails while a view is alive."""
        self._mapped = self._beside = None

    def view(self, name: str) -> memoryview:
        """The bytes of a member, read-only, without a copy. Not verified: see `verify`."""
        if self._mapped is None:
            raise ValueError(f"{self.path} is closed")
        if name not in self.offsets and name in self._members:
            return memoryview(self._opened_beside(self._members[name])).toreadonly()
        start = self.offsets[name]
        return memoryview(self._mapped)[start : start + self._members[name].size].toreadonly()

    @property
    def has_weights(self) -> bool:
        return WEIGHTS_NAME in self._members

    def _opened_beside(self, member: Member) -> mmap.mmap:
        """The file with the weights, mapped or read once, as the bundle is."""
        if self._beside is None:
            # A bundle may be reached by a link; the file lies beside the one or the other.
            places = [self.path.with_name(member.name)]
            places.append(Path(os.path.realpath(self.path)).with_name(member.name))
            place = next((each for each in places if each.exists()), places[0])
            try:
                found = _map(place, in_memory=self._in_memory)
                if len(found) != member.size:
                    raise ValueError(f"it has {len(found)} bytes, and {member.size} are needed")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else None
                raise BundleError(
                    Diagnostic(
                        "TC410",
                        f"{self.path} needs {member.name} beside it: "
                        f"{(reason or str(error)).lower()}",
                        tries=("fetch it from where the bundle came from",),
                    )
                ) from None
            self._beside = found
        return self._beside

    def copy(self, name: str) -> bytes:
        """A copy of a member that has the digest of the manifest: what was hashed is what is used.

        Raises:
            BundleError: TC402, it has another one.
        """
        if name not in self._copies:
            self.verify((), copied=(name,))
        return self._copies.pop(name)

    def verify(self, names: Iterable[str] | None = None, copied: Iterable[str] = ()) -> None:
        """Compare the digests of the members ``names`` (None: all) with the manifest's.

        Args:
            copied: members that will be asked of `copy`: they are copied now, and not hashed again.

        Raises:
            BundleError: TC402 with the first member that differs.
        """
        ahead = tuple(copied)
        for name in dict.fromkeys((*(self._members if names is None else names), *ahead)):
            member = self._members[name]
            data: bytes | memoryview = self.view(name)
            if name in ahead:
                data = self._copies[name] = bytes(data)
            if hashlib.sha256(data).hexdigest() != member.sha256:
                self._copies.pop(name, None)
                raise BundleError(
                    Diagnostic(
                        "TC402",
                        f"{self.path}: member {name} is not what the manifest was written for",
                        notes=("the file was damaged or changed",),
                        tries=("fetch or export it again",),
                    )
                )


def open_bundle(
    path: Path | str, *, accept: Callable[[Path, memoryview], object] | None = None
) -> Bundle:
    """Open a bundle and read its manifest. Reads headers and the manifest alone; runs nothing.

    Args:
        accept: sees all bytes of the file before any of them is believed, and raises where they are
            not to be trusted. They are then read once into memory of the process, so that what it
            saw is what is used, whatever becomes of the file.

    Raises:
        BundleError: TC401 with what is wrong, or TC403 when the format version is from the future.
    """
    path = Path(os.path.abspath(path))
    try:
        mapped = _map(path, in_memory=accept is not None)
    except OSError as error:
        _refuse(path, (error.strerror or str(error)).lower())
    except ValueError as error:
        _refuse(path, str(error))
    if accept is not None:
        accept(path, memoryview(mapped).toreadonly())
    try:
        entries = _directory(mapped)
        layout = _layout(entries)
        _compare(mapped, entries, layout)
        manifest = _manifest(mapped, entries[0], layout.starts[0])
        _check_members(manifest, entries)
    except ValueError as error:
        mapped.close()
        if isinstance(error, ManifestError) and error.newer is not None:
            raise BundleError(
                Diagnostic(
                    "TC403",
                    f"{path}: format version {error.newer} is newer than this tcexport reads",
                    tries=("pip install --upgrade tcexport",),
                )
            ) from None
        where = f"{MANIFEST_NAME}: " if isinstance(error, ManifestError) else ""
        _refuse(path, f"{where}{error}")
    offsets = {entry.name: start for entry, start in zip(entries, layout.starts, strict=True)}
    del offsets[MANIFEST_NAME]
    return Bundle(path, manifest, offsets, mapped, in_memory=accept is not None)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise BundleError(
        Diagnostic(
            "TC401", f"{path} is not a bundle: {reason}", tries=("fetch or export it again",)
        )
    ) from None


def _map(path: Path, in_memory: bool = False) -> mmap.mmap:
    # O_NONBLOCK: opening a pipe must not wait for someone to write into it.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise ValueError("it is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size == 0:
            raise ValueError("the file is empty")
        if status.st_size > MAX_FILE_BYTES:
            raise ValueError("the file is too large")
        if in_memory:
            return _read(handle, status.st_size)
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(handle)


def _read(handle: int, size: int) -> mmap.mmap:
    """A file's bytes in memory that no other process has; on a page, as a mapped file is."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with memoryview(memory) as whole:
        at = 0
        while at < size:
            count = os.readv(handle, [whole[at : at + (_CHUNK << 6)]])
            if count == 0:
                raise ValueError("cut short while it was read")
            at += count
    if os.fstat(handle).st_size != size:
        raise ValueError("it grew while it was read")
    return memory


def _directory(data: mmap.mmap) -> list[_Entry]:
    """Names, sizes and CRCs as the central directory gives them, each in its bounds."""
    if data[:4] != _LOCAL_ID:
        raise ValueError("it does not start like a ZIP file")
    end_at = len(data) - _END.size
    if end_at < 0 or data[end_at : end_at + 4] != _END_ID:
        raise ValueError("the end of the ZIP directory is missing: cut short, or bytes behind it")
    _, disk, first, here, count, length, start, comment = _END.unpack_from(data, end_at)
    directory_end = end_at
    if start == _LIMIT32:
        locator_at = end_at - _LOCATOR.size
        directory_end = locator_at - _END64.size
        if directory_end < 0 or data[directory_end : directory_end + 4] != _END64_ID:
            raise ValueError("the ZIP64 end of the directory is missing")
        start = _END64.unpack_from(data, directory_end)[-1]
    if disk or first or here != count or comment:
        raise ValueError("several disks or a comment")
    if not 0 < count <= MAX_MEMBERS:
        raise ValueError(f"{count} members, allowed are 1..{MAX_MEMBERS}")
    if start + length != directory_end:
        raise ValueError("the ZIP directory is not where its end says")
    entries = []
    position = start
    for _ in range(count):
        entry, position = _central(data, position, directory_end)
        entries.append(entry)
    if position != directory_end:
        raise ValueError("bytes behind the last entry of the ZIP directory")
    _check_names([entry.name for entry in entries])
    if entries[0].name != MANIFEST_NAME:
        raise ValueError(f"the first member is {entries[0].name!r}, not {MANIFEST_NAME!r}")
    return entries


def _central(data: mmap.mmap, at: int, end: int) -> tuple[_Entry, int]:
    if at + _CENTRAL.size > end or data[at : at + 4] != _CENTRAL_ID:
        raise ValueError("the ZIP directory is damaged")
    fields = _CENTRAL.unpack_from(data, at)
    flags, method, crc, stored, size = fields[3], fields[4], fields[7], fields[8], fields[9]
    name_length, extra_length, comment_length, mode = (
        fields[10], fields[11], fields[12], fields[15] >> 16,
    )  # fmt: skip
    extra_at = at + _CENTRAL.size + name_length
    position = extra_at + extra_length + comment_length
    if position > end:
        raise ValueError("the ZIP directory is damaged")
    try:
        name = data[at + _CENTRAL.size : extra_at].decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("a member name that is not ASCII") from None
    if method != 0:
        raise ValueError(f"member {name!r:.80} is compressed; a bundle is stored")
    if flags & 1:
        raise ValueError(f"member {name!r:.80} is encrypted")
    if flags & 8:
        raise ValueError(f"member {name!r:.80} has a data descriptor")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise ValueError(f"member {name!r:.80} is a link or a directory")
    if size == _LIMIT32:
        if extra_length < 12 or data[extra_at : extra_at + 2] != struct.pack("<H", _ZIP64_FIELD):
            raise ValueError(f"member {name!r:.80}: its ZIP64 size is missing")
        stored = size = struct.unpack_from("<Q", data, extra_at + 4)[0]
    if stored != size or size > len(data):
        raise ValueError(f"member {name!r:.80} lies about its size")
    return _Entry(name, size, crc), position


def _compare(data: mmap.mmap, entries: Sequence[_Entry], layout: _Layout) -> None:
    """The headers that these members must have, against those that are there."""
    if layout.size != len(data):
        raise ValueError(
            f"{len(data)} bytes, but its members need {layout.size}: cut short, holes, overlaps, "
            "or bytes that belong to no member"
        )
    for entry, (at, header) in zip(entries, layout.headers, strict=True):
        if data[at : at + len(header)] != header:
            raise ValueError(f"the header of member {entry.name!r} is not as the directory says")
    if data[layout.tail_at :] != layout.tail:
        raise ValueError("the ZIP directory is not in the form of a bundle")


def _manifest(data: mmap.mmap, entry: _Entry, start: int) -> Manifest:
    if entry.size > MAX_MANIFEST_BYTES:
        raise ManifestError("too large")
    text = data[start : start + entry.size]
    if zlib.crc32(text) != entry.crc:
        raise ManifestError("damaged, its CRC differs")
    return decode(text)


def _check_members(manifest: Manifest, entries: Sequence[_Entry]) -> None:
    listed = [(member.name, member.size) for member in manifest.members]
    found = [(entry.name, entry.size) for entry in entries[1:]]
    if listed == found:
        return
    sizes, listed_names = dict(found), [name for name, _ in listed]
    for name, size in listed:
        if name not in sizes:
            raise ValueError(f"member {name!r:.80} of the manifest is not in the file")
        if sizes[name] != size:
            raise ValueError(f"member {name!r} has {sizes[name]} bytes, the manifest says {size}")
    for name, _ in found:
        if name not in listed_names:
            raise ValueError(f"member {name!r} is not in the manifest")
    raise ValueError("the members are not in the manifest's order")
