"""What a library for macOS asks of the system and gives to others, and whether its signature holds.

A Mac with an arm64 CPU ends a process that maps a page of code whose digest is not the one that the
library's own signature has for it: who signed does not matter ("ad hoc"), that the digests fit does.

Source: Apple's mach-o/loader.h, mach-o/nlist.h and kern/cs_blobs.h; numbers of a code signature are
big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC, _ARM64, _DYLIB = 0xFEEDFACF, 0x0100000C, 6
_TWOLEVEL = 0x80
_SYMTAB, _ID_DYLIB, _SIGNATURE, _BUILD_VERSION = 0x2, 0xD, 0x1D, 0x32
_LOADS = (0xC, 0x80000018, 0x8000001F)  # LC_LOAD_DYLIB, weak, and exported again
_MACOS = 1
_DEBUG, _TYPE, _EXTERNAL, _UNDEFINED = 0xE0, 0x0E, 0x01, 0x0
_EMBEDDED, _DIRECTORY, _AD_HOC, _SHA256 = 0xFADE0CC0, 0xFADE0C02, 0x2, 2


class MachOError(ValueError):
    """A file is no arm64 library for macOS, or its signature does not hold."""


@dataclass(frozen=True)
class Dylib:
    """An arm64 library for macOS.

    Attributes:
        name: what libraries that need it find it by.
        macos: the oldest macOS that it runs with, such as ``11.0``.
        libraries: those that it needs, by their names.
        exported: the symbols that it gives out, as C spells them.
        needed: the symbols that it takes from others, each with the library that has it; "" for
            whichever is loaded.
    """

    name: str
    macos: str
    libraries: tuple[str, ...]
    exported: frozenset[str]
    needed: dict[str, str]


def read_dylib(data: bytes) -> Dylib:
    """What a library says of itself, whose signature holds for each of its pages.

    Raises:
        MachOError: it is none, or the signature is not there or does not hold.
    """
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as error:
        raise error if isinstance(error, MachOError) else MachOError(f"damaged: {error}") from None


def _read(data: bytes) -> Dylib:
    magic, cpu, _, kind, _, _, flags, _ = struct.unpack_from("<8I", data)
    if (magic, cpu, kind) != (_MAGIC, _ARM64, _DYLIB):
        raise MachOError("no arm64 dynamic library")
    if not flags & _TWOLEVEL:
        raise MachOError("its symbols are not bound to libraries by name")
    name = macos = ""
    libraries: list[str] = []
    symbols = signature = None
    for command, at, end in _commands(data):
        if command == _ID_DYLIB:
            name = _text(data, at, end)
        elif command in _LOADS:
            libraries.append(_text(data, at, end))
        elif command == _BUILD_VERSION:
            system, version = struct.unpack_from("<II", data, at + 8)
            macos = f"{version >> 16}.{version >> 8 & 0xFF}" if system == _MACOS else ""
        elif command == _SYMTAB:
            symbols = struct.unpack_from("<4I", data, at + 8)
        elif command == _SIGNATURE:
            signature = struct.unpack_from("<II", data, at + 8)
    if not macos or symbols is None:
        raise MachOError("it does not say which macOS it is for, or has no symbols")
    if signature is None:
        raise MachOError("it is not signed")
    _check_signature(data, *signature)
    exported, needed = _symbols(data, libraries, *symbols)
    return Dylib(name, macos, tuple(libraries), exported, needed)


def _commands(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The number of each load command, and where in the file it begins and ends."""
    (count,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if size < 8 or at + size > len(data):
            raise MachOError("a load command has no end")
        yield command, at, at + size
        at += size


def _text(data: bytes, at: int, end: int) -> str:
    """The name in a command of a library."""
    (offset,) = struct.unpack_from("<I", data, at + 8)
    return data[at + offset : end].split(b"\0")[0].decode()


def _symbols(
    data: bytes, libraries: list[str], start: int, count: int, strings: int, length: int
) -> tuple[frozenset[str], dict[str, str]]:
    exported, needed = set(), {}
    for number in range(count):
        at, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, start + 16 * number)
        if kind & _DEBUG or not kind & _EXTERNAL:
            continue
        begin = strings + at
        name = data[begin : data.index(b"\0", begin, strings + length)].decode()
        name = name.removeprefix("_")
        if kind & _TYPE != _UNDEFINED:
            exported.add(name)
            continue
        ordinal = description >> 8
        needed[name] = libraries[ordinal - 1] if 1 <= ordinal <= len(libraries) else ""
    return frozenset(exported), needed


def _check_signature(data: bytes, start: int, length: int) -> None:
    blob = data[start : start + length]
    magic, _, count = struct.unpack_from(">III", blob)
    if magic != _EMBEDDED or len(blob) != length:
        raise MachOError("its signature is damaged")
    places = [struct.unpack_from(">II", blob, 12 + 8 * number) for number in range(count)]
    directories = [at for _, at in places if struct.unpack_from(">I", blob, at) == (_DIRECTORY,)]
    if not directories:
        raise MachOError("its signature has no digests")
    for at in directories:
        _check_pages(data, blob[at:], start)


def _check_pages(data: bytes, directory: bytes, end: int) -> None:
    """The digest of each page, in a CS_CodeDirectory."""
    _, size, _, flags, digests, _, _, slots, limit = struct.unpack_from(">9I", directory)
    width, algorithm, _, shift = struct.unpack_from(">4B", directory, 36)
    if not flags & _AD_HOC or (algorithm, width) != (_SHA256, 32):
        raise MachOError("it is not signed ad hoc with SHA-256")
    page = 1 << shift
    if limit != end or slots != -(-limit // page) or digests + 32 * slots > size:
        raise MachOError("its signature does not cover all of it")
    for number in range(slots):
        have = data[number * page : min((number + 1) * page, limit)]
        if hashlib.sha256(have).digest() != directory[digests + 32 * number :][:32]:
            raise MachOError(f"its signature does not hold for page {number}")
