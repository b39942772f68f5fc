"""The stand-in for NVIDIA's libraries (standin/driver.cc): built with the system's C++ compiler."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from tcexport.lowering.cuda.device_code import FOLDER

SOURCES = Path(__file__).parent / "standin"
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
_CACHE = Path(tempfile.gettempdir()) / "tcexport-standin"

# A kernel in which no thread waits for another runs as a loop.
_MEETS = re.compile(
    r"__syncthreads|__syncwarp|_sync\(|__ballot|__any|__all|cooperative_groups|tcexport::"
)
_KERNEL = re.compile(
    r'extern "C" __global__ void(?:\s+__launch_bounds__\((\d+)[^)]*\))?\s+(\w+)\(([^)]*)\)\s*\{'
)
_DYNAMIC = re.compile(
    r"extern __shared__ (?:__align__\(\d+\)|alignas\(\d+\))?\s*([\w ]+?)\s+(\w+)\[\];"
)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")


@functools.cache
def build_driver() -> Path:
    """A folder with libcuda.so.1 and libcudart.so.13; made once for each state of the sources."""
    assert COMPILER is not None
    sources = [SOURCES / name for name in ("driver.cc", "kernels.h", "cudart.map")]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = _CACHE / digest
    if not folder.is_dir():
        _CACHE.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=_CACHE))
        common = (COMPILER, "-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden")
        cuda = str(work / "libcuda.so.1")
        _run(*common, "-Wall", "-o", cuda, str(sources[0]), "-Wl,-soname,libcuda.so.1", "-ldl")
        # The symbols are libcuda's; this one has the version that others ask for.
        (work / "empty.cc").touch()
        script = f"-Wl,--version-script={sources[2]}"
        _run(*common, "-o", str(work / "libcudart.so.13"), str(work / "empty.cc"), script,
             "-Wl,-soname,libcudart.so.13", "-Wl,--no-as-needed", cuda)  # fmt: skip
        try:
            work.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(work)
    return folder


def build_kernels(source: str, image: bytes, folder: Path) -> Path:
    """Compile the CUDA source of a fat binary for the CPU, to where the driver looks for it; once
    for each source on a machine.

    Args:
        image: the fat binary that the exported library holds.
    """
    assert COMPILER is not None
    path = folder / f"{zlib.crc32(image):08x}-{len(image)}.so"
    text = _DYNAMIC.sub(r"\1* \2 = (\1*)standin->dynamic;", source)
    text = re.sub(
        r"\bvolatile\b", "", text
    )  # threads take turns, at calls that nothing sees through
    tables, rows, parts, done = [], [], [], 0
    for found in _KERNEL.finditer(text):
        bound, name, parameters = found.groups()
        end = _end(text, found.end())
        body = text[found.end() : end]
        # A section of its own, so that the driver can poison it before each block.
        shared = f'static __attribute__((section("shared_{name}")))'
        parts += [text[done : found.end()], body.replace("__shared__", shared)]
        done = end
        types = [_type(each) for each in parameters.split(",") if each.strip()]
        values = ", ".join(f"*({each}*)p[{at}]" for at, each in enumerate(types))
        sizes = ", ".join(f"sizeof({each})" for each in types) or "0"
        tables.append(f"static const int sizes_{name}[] = {{{sizes}}};")
        tables.append(f"static void run_{name}([[maybe_unused]] void** p) {{ {name}({values}); }}")
        place = "0, 0"
        if "__shared__" in body:
            ends = [f"__{side}_shared_{name}" for side in ("start", "stop")]
            tables.append(f'extern "C" unsigned char {ends[0]}[], {ends[1]}[];')
            place = ", ".join(ends)
        meets = int(_MEETS.search(body) is not None)
        rows.append(
            f'{{"{name}", run_{name}, {len(types)}, sizes_{name}, {bound or 0}, {meets}, {place}}},'
        )
    text = "".join(parts) + text[done:]
    exported = (
        'extern "C" const Kernel* standin_kernels(Runner* given) { standin = given; '
        f"static const Kernel all[] = {{ {' '.join(rows)} {{0}} }}; return all; }}"
    )
    unit = "\n".join(['#include "device.h"', text, *tables, exported])
    read = [*SOURCES.rglob("*.h"), *SOURCES.rglob("*.cuh"), *FOLDER.rglob("*.cuh")]
    headers = b"".join(each.read_bytes() for each in sorted(read))
    kept = _CACHE / f"{hashlib.sha256(headers + unit.encode()).hexdigest()[:32]}.so"
    if not kept.is_file():
        _CACHE.mkdir(exist_ok=True)
        flags = ("-O2", "-march=native", "-w", "-std=c++17", "-fPIC", "-shared", "-fno-math-errno")
        with tempfile.TemporaryDirectory(dir=_CACHE) as work:
            written, built = Path(work, "kernels.cc"), Path(work, "kernels.so")
            written.write_text(unit)
            folders = (f"-I{SOURCES}/include", f"-I{FOLDER}")  # ours first: `warp.cuh` is in both
            _run(COMPILER, *flags, *folders, "-o", str(built), str(written))
            built.rename(kept)
    shutil.copyfile(kept, path)
    return path


def _type(parameter: str) -> str:
    return (
        re.sub(r"__restrict__|\bconst\b|__grid_constant__", "", parameter)
        .rsplit(None, 1)[0]
        .strip()
    )


def _end(text: str, start: int) -> int:
    """Where the function that begins at ``start`` ends: at a brace in the first column."""
    end = text.find("\n}", start)
    return len(text) if end < 0 else end


def fatbin(
    source: str, cubins: Sequence[int] = (90,), ptx: int | None = None, isa: int = 90
) -> bytes:
    """A fat binary of empty entries: what a driver chooses from, unique for a source."""
    digest = hashlib.sha256(source.encode()).digest() + bytes(32)
    entries = b""
    for kind, arch in [*((2, arch) for arch in cubins), *((1, arch) for arch in [ptx] if arch)]:
        entries += struct.pack(
            "<HHIQ8xHHI32x", kind, 0x101, 64, len(digest), isa % 10, isa // 10, arch
        )
        entries += digest
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
