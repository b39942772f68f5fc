"""Bundles with GPU code for the stand-in: Relax modules, compiled here by way of TVM's CUDA source."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tcexport.artifacts.contract import Contract
from tcexport.artifacts.manifest import CudaCode, Entry, RuntimeLibrary, Target
from tcexport.lowering.cuda.blob import DeviceCode, read_blob

from ..runtime.bundles import FFI_VERSION, RUNTIME, TVM_VERSION, pack
from . import standin

CUDA_RUNTIME = "runtime/linux-x86_64/libtvm_runtime_cuda.so"
LIBRARY = "targets/cuda/model.so"
CODE = CudaCode(("sm_80", "sm_90"), "compute_90", "13.0", "13.0", "stand-in", ("kernel",))


def gpu_compiled(build: Callable[[Any], None], kernels: Path) -> bytes:
    """A library with a Relax function ``main`` whose kernels the stand-in runs.

    Args:
        build: fills a relax.BlockBuilder.
        kernels: the driver's folder.
    """
    library, source, image = _compiled(build)
    standin.build_kernels(source, image, kernels)
    return library


@functools.cache
def _compiled(build: Callable[[Any], None]) -> tuple[bytes, str, bytes]:
    import tvm
    import tvm_ffi
    from tvm import relax

    builder = relax.BlockBuilder()
    build(builder)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    before = os.environ.get("TVM_COMPILE_FORCE_FALLBACK")
    os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"  # nothing is asked of a device
    found = []

    def fatbin(code: DeviceCode) -> DeviceCode:
        source = code.code.decode()
        image = standin.fatbin(source, (80, 90), 90)
        found.append((source, image))
        return DeviceCode("fatbin", code.functions, code.kernels, image)

    def imports(module: Any, is_system_lib: bool, prefix: str, folder: str) -> str:
        packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
        data = read_blob(packed.numpy().tobytes()).with_device_code(fatbin).encoded()
        carrier = tvm_ffi.get_global_func("codegen.codegen_blob")(
            data, is_system_lib, '{"kind": "llvm"}', prefix
        )
        carrier.write_to_file(f"{folder}/{prefix}devc.o")
        return f"{folder}/{prefix}devc.o"

    try:
        with target, tempfile.TemporaryDirectory() as folder:
            executable = tvm.compile(builder.get(), target=target)
            executable.export_library(f"{folder}/model.so", fpack_imports=imports)
            return (Path(folder, "model.so").read_bytes(), *found[0])
    finally:
        if before is None:
            del os.environ["TVM_COMPILE_FORCE_FALLBACK"]
        else:
            os.environ["TVM_COMPILE_FORCE_FALLBACK"] = before


def pack_gpu(
    path: Path,
    contract: Contract,
    library: bytes,
    weights: Mapping[str, Any] | None = None,
    *,
    cpu: Mapping[str, bytes] | None = None,
    code: CudaCode = CODE,
    entries: tuple[Entry, ...] = (),
    **more: Any,
) -> Path:
    """A bundle with GPU code, and with libraries for the CPU by level where there are any."""
    cpu = cpu or {}
    members = [(LIBRARY, library), (CUDA_RUNTIME, cuda_runtime())]
    targets = tuple(
        Target(f"cpu-{level}", "linux", "x86_64", level, "2.17", f"targets/cpu-{level}/model.so")
        for level in cpu
    )
    name = "cuda:" + "+".join(code.architectures) + ("+ptx" if code.ptx else "")
    on_gpu = Target(name, "linux", "x86_64", "x86-64-v2", "2.17", LIBRARY, code, entries=entries)
    runtime = RuntimeLibrary(
        "linux", "x86_64", TVM_VERSION, FFI_VERSION, RUNTIME, "runtime/LICENSE", CUDA_RUNTIME
    )
    return pack(
        path,
        contract,
        cpu,
        weights,
        also=members,
        targets=(*targets, on_gpu),
        runtimes=(runtime,),
        **more,
    )


@functools.cache
def cuda_runtime() -> bytes:
    import importlib.util

    spec = importlib.util.find_spec("tvm")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "lib" / "libtvm_runtime_cuda.so").read_bytes()
