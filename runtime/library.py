"""Shared libraries: tvm_ffi without torch, one TVM runtime for the process, code from sealed memory.

A process can hold one TVM runtime: a second one registers the same global names and aborts. So
the first bundle brings it, later ones share it, and what cannot share it is refused.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ..artifacts.container import Bundle
from ..artifacts.errors import BundleError, Diagnostic
from ..artifacts.manifest import RuntimeLibrary, Target
from .machine import Machine
from .threads import POOLS, held_over_forks, set_pool_defaults

_T = TypeVar("_T")

# Also around whatever takes locks of the loader, of TVM or of imports (libraries, virtual machines,
# modules): a child that was forked in the middle of it would find them taken for ever.
LOADING = held_over_forks()
_MARK = "runtime.NumThreads"  # a global function that every TVM runtime registers
_SONAME = f"libtvm_runtime.{'dylib' if sys.platform == 'darwin' else 'so'}"


# --- tvm_ffi ----------------------------------------------------------------------------------------


class _NoTorch(importlib.abc.MetaPathFinder):
    """Answers one thread's import of torch with ImportError; other threads import as ever."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is not imported for tvm_ffi", name="torch")


def load_ffi() -> ModuleType:
    """The module tvm_ffi, imported without its own import of torch (seconds, where it is installed).

    Torch can be imported before or afterwards as usual.
    """
    with LOADING:
        if "tvm_ffi" in sys.modules:
            import tvm_ffi

            return tvm_ffi
        finder = _NoTorch()
        switch = "TVM_FFI_DISABLE_TORCH_C_DLPACK"  # or it compiles an extension for older torches
        unset = switch not in os.environ
        if "torch" not in sys.modules:
            sys.meta_path.insert(0, finder)
        if unset:
            os.environ[switch] = "1"
        try:
            import tvm_ffi
        finally:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            if unset:
                del os.environ[switch]
        return tvm_ffi


# --- code from the bundle ---------------------------------------------------------------------------

_numbers = itertools.count(1)


_MFD_EXEC = 0x10  # since Linux 6.3, where memory files may otherwise be made without execution


@contextmanager
def _memory_file(data: bytes, name: str) -> Iterator[str]:
    """A path of a memory file that holds ``data``, sealed against every change; while in the context.

    Raises:
        OSError: the system has no memory files, or lets no more of them be made.
    """
    if not hasattr(os, "memfd_create") or not os.path.isdir("/proc/self/fd"):
        raise OSError("there are no memory files")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        handle = os.memfd_create(f"tcexport:{name}", flags | _MFD_EXEC)
    except OSError:
        handle = os.memfd_create(f"tcexport:{name}", flags)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, seals)
        # The loader takes a path that it has seen for the library that it has, and descriptor
        # numbers come again: so each library gets a spelling of its own.
        spelling = format(next(_numbers), "b").replace("0", ".//").replace("1", "./")
        yield f"/proc/self/fd/{spelling}{handle}"
    finally:
        os.close(handle)


@contextmanager
def _private_file(data: bytes, name: str) -> Iterator[str]:
    """As `_memory_file`, in a folder that this user alone can enter.

    So it is always on macOS, which has no memory files. Libraries there need libtvm_ffi by the name
    ``@rpath/libtvm_ffi.dylib``: that is the one that tvm_ffi has loaded, wherever they lie themselves.

    Raises:
        OSError: there is no folder for temporary files that can be written to, or no room in it.
    """
    with tempfile.TemporaryDirectory(prefix="tcexport-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield str(path)


def _mapped(bundle: Bundle, member: str, name: str, load: Callable[[str], _T]) -> _T:
    """What ``load`` makes of a path where the verified bytes of a member are: in memory, or, where
    the system does not allow that, in a private temporary file.

    Raises:
        BundleError: TC402, its bytes are not those of the manifest; TC404, neither can be loaded.
    """
    data = bundle.copy(member)
    reasons = []
    for place, what in ((_memory_file, "as a memory file"), (_private_file, "as a temporary file")):
        try:
            with place(data, name) as path:
                return load(path)
        except Exception as error:  # tvm_ffi raises what its C++ side names
            reasons.append(f"{what}: {_reason(error)}")
    raise BundleError(
        Diagnostic(
            "TC404",
            f"{bundle.path}: the system cannot load {member}",
            notes=tuple(reasons),
            tries=("a TMPDIR with room that allows execution, if that is the reason",),
        )
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror.lower()}{where}"
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def code_of(bundle: Bundle, target: Target, machine: Machine) -> tuple[str, ...]:
    """The members that `load_runtime` and `load_library` will map as code."""
    runtime = () if has_runtime() else (_for_machine(bundle, machine).library,)
    return (target.library, *runtime)


def has_runtime() -> bool:
    """Whether the process has a TVM runtime, whoever brought it."""
    return load_ffi().get_global_func(_MARK, allow_missing=True) is not None


def load_library(bundle: Bundle, member: str) -> Any:
    """The compiled code of a bundle as a tvm_ffi Module.

    Raises:
        BundleError: TC402, its bytes are not those of the manifest; TC404, the system refuses to
            load it.
    """
    load = load_ffi().get_global_func("ffi.Module.load_from_file.so")

    def load_alone(path: str) -> Any:
        with LOADING:
            return load(path, "so")

    return _mapped(bundle, member, Path(member).name, load_alone)


# --- the TVM runtime --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loaded:
    """The TVM runtime of this process; ``digest`` is the SHA-256 of its file, "" if unknown."""

    version: str
    digest: str
    origin: str


_loaded: _Loaded | None = None


def load_runtime(bundle: Bundle, machine: Machine) -> None:
    """Make sure that the process has the TVM runtime that the bundle was built for.

    A runtime that is there already (another bundle's, or an imported tvm's) is used when it is the
    same file or the same version.

    Raises:
        BundleError: TC404, the bundle has none for this machine; TC405, the process has another
            one, or another version of apache-tvm-ffi.
    """
    global _loaded
    wanted = _for_machine(bundle, machine)
    tvm_ffi = load_ffi()
    if tvm_ffi.__version__ != wanted.ffi:
        raise BundleError(
            Diagnostic(
                "TC405",
                f"{bundle.path} was built for apache-tvm-ffi {wanted.ffi}, "
                f"found {tvm_ffi.__version__}",
                tries=(f"pip install 'apache-tvm-ffi=={wanted.ffi}'",),
            )
        )
    digest = next(entry.sha256 for entry in bundle.manifest.members if entry.name == wanted.library)
    with LOADING:
        set_pool_defaults()
        if not has_runtime():
            origin = _load_runtime(bundle, wanted, digest)
            _loaded = _Loaded(wanted.version, digest, origin)
            return
        if _loaded is None:
            _loaded = _foreign()
        if _loaded.digest == digest or _loaded.version == wanted.version:
            return
        raise BundleError(
            Diagnostic(
                "TC405",
                f"{bundle.path} was built for the TVM runtime {wanted.version}; this process "
                f"has {_loaded.version or 'another'} from {_loaded.origin}",
                tries=("load this bundle in a process of its own",),
            )
        )


def load_cuda_runtime(bundle: Bundle, machine: Machine) -> None:
    """Make sure that the TVM runtime of this process has its part for CUDA. CUDA's own libraries
    must be loaded: the loader finds them by their names.

    Raises:
        BundleError: TC404, the bundle does not bring it, or the system cannot load it.
    """
    wanted = _for_machine(bundle, machine)
    with LOADING:
        if load_ffi().get_global_func("device_api.cuda", allow_missing=True) is not None:
            return  # an imported tvm's
        if not wanted.cuda:
            raise BundleError(Diagnostic("TC404", f"{bundle.path} brings no TVM runtime for CUDA"))
        digest, size = next(
            (each.sha256, each.size) for each in bundle.manifest.members if each.name == wanted.cuda
        )
        mode = os.RTLD_NOW | os.RTLD_LOCAL
        name = Path(wanted.cuda).name
        installed = _installed_tvm(name)
        if installed is not None and _digest_of(installed, size) == digest:
            ctypes.CDLL(str(installed), mode=mode)
            return
        _mapped(bundle, wanted.cuda, name, lambda path: ctypes.CDLL(path, mode=mode))


def _for_machine(bundle: Bundle, machine: Machine) -> RuntimeLibrary:
    runtimes = bundle.manifest.runtimes
    for runtime in runtimes:
        if (runtime.system, runtime.machine) == (machine.system, machine.machine):
            return runtime
    held = ", ".join(f"{runtime.system} {runtime.machine}" for runtime in runtimes) or "none"
    raise BundleError(
        Diagnostic(
            "TC404",
            f"{bundle.path} brings a runtime for {held}, found {machine.system} {machine.machine}",
        )
    )


def _load_runtime(bundle: Bundle, wanted: RuntimeLibrary, digest: str) -> str:
    size = len(bundle.view(wanted.library))
    installed = _installed_tvm()
    if installed is not None and _digest_of(installed, size) == digest:
        # The same file, so that an `import tvm` later finds its own library already there.
        POOLS.runtime = ctypes.CDLL(str(installed), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        return str(installed)
    mode = os.RTLD_NOW | os.RTLD_LOCAL
    POOLS.runtime = _mapped(
        bundle, wanted.library, _SONAME, lambda path: ctypes.CDLL(path, mode=mode)
    )
    sys.meta_path.insert(0, _NoSecondRuntime(wanted.version))
    return str(bundle.path)


class _NoSecondRuntime(importlib.abc.MetaPathFinder):
    """Turns an ``import tvm`` that would abort the process into an ImportError."""

    def __init__(self, version: str) -> None:
        self._version = version

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name == "tvm" and importlib.machinery.PathFinder.find_spec(name) is not None:
            raise ImportError(
                "tcexport has loaded the TVM runtime of a bundle "
                f"({self._version}); the installed tvm has another one, and a second one would "
                "abort the process. Import tvm before the first tcexport.load, or in a process "
                "of its own.",
                name="tvm",
            )


def _installed_tvm(name: str = _SONAME) -> Path | None:
    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "lib" / name
    return path if path.is_file() else None


def _foreign() -> _Loaded:
    """The TVM runtime that someone else has loaded into this process."""
    tvm = sys.modules.get("tvm")
    version = str(getattr(tvm, "__version__", ""))
    for path in _mapped_files():
        if path.name == _SONAME and path.is_file():
            with suppress(OSError):  # it was replaced: another file than the one that is loaded
                POOLS.runtime = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            return _Loaded(version, _digest_of(path, path.stat().st_size), str(path))
    return _Loaded(version, "", "tvm" if tvm is not None else "an unknown place")


def _mapped_files() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return  # no such table on this system: the version alone decides
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield Path(fields[5])


def _digest_of(path: Path, size: int) -> str:
    """The SHA-256 of a file that has ``size`` bytes, else ""."""
    if path.stat().st_size != size:
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
