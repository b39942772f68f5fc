"""The child process that compiles CUDA source for one architecture: ``python -m … REQUEST``.

NVRTC is a library; in a process of its own its crash is a diagnostic, and several run side by side.
Source: the NVRTC documentation, docs.nvidia.com/cuda/nvrtc.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import msgspec

# What the CUDA of TVM expects of its compiler, and NVRTC does not bring.
_PREAMBLE = """\
#include <cuda/std/cstdint>
#include <cuda/std/limits>
using cuda::std::int8_t;
using cuda::std::int16_t;
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint8_t;
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
#ifndef INFINITY
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
#endif
"""
# No fast math: divisions, roots and denormals are IEEE's, as in eager mode.
OPTIONS = ("--std=c++17", "-default-device", "--device-int128", "--fmad=true")


class Request(msgspec.Struct, frozen=True):
    """``architecture`` is ``sm_90`` for machine code, ``compute_90`` for PTX; the rest are paths."""

    nvrtc: str
    builtins: str
    include: tuple[str, ...]
    source: str
    architecture: str
    output: str


class NvrtcError(RuntimeError):
    """A call of NVRTC failed; the text is what it says."""


def compile_source(request: Request) -> bytes:
    """What NVRTC makes of the source: a cubin, or PTX as text.

    Raises:
        NvrtcError: it does not compile.
    """
    # NVRTC opens its builtins by name, and finds them where they are loaded already.
    ctypes.CDLL(request.builtins, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(request.nvrtc)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status:
            raise NvrtcError(nvrtc.nvrtcGetErrorString(status).decode())

    def fetched(kind: str) -> bytes:
        size = ctypes.c_size_t()
        check(getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        check(getattr(nvrtc, f"nvrtcGet{kind}")(program, data))
        return data.raw

    lines = Path(request.source).read_text().splitlines()
    source = _PREAMBLE + "\n".join(line for line in lines if line.strip() != "#include <cuda.h>")
    name = b"kernels.cu"
    check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), (source + "\n").encode(), name, 0, None, None
        )
    )
    options = [f"--gpu-architecture={request.architecture}", *OPTIONS]
    options += [f"-I{folder}" for folder in request.include]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), array)
    if status:
        log = fetched("ProgramLog").rstrip(b"\0").decode(errors="replace")
        raise NvrtcError(f"{nvrtc.nvrtcGetErrorString(status).decode()}\n{log}")
    if request.architecture.startswith("sm_"):
        return fetched("CUBIN")
    return fetched("PTX").rstrip(b"\0")


def main(path: str) -> None:
    request = msgspec.json.decode(Path(path).read_bytes(), type=Request)
    try:
        made = compile_source(request)
    except NvrtcError as error:
        sys.exit(str(error))
    Path(request.output).write_bytes(made)


if __name__ == "__main__":
    main(sys.argv[1])
