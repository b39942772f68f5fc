"""The device code in a library of TVM's: the bytes that its runtime reads the imported modules from.

TVM writes CUDA *source* there, which its runtime hands to a compiler when the library is loaded.
Here the source is taken out and a fatbin put in its place: the same functions under the same names,
in a format that the same runtime passes to the driver.

The layout is that of ``src/target/codegen_blob.cc`` and ``src/runtime/cuda/cuda_module.cc`` of TVM
0.27: numbers of 64 bits, texts and bytes after their length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

_NO_BYTES = "_lib"  # the module that is the library itself


class BlobError(ValueError):
    """The bytes are not what TVM 0.27 writes."""


@dataclass(frozen=True)
class DeviceCode:
    """A module for the device: ``format`` is ``cuda`` (source) or ``fatbin``; ``functions`` are the
    bytes that say how each of ``kernels`` is launched."""

    format: str
    functions: bytes
    kernels: tuple[str, ...]
    code: bytes

    def encoded(self) -> bytes:
        return _with_length(self.format.encode()) + self.functions + _with_length(self.code)


@dataclass(frozen=True)
class Blob:
    """The modules of a library by kind, and how they are nested, as TVM writes it."""

    nesting: bytes
    modules: tuple[tuple[str, bytes | None], ...]

    def encoded(self) -> bytes:
        body = self.nesting
        for kind, data in self.modules:
            body += _with_length(kind.encode())
            body += b"" if data is None else _with_length(data)
        return struct.pack("<Q", len(body)) + body

    def device_codes(self) -> tuple[DeviceCode, ...]:
        return tuple(_device_code(data) for kind, data in self.modules if kind == "cuda" and data)

    def with_device_code(self, change: Callable[[DeviceCode], DeviceCode]) -> Blob:
        modules = tuple(
            (kind, change(_device_code(data)).encoded() if kind == "cuda" and data else data)
            for kind, data in self.modules
        )
        return Blob(self.nesting, modules)


def read_blob(data: bytes) -> Blob:
    """Read a blob; what follows it in ``data`` is not looked at.

    Raises:
        BlobError: it is none.
    """
    whole = _Reader(data)
    reader = _Reader(whole.bytes())
    rows = [reader.number() for _ in range(reader.count())]
    for _ in range(reader.count()):
        reader.number()
    nesting = reader.data[: reader.at]
    modules: list[tuple[str, bytes | None]] = []
    for _ in range(len(rows) - 1):
        kind = reader.text()
        modules.append((kind, None if kind == _NO_BYTES else reader.bytes()))
    reader.end()
    return Blob(nesting, tuple(modules))


def _device_code(data: bytes) -> DeviceCode:
    reader = _Reader(data)
    form = reader.text()
    start = reader.at
    kernels = []
    for _ in range(reader.count()):
        kernels.append(reader.text())
        reader.text()  # its name again
        reader.skip(4 * reader.count())  # dtypes of its parameters
        for _ in range(reader.count()):
            reader.text()  # what is launched by which parameter
        reader.skip(4 * reader.count())
    functions = data[start : reader.at]
    code = reader.bytes()
    reader.end()
    return DeviceCode(form, functions, tuple(sorted(kernels)), code)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def skip(self, length: int) -> None:
        if not 0 <= length <= len(self.data) - self.at:
            raise BlobError("it ends too early")
        self.at += length

    def number(self) -> int:
        self.skip(8)
        return int(struct.unpack_from("<Q", self.data, self.at - 8)[0])

    def count(self) -> int:
        number = self.number()
        if number > len(self.data):
            raise BlobError("a count that cannot be")
        return number

    def bytes(self) -> bytes:
        length = self.number()
        self.skip(length)
        return self.data[self.at - length : self.at]

    def text(self) -> str:
        return self.bytes().decode()

    def end(self) -> None:
        if self.at != len(self.data):
            raise BlobError("more than was expected")


def _with_length(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
