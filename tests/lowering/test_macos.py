"""Libraries for macOS: what they say of themselves is read, what macOS would not load is refused.

tiny.dylib.xz is what zig makes of these lines, linked as an export links::

    extern int TVMFFIErrorSetRaisedFromCStrParts(const char *, const char **, int);
    extern float sinf(float);
    const char __tvm_ffi__library_bin[8] = "tiny";
    int __tvm_ffi_main(float x) {
      return sinf(x) < 0 ? TVMFFIErrorSetRaisedFromCStrParts("ValueError", 0, 0) : 0;
    }
"""

from __future__ import annotations

import hashlib
import lzma
import struct
import subprocess
from pathlib import Path

import pytest

from tcexport.artifacts.errors import ExportError
from tcexport.lowering import macos
from tcexport.lowering.elf import oldest_glibc
from tcexport.lowering.link import find_linker, link, oldest_system
from tcexport.lowering.macho import MachOError, read_dylib
from tcexport.lowering.targets import CPU_TARGETS

TINY = lzma.decompress((Path(__file__).parent / "tiny.dylib.xz").read_bytes())

PAGE = 14  # the binary logarithm of its size


def commands(data: bytes) -> dict[int, int]:
    """Where each load command is, by its number."""
    (count,) = struct.unpack_from("<I", data, 16)
    found, at = {}, 32
    for _ in range(count):
        number, size = struct.unpack_from("<II", data, at)
        found[number] = at
        at += size
    return found


def signed(data: bytes) -> bytes:
    """With the digests of its pages made anew."""
    made = bytearray(data)
    start, _ = struct.unpack_from("<II", made, commands(data)[0x1D] + 8)
    directory = start + struct.unpack_from(">I", made, start + 16)[0]
    digests, _, _, slots = struct.unpack_from(">4I", made, directory + 16)
    for number in range(slots):
        page = made[number << PAGE : min(number + 1 << PAGE, start)]
        place = directory + digests + 32 * number
        made[place : place + 32] = hashlib.sha256(page).digest()
    return bytes(made)


def changed(at: int, new: bytes) -> bytes:
    return TINY[:at] + new + TINY[at + len(new) :]


def refusal(data: bytes) -> str:
    with pytest.raises(ExportError) as caught:
        macos.look_again(data)
    assert caught.value.code == "TC503"
    return str(caught.value)


def test_what_a_library_for_macos_says_of_itself_is_read() -> None:
    found = macos.look_again(TINY)
    assert found.name == "@rpath/model.dylib"
    assert found.macos == "11.0"
    assert found.libraries == (macos.FFI, macos.SYSTEM)
    assert {"__tvm_ffi__library_bin", "__tvm_ffi_main"} <= found.exported
    assert found.needed["TVMFFIErrorSetRaisedFromCStrParts"] == macos.FFI
    assert found.needed["sinf"] == macos.SYSTEM


def test_a_page_that_the_signature_does_not_hold_for_is_refused() -> None:
    code = TINY.index(b"tiny")
    assert f"does not hold for page {code >> PAGE}" in refusal(changed(code, b"T"))
    assert macos.look_again(signed(changed(code, b"T")))


def test_a_library_that_is_not_signed_is_refused() -> None:
    at = commands(TINY)[0x1D]
    assert "it is not signed" in refusal(changed(at, struct.pack("<I", 0x26)))
    start, length = struct.unpack_from("<II", TINY, at + 8)
    assert "signature is damaged" in refusal(changed(start, b"\0"))
    half = changed(at + 12, struct.pack("<I", length // 2))
    assert "macOS cannot be used" in refusal(half[: start + length // 2])


def test_a_newer_macos_is_refused() -> None:
    at = commands(TINY)[0x32] + 12
    newer = signed(changed(at, struct.pack("<I", 14 << 16 | 2 << 8)))
    assert "it is for macOS 14.2, not 11.0" in refusal(newer)


def test_what_will_not_be_there_is_refused_by_its_name() -> None:
    known, unknown = b"\0_sinf\0", b"\0_sinq\0"
    assert TINY.count(known) == 1
    assert "it needs sinq of /usr/lib/libSystem.B.dylib" in refusal(
        signed(TINY.replace(known, unknown))
    )
    other = signed(TINY.replace(b"@rpath/libtvm_ffi.dylib", b"@rpath/libtvm_fff.dylib"))
    assert "needs @rpath/libtvm_fff.dylib" in refusal(other)
    blob = signed(TINY.replace(b"___tvm_ffi__library_bin\0", b"___tvm_ffi__library_bim\0"))
    assert "does not give out __tvm_ffi__library_bin" in refusal(blob)


@pytest.mark.parametrize("length", [0, 16, 40, 400, 1500, len(TINY) - 1])
def test_a_library_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(MachOError):
        read_dylib(TINY[:length])


def test_code_for_linux_is_no_code_for_macos() -> None:
    elf = Path(macos.__file__).read_bytes()
    with pytest.raises(MachOError, match="no arm64 dynamic library"):
        read_dylib(elf)
    with pytest.raises(ValueError, match="not a little-endian 64-bit ELF file"):
        oldest_glibc(TINY)
    x86 = changed(4, struct.pack("<I", 0x01000007))
    assert "no arm64 dynamic library" in refusal(x86)


def test_generated_code_finds_the_functions_of_ffi_that_it_calls() -> None:
    assert {"TVMFFIErrorSetRaisedFromCStrParts", "TVMFFIFunctionCall"} <= macos.ffi_symbols()


def test_zig_links_the_same_bytes_in_two_folders(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install 'tcexport[cross]'")
    linker = find_linker(CPU_TARGETS["arm64-macos"])
    source = tmp_path / "tiny.c"
    source.write_text(
        "extern float sinf(float);\n"
        'const char __tvm_ffi__library_bin[8] = "tiny";\n'
        "float __tvm_ffi_main(float x) { return sinf(x); }\n"
    )
    made = []
    for name in ("one", "another/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        compiled = folder / "lib0.o"
        command = [*linker.command, "-O2", "-c", str(source), "-o", str(compiled)]
        subprocess.run(command, check=True)
        link(linker, [compiled], folder / "model.dylib")
        made.append((folder / "model.dylib").read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]
    assert oldest_system(made[0], linker.system) == "11.0"


def test_a_function_that_no_library_has_is_an_error_of_the_linker(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install 'tcexport[cross]'")
    linker = find_linker(CPU_TARGETS["arm64-macos"])
    source, compiled = tmp_path / "lost.c", tmp_path / "lost.o"
    source.write_text("extern int of_nobody(void);\nint f(void) { return of_nobody(); }\n")
    subprocess.run([*linker.command, "-O2", "-c", str(source), "-o", str(compiled)], check=True)
    with pytest.raises(ExportError, match="of_nobody") as caught:
        link(linker, [compiled], tmp_path / "model.dylib")
    assert caught.value.code == "TC503"
