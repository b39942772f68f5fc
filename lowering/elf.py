"""What a shared library asks of the system's C library, and where its symbols lie, from its ELF file.

Source: System V ABI and the Linux Standard Base, symbol versioning (.gnu.version_r).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

_SHT_DYNSYM = 11
_SHT_GNU_VERNEED = 0x6FFFFFFE


def oldest_glibc(data: bytes) -> str:
    """The highest glibc version that a little-endian 64-bit ELF library needs, such as ``2.27``.

    A library without version needs answers ``2.2.5``, the first glibc of x86-64.
    """
    sections = _sections(data)
    versions = []
    for _, kind, _, _, offset, _, link, info, _, _ in sections:
        if kind != _SHT_GNU_VERNEED:
            continue
        strings = sections[link][4]
        for _ in range(info):
            _, entries, _, first, following = struct.unpack_from("<HHIII", data, offset)
            at = offset + first
            for _ in range(entries):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, at)
                end = data.index(b"\0", strings + name)
                versions.append(data[strings + name : end].decode())
                at += step
            offset += following
    found = [
        tuple(int(part) for part in match[1].split("."))
        for match in (re.fullmatch(r"GLIBC_([0-9.]+)", version) for version in versions)
        if match
    ]
    return ".".join(str(part) for part in max(found, default=(2, 2, 5)))


def dynamic_symbol(data: bytes, name: bytes) -> int | None:
    """Where in the file the data of a symbol that a library gives out begins; None without one."""
    return next((place for given, place in _given_out(data) if given == name), None)


def exported(data: bytes) -> frozenset[str]:
    """The names of the symbols that a library gives out."""
    return frozenset(name.decode() for name, _ in _given_out(data))


def _given_out(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Each symbol that a library gives out, and where in the file it begins."""
    sections = _sections(data)
    for _, kind, _, _, offset, length, link, _, _, step in sections:
        if kind != _SHT_DYNSYM:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + length, step):
            text, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            end = data.index(b"\0", strings + text)
            if 0 < section < len(sections):
                _, _, _, address, start, *_ = sections[section]
                yield data[strings + text : end], int(value - address + start)


def _sections(data: bytes) -> list[tuple[int, ...]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    return [
        struct.unpack_from("<IIQQQQIIQQ", data, table + number * entry_size)
        for number in range(count)
    ]
