"""Reading what the CUDA compiler made: a cubin, PTX, and the fatbin that holds several of them.

The fatbin's layout is not documented by NVIDIA; it was read off files that ``fatbinary`` of CUDA 13
writes, and what ``cuobjdump -lelf -lptx`` lists of them. Little-endian, 64 bits::

    u32 magic, u16 version, u16 header size, u64 size of all that follows
    each image: u16 kind (1 PTX, 2 ELF), u16 version, u32 header size, u64 size of its data,
                u32 …, u32 …, u16 …, u16 …, u32 architecture (90), …
"""

from __future__ import annotations

import re
import struct

_MAGIC = 0xBA55ED50
_KINDS = {1: "compute_", 2: "sm_"}
_EM_CUDA = 190
_SHT_SYMTAB, _STT_FUNC = 2, 2


class FatbinError(ValueError):
    """The bytes are not what the compiler is to make."""


def images(data: bytes) -> tuple[str, ...]:
    """What a fatbin holds: ``("sm_80", "sm_90", "compute_90")``, in its order.

    Raises:
        FatbinError: it is none.
    """
    found = []
    try:
        magic, _, header, size = struct.unpack_from("<IHHQ", data)
        if magic != _MAGIC or header + size > len(data):
            raise FatbinError("not a fatbin")
        at, end = header, header + size
        while at < end:
            kind, _, own, length = struct.unpack_from("<HHIQ", data, at)
            (architecture,) = struct.unpack_from("<I", data, at + 28)
            if kind not in _KINDS or own < 32 or at + own + length > end:
                raise FatbinError("an image of a kind that is not known")
            found.append(f"{_KINDS[kind]}{architecture}")
            at += own + length
    except struct.error:
        raise FatbinError("a fatbin that ends too early") from None
    return tuple(found)


def kernels_of_cubin(data: bytes) -> frozenset[str]:
    """The functions of a cubin.

    Raises:
        FatbinError: it is no ELF file for CUDA.
    """
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != _EM_CUDA:
        raise FatbinError("not a cubin")
    try:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, table + number * size)
            for number in range(count)
        ]
        names = set()
        for _, kind, _, _, offset, length, link, _, _, step in sections:
            if kind != _SHT_SYMTAB:
                continue
            strings = sections[link][4]
            for at in range(offset, offset + length, step):
                name, info = struct.unpack_from("<IB", data, at)
                if info & 0xF == _STT_FUNC:
                    end = data.index(b"\0", strings + name)
                    names.add(data[strings + name : end].decode())
    except (struct.error, IndexError, ValueError, ZeroDivisionError):
        raise FatbinError("a damaged cubin") from None
    return frozenset(names)


def kernels_of_ptx(data: bytes, architecture: str, isa: str) -> frozenset[str]:
    """The entries of a PTX text.

    Raises:
        FatbinError: it is for another architecture than ``compute_90``, or of another version.
    """
    text = data.decode(errors="replace")
    version = re.search(r"^\.version (\S+)", text, re.MULTILINE)
    target = re.search(r"^\.target (\w+)", text, re.MULTILINE)
    wanted = architecture.replace("compute_", "sm_")
    if version is None or version[1] != isa or target is None or target[1] != wanted:
        raise FatbinError(f"not PTX {isa} for {wanted}")
    return frozenset(re.findall(r"^\s*(?:\.visible )?\.entry (\w+)", text, re.MULTILINE))
