"""A library with machine code for GPUs: kernels compiled, merged, put in place, and looked at again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tvm
import tvm_ffi
from tvm import relax

from ...artifacts.errors import Diagnostic, ExportError
from ..elf import dynamic_symbol
from ..link import Linker, link
from ..targets import GpuTarget
from . import cache
from .blob import BlobError, DeviceCode, read_blob
from .device_code import FOLDER, device_code, with_device_code
from .fatbin import FatbinError, images, kernels_of_cubin, kernels_of_ptx
from .nvrtc import OPTIONS, Request
from .toolchain import PTX_ISA, VERSION, Toolchain

_SYMBOL = b"__tvm_ffi__library_bin"  # where the runtime looks for the blob
_NO_LIBRARY = "TVM_COMPILE_FORCE_FALLBACK"  # TVM would ask a CUDA at hand for its own architecture


@dataclass(frozen=True)
class Packed:
    """What a finished library holds: ``images`` as `fatbin.images` says, and the kernels' names."""

    images: tuple[str, ...]
    kernels: tuple[str, ...]


@contextmanager
def without_a_device() -> Iterator[None]:
    """While active, TVM makes CUDA source for any GPU, whatever there is on this machine."""
    before = os.environ.get(_NO_LIBRARY)
    os.environ[_NO_LIBRARY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_LIBRARY]
        else:
            os.environ[_NO_LIBRARY] = before


def export_gpu_library(
    executable: relax.VMExecutable,
    target: GpuTarget,
    tools: Toolchain,
    linker: Linker,
    output: Path,
) -> Packed:
    """Write a library with the fatbin of ``target`` in the place of the CUDA source.

    Raises:
        ExportError: TC503, a compiler failed, or the finished file does not hold what was asked for.
    """
    workdir = output.parent

    def fatbin(code: DeviceCode) -> DeviceCode:
        if code.format != "cuda":
            raise BlobError(f"device code in the format {code.format!r}")
        source = with_device_code(code.code.decode())
        made = compile_kernels(source, code.kernels, target.binaries, tools, workdir)
        return DeviceCode("fatbin", code.functions, code.kernels, made)

    def pack_imports(module: Any, is_system_lib: bool, prefix: str, folder: str) -> str:
        packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
        blob = read_blob(packed.numpy().tobytes()).with_device_code(fatbin).encoded()
        carrier = tvm_ffi.get_global_func("codegen.codegen_blob")(
            blob, is_system_lib, str(tvm.target.Target(dict(target.host.llvm))), prefix
        )
        path = f"{folder}/{prefix}devc.o"
        carrier.write_to_file(path)
        return path

    try:
        with without_a_device():
            executable.export_library(
                str(output),
                fpack_imports=pack_imports,
                fcompile=lambda path, objects, **_: link(
                    linker, [Path(item) for item in objects], Path(path)
                ),
            )
        return look_again(output.read_bytes(), target)
    except (BlobError, FatbinError) as error:
        raise _failed(f"the GPU code cannot be packed: {error}") from error


def look_again(library: bytes, target: GpuTarget) -> Packed:
    """What a finished library holds, which must be what was asked for, and no source.

    Raises:
        ExportError: TC503.
    """
    place = dynamic_symbol(library, _SYMBOL)
    if place is None:
        raise _failed("the library has no device code")
    codes = read_blob(library[place:]).device_codes()
    if [code.format for code in codes] != ["fatbin"] or b"__global__" in library:
        raise _failed("the library holds CUDA source, which it could not run without a compiler")
    (code,) = codes
    found = images(code.code)
    if sorted(found) != sorted(target.binaries):
        raise _failed(
            f"the library holds {' '.join(found) or 'nothing'}, "
            f"asked for was {' '.join(target.binaries)}"
        )
    return Packed(found, code.kernels)


def compile_kernels(
    source: str, kernels: tuple[str, ...], wanted: tuple[str, ...], tools: Toolchain, workdir: Path
) -> bytes:
    """A fatbin of ``source`` for the architectures ``wanted``, as `machine_code_of` gives them.

    Raises:
        ExportError: TC503.
    """
    return _merged(machine_code_of(source, kernels, wanted, tools, workdir), tools, workdir)


def machine_code_of(
    source: str, kernels: tuple[str, ...], wanted: tuple[str, ...], tools: Toolchain, workdir: Path
) -> dict[str, bytes]:
    """The cubin or PTX of ``source`` for each of ``wanted``, each with all ``kernels``; what was
    compiled before is taken from the cache.

    Raises:
        ExportError: TC503, it does not compile.
        FatbinError: what the compiler made lacks a kernel.
    """
    parts = (*OPTIONS, source, *device_code(source))
    keys = {each: cache.key_of(VERSION, each, *parts) for each in wanted}
    made = {each: cache.lookup(key) for each, key in keys.items()}
    missing = [each for each, data in made.items() if data is None]
    if missing:
        compiled = _compiled(source, missing, tools, workdir)
        for each, code in compiled.items():
            _check(each, code, kernels)  # before it is kept
            cache.store(keys[each], code)
        made |= compiled
    binaries = {each: data for each, data in made.items() if data is not None}
    for each, data in binaries.items():
        _check(each, data, kernels)
    return binaries


def _check(architecture: str, data: bytes, kernels: tuple[str, ...]) -> None:
    machine_code = architecture.startswith("sm_")
    found = kernels_of_cubin(data) if machine_code else kernels_of_ptx(data, architecture, PTX_ISA)
    lacking = sorted(set(kernels) - found)
    if lacking:
        raise FatbinError(f"{architecture} lacks {lacking[0]}")


def _compiled(source: str, wanted: list[str], tools: Toolchain, workdir: Path) -> dict[str, bytes]:
    """What NVRTC makes of ``source`` for each of ``wanted``, side by side.

    Raises:
        ExportError: TC503.
    """
    text = workdir / "kernels.cu"
    text.write_text(source)
    waiting = list(wanted)
    running: dict[str, subprocess.Popen[str]] = {}
    made: dict[str, bytes] = {}
    try:
        while waiting or running:
            while waiting and len(running) < max(1, len(os.sched_getaffinity(0))):
                each = waiting.pop(0)
                running[each] = _start(each, text, tools, workdir)
            each = next(iter(running))
            _, said = running[each].communicate()
            status = running.pop(each).returncode
            if status:
                raise _failed(
                    f"NVRTC failed for {each}, with status {status}",
                    tuple(said.strip().splitlines()[-20:]),
                )
            made[each] = (workdir / each).read_bytes()
    finally:
        for child in running.values():
            child.kill()
            child.communicate()
        text.unlink()
    return made


def _start(
    architecture: str, source: Path, tools: Toolchain, workdir: Path
) -> subprocess.Popen[str]:
    request = Request(
        nvrtc=str(tools.nvrtc),
        builtins=str(tools.builtins),
        include=tuple(str(folder) for folder in (*tools.include, FOLDER)),
        source=str(source),
        architecture=architecture,
        output=str(workdir / architecture),
    )
    path = workdir / f"{architecture}.json"
    path.write_bytes(msgspec.json.encode(request))
    command = [sys.executable, "-m", f"{__package__}.nvrtc", str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=workdir
    )


def _merged(made: dict[str, bytes], tools: Toolchain, workdir: Path) -> bytes:
    output = workdir / "kernels.fatbin"
    # Compressed, which every driver does that takes code of this compiler.
    command = [str(tools.fatbinary), f"--create={output}", "-64", "--compress-all"]
    command.append("--compress-mode=size")
    for each, data in made.items():
        kind, _, number = each.partition("_")
        path = workdir / each
        path.write_bytes(data)
        kind = "elf" if kind == "sm" else "ptx"
        command.append(f"--image3=kind={kind},sm={number},file={path}")
    # Nothing of an installed CUDA may have a say.
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=workdir, env={"TMPDIR": str(workdir)}
    )
    if done.returncode:
        raise _failed(
            f"fatbinary failed with status {done.returncode}",
            tuple(done.stderr.splitlines()[-20:]),
        )
    return output.read_bytes()


def _failed(what: str, notes: tuple[str, ...] = ()) -> ExportError:
    return ExportError(Diagnostic("TC503", what, notes=notes))
