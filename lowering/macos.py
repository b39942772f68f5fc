"""Libraries for macOS: linked by zig against TVM's FFI library, and looked at again.

Of a library for macOS, each symbol is bound to the library that has it. Generated code takes those of
libtvm_ffi by the name ``@rpath/libtvm_ffi.dylib``, as TVM's own runtime library does: macOS gives that
name to the one that the process has loaded, before it looks into any folder ("first check if already
loaded as rpath", Loader.cpp in https://github.com/apple-oss-distributions/dyld).
"""

from __future__ import annotations

from pathlib import Path

from ..artifacts.errors import Diagnostic, ExportError
from .elf import exported
from .macho import Dylib, MachOError, read_dylib
from .targets import MACOS_VERSION

NAME = "@rpath/model.dylib"
FFI, SYSTEM = "@rpath/libtvm_ffi.dylib", "/usr/lib/libSystem.B.dylib"
_BLOB = "__tvm_ffi__library_bin"  # where the runtime looks for the program of the virtual machine

_OF_FLOATS = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "copysign",
        "cos",
    ),
    *(
        "cosh",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "fabs",
        "fdim",
        "floor",
        "fma",
        "fmax",
        "fmin",
    ),
    *(
        "fmod",
        "hypot",
        "ldexp",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "nearbyint",
        "nextafter",
    ),
    *("pow", "remainder", "rint", "round", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc"),
)
_OF_THE_SYSTEM = frozenset(
    {
        *_OF_FLOATS,
        *(f"{name}f" for name in _OF_FLOATS),
        *("memcmp", "memcpy", "memmove", "memset", "bzero", "memset_pattern16"),
        *("__sincos_stret", "__sincosf_stret", "__exp10", "__exp10f"),  # LLVM's own, macOS 10.9
        # TVM defines them in every library, as what another definition may replace. No code for ARM
        # calls them, which has instructions for that.
        *("__extendhfsf2", "__truncsfhf2"),
        "dyld_stub_binder",
    }
)
"""What LLVM may call of libSystem: C99's functions of floats and of memory, and Apple's forms of some.
All are in macOS 11; zig's list of symbols is that of the latest."""


def ffi_symbols() -> frozenset[str]:
    """The C interface of TVM's FFI library, as this machine's has it: it is the same on each system."""
    from tvm_ffi.libinfo import find_libtvm_ffi

    names = exported(Path(find_libtvm_ffi()).read_bytes())
    return frozenset(name for name in names if name.startswith("TVMFFI"))


def write_ffi_stub(path: Path) -> None:
    """What a linker needs to know of libtvm_ffi for macOS: a text-based stub, version 4.

    Source: https://github.com/apple-oss-distributions/tapi, docs/TBD.md.
    """
    symbols = ", ".join(f"_{name}" for name in sorted(ffi_symbols()))
    path.write_text(
        "--- !tapi-tbd\n"
        "tbd-version: 4\n"
        "targets: [ arm64-macos ]\n"
        f"install-name: '{FFI}'\n"
        "exports:\n"
        f"  - targets: [ arm64-macos ]\n    symbols: [ {symbols} ]\n"
        "...\n"
    )


def look_again(data: bytes) -> Dylib:
    """A finished library, which macOS can load and which asks for nothing that will not be there.

    Raises:
        ExportError: TC503.
    """
    try:
        found = read_dylib(data)
    except MachOError as error:
        raise _failed(str(error)) from error
    if found.macos != MACOS_VERSION:
        raise _failed(f"it is for macOS {found.macos}, not {MACOS_VERSION}")
    if found.name != NAME or not set(found.libraries) <= {FFI, SYSTEM}:
        raise _failed(f"it is called {found.name} and needs {', '.join(found.libraries)}")
    if _BLOB not in found.exported:
        raise _failed(f"it does not give out {_BLOB}")
    known = {FFI: ffi_symbols(), SYSTEM: _OF_THE_SYSTEM}
    for name, library in sorted(found.needed.items()):
        if name not in known.get(library, ()):
            raise _failed(f"it needs {name} of {library or 'no library'}")
    return found


def _failed(what: str) -> ExportError:
    return ExportError(Diagnostic("TC503", f"the library for macOS cannot be used: {what}"))
