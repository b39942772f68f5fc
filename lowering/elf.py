"""What a shared library asks of the system's C library: the version needs of its ELF file.

Source: System V ABI and the Linux Standard Base, symbol versioning (.gnu.version_r).
"""

from __future__ import annotations

import re
import struct

_SHT_GNU_VERNEED = 0x6FFFFFFE


def oldest_glibc(data: bytes) -> str:
    """The highest glibc version that a little-endian 64-bit ELF library needs, such as ``2.27``.

    A library without version needs answers ``2.2.5``, the first glibc of x86-64.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQII", data, table + number * entry_size)
        for number in range(count)
    ]
    versions = []
    for _, kind, _, _, offset, _, link, info in sections:
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
