"""Writes a section of docs/gpu.md: what the machine code of the kernels for GPUs holds.

``python -m tcexport.tools.gpu_kernels`` in the root of a checkout. The kernels are compiled as in an
export, and kept in its cache; NVIDIA's cuobjdump and nvdisasm (``tcexport[test]``, or on the PATH) read
what was made. No GPU is needed, and nothing is said of speed.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx

from ..lowering.cuda import scan, sort, tensor_cores
from ..lowering.cuda.attention import THREADS, attention, attention_tile
from ..lowering.cuda.device_code import with_device_code
from ..lowering.cuda.pack import machine_code_of, without_a_device
from ..lowering.cuda.schedule import PIPELINE
from ..lowering.cuda.toolchain import VERSION, Toolchain, find_toolchain
from ..lowering.kernels.half import bfloat16_as_bits
from ..lowering.pipeline import CUDA

PAGE = Path("docs/gpu.md")
TITLE = "## Machine code"
REGISTERS = 65536  # of a multiprocessor, for all threads of its blocks
MOST_REGISTERS = 255  # of a thread
SHARED = 48 << 10  # bytes that a block may have everywhere, without asking
# Bytes of a multiprocessor for its blocks, and what is reserved of them for each block. Source: CUDA
# C++ Programming Guide, "Technical Specifications per Compute Capability".
MULTIPROCESSOR = {
    "sm_75": (64 << 10, 0),
    "sm_80": (164 << 10, 1024),
    "sm_89": (100 << 10, 1024),
    "sm_90": (228 << 10, 1024),
    "sm_100": (228 << 10, 1024),
    "sm_120": (100 << 10, 1024),
}


@dataclass(frozen=True)
class Kernel:
    """One kernel of a function: the place that it has among the function's, its threads and its
    bytes of shared memory; ``name`` is for people."""

    name: str
    function: str
    place: int
    threads: int
    shared: int

    @property
    def entry(self) -> str:
        return f"{self.function}_kernel" + (f"_{self.place}" if self.place else "")


@dataclass(frozen=True)
class Code:
    """What the machine code of a kernel takes and holds: ``spilled`` are bytes of a thread in local
    memory, ``products`` instructions for tensor cores, ``fetches`` copies in the background."""

    registers: int
    spilled: int
    products: int
    fetches: int


def functions() -> dict[str, Callable[[], tirx.PrimFunc]]:
    """Functions that stand for the classes of kernels, by name."""

    def product(
        dtype: str, activation: str | None, even: bool, parts: int = 1
    ) -> Callable[[], tirx.PrimFunc]:
        return lambda: tensor_cores.gemm(
            dtype=dtype,
            bias=activation is not None,
            activation=activation,
            residual=activation is None,
            even_k=even,
            even_n=even,
            parts=parts,
        )

    def batched(dtype: str, transpose_b: bool) -> Callable[[], tirx.PrimFunc]:
        return lambda: tensor_cores.batched_matmul(
            dtype=dtype,
            transpose_b=transpose_b,
            broadcast_a=False,
            broadcast_b=False,
            even_k=False,
            even_n=False,
        )

    def attended(
        width: int, dtype: str, mask: str | None, causal: bool
    ) -> Callable[[], tirx.PrimFunc]:
        return lambda: attention(
            width,
            width,
            dtype=dtype,
            causal=causal,
            mask=mask,
            broadcast=(False, True, True, False),
            scale=width**-0.5,
        )

    return {
        "product_f16_gelu": product("float16", "gelu", True),
        "product_bf16_sum": product("bfloat16", None, True),
        "product_bf16_silu_odd": product("bfloat16", "silu", False),
        "parts_f16_gelu": product("float16", "gelu", True, 4),
        "parts_bf16_sum_odd": product("bfloat16", None, False, 4),
        "batched_f16": batched("float16", False),
        "batched_bf16_transposed": batched("bfloat16", True),
        "attention_f16_64_causal": attended(64, "float16", None, True),
        "attention_bf16_64_mask": attended(64, "bfloat16", "bool", False),
        "attention_bf16_128_causal": attended(128, "bfloat16", None, True),
        "attention_f16_128_mask": attended(128, "float16", "float16", False),
        "attention_bf16_256_mask": attended(256, "bfloat16", "bool", True),
        "attention_f32_64_causal": attended(64, "float32", None, True),
        "attention_f32_128_mask": attended(128, "float32", "bool", False),
        "attention_f32_256_mask": attended(256, "float32", "float32", True),
        "scan_f32_cumsum": lambda: scan.scan("cumsum", "float32", places=False),
        "scan_f16_cummax": lambda: scan.scan("cummax", "float16", places=True),
        "scan_f32_logcumsumexp": lambda: scan.scan("logcumsumexp", "float32", places=False),
        "sort_f32": lambda: sort.sort("float32", descending=False),
        "sort_i64_descending": lambda: sort.sort("int64", descending=True),
        "first_f16": lambda: sort.first("float16", 50, 512, descending=True),
    }


def kernels() -> list[Kernel]:
    """The kernels of `functions`, in the order in which TVM numbers them."""
    found = []
    for name in functions():
        tiles: list[tuple[str, int, int]] = []
        if name.startswith("attention"):
            _, dtype, width, *_ = name.split("_")
            known = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[dtype]
            for parts in (1, 2):
                tile = attention_tile(int(width), int(width), known, parts, "mask" in name)
                one = (f"{tile.rows} rows, {tile.keys} keys", THREADS, tile.shared_bytes)
                if one not in tiles:
                    tiles.append(one)
        elif name.startswith("parts"):
            few = tensor_cores.FEW_ROWS
            tiles.append((f"{few.m}x{few.n}x{few.k}", few.threads, few.shared_bytes))
            tiles.append(("their sum", tensor_cores.SUM_THREADS, 16))
            for each in (tensor_cores.SMALL, tensor_cores.LARGE):
                tiles.append((f"{each.m}x{each.n}x{each.k}", each.threads, each.shared_bytes))
        elif name.startswith("scan"):
            tiles += [("lines", scan.THREADS, scan.SHARED_BYTES), ("columns", scan.THREADS, 16)]
        elif name.startswith("sort"):
            tiles.append(("tiles", sort.THREADS, sort.TILE * sort.BYTES))
            tiles += [("merge", sort.THREADS, 16), ("finish", sort.THREADS, 16)]
        elif name.startswith("first"):
            tiles.append(("512 kept", sort.THREADS, 2 * 512 * sort.BYTES))
        else:
            for each in (tensor_cores.FEW_ROWS, tensor_cores.SMALL, tensor_cores.LARGE):
                tiles.append((f"{each.m}x{each.n}x{each.k}", each.threads, each.shared_bytes))
        found += [
            Kernel(f"{name.replace('_', ' ')}, {label}", name, place, threads, shared)
            for place, (label, threads, shared) in enumerate(tiles)
        ]
    return found


def source() -> str:
    """The CUDA source of `functions`, as an export has it."""
    module = tvm.IRModule(
        {
            name: make().with_attrs({"tirx.is_scheduled": True, "global_symbol": name})
            for name, make in functions().items()
        }
    )
    target = tvm.target.Target(dict(CUDA), host={"kind": "llvm"})
    with target, without_a_device():
        made = tvm.compile(bfloat16_as_bits(module), target=target, tir_pipeline=PIPELINE)
    return with_device_code(made.mod.imports[0].inspect_source())


def look(architectures: Sequence[str], tools: Toolchain) -> dict[str, dict[str, Code]]:
    """For each architecture, the machine code of each kernel, by its entry.

    Raises:
        ExportError: TC503, it does not compile.
        MissingTool: one of NVIDIA's tools is not there.
    """
    readers = [disassembler(name) for name in ("cuobjdump", "nvdisasm")]
    found = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        entries = tuple(kernel.entry for kernel in kernels())
        made = machine_code_of(source(), entries, tuple(architectures), tools, folder)
        for architecture, data in made.items():
            cubin = folder / f"{architecture}.cubin"
            cubin.write_bytes(data)
            found[architecture] = _codes(cubin, readers)
    return found


def _codes(cubin: Path, readers: Sequence[Path]) -> dict[str, Code]:
    usage = _said(readers, "--dump-resource-usage", str(cubin))
    taken = {
        name: (int(registers), int(stack) + int(local))
        for name, registers, stack, local in re.findall(
            r"Function (\w+):\s*REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage
        )
    }
    counts: dict[str, list[int]] = {}
    for line in _said(readers, "-sass", str(cubin)).splitlines():
        started = re.match(r"\s*Function : (\w+)", line)
        if started:
            count = counts.setdefault(started[1], [0, 0])
        elif re.search(r"\bHMMA\b", line):
            count[0] += 1
        elif re.search(r"\bLDGSTS\b", line):
            count[1] += 1
    return {
        name: Code(registers, spilled, *counts[name])
        for name, (registers, spilled) in taken.items()
        if name in counts
    }


def _said(readers: Sequence[Path], *arguments: str) -> str:
    # cuobjdump runs nvdisasm, which it looks for on the PATH.
    folders = [*(str(each.parent) for each in readers), os.environ.get("PATH", os.defpath)]
    done = subprocess.run(
        [str(readers[0]), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": os.pathsep.join(folders)},
    )
    return done.stdout


class MissingTool(RuntimeError):
    """One of NVIDIA's tools is neither installed as a package nor on the PATH; the text says which."""


def disassembler(tool: str) -> Path:
    """Where one of NVIDIA's tools is: in its package, else on the PATH.

    Raises:
        MissingTool: in neither.
    """
    package = f"nvidia-cuda-{tool}"
    try:
        wheel = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        found = shutil.which(tool)
        if found is None:
            raise MissingTool(
                f"{tool} is not found: {package} is not installed, and the PATH has none; "
                "pip install 'tcexport[test]'"
            ) from None
        return Path(found)
    for each in wheel.files or ():
        if each.stem == tool and Path(str(wheel.locate_file(each))).exists():
            return Path(str(wheel.locate_file(each)))
    raise MissingTool(f"{package} is installed without {tool}; pip install 'tcexport[test]'")


def resident(kernel: Kernel, code: Code, architecture: str) -> int:
    """The blocks of a kernel that a multiprocessor has registers and shared memory for."""
    shared, reserved = MULTIPROCESSOR[architecture]
    registers = -(-code.registers // 8) * 8 * kernel.threads
    return min(REGISTERS // registers, shared // (kernel.shared + reserved))


def section(codes: dict[str, dict[str, Code]]) -> str:
    """The section of the page, from its title on."""
    lines = [
        TITLE,
        "",
        f"Written by `python -m tcexport.tools.gpu_kernels` with {VERSION}. Of each kernel of",
        "[device/](../lowering/cuda/device) and architecture: registers of a thread, instructions for",
        "tensor cores (HMMA) in its code, blocks that a multiprocessor has registers and shared memory",
        "for, and bytes of a thread that are spilled to local memory where there are any. The code was",
        "read; no kernel was timed. sm_75 has no tensor cores for bfloat16.",
        "",
        f"| kernel | threads | shared memory | {' | '.join(codes)} |",
        f"| --- | --- | --- |{' --- |' * len(codes)}",
    ]
    for kernel in kernels():
        cells = []
        for architecture, found in codes.items():
            code = found[kernel.entry]
            spilled = f", **{code.spilled} B spilled**" if code.spilled else ""
            blocks = resident(kernel, code, architecture)
            cells.append(f"{code.registers} / {code.products} / {blocks}{spilled}")
        lines.append(
            f"| {kernel.name} | {kernel.threads} | {kernel.shared} | {' | '.join(cells)} |"
        )
    return "\n".join([*lines, ""])


def with_section(page: str, written: str) -> str:
    """A page with its section replaced, or with it at its end."""
    before, _, after = page.partition(f"{TITLE}\n")
    _, found, rest = after.partition("\n## ")
    return f"{before.rstrip()}\n\n{written}{found}{rest}"


def main() -> None:
    codes = look(tuple(MULTIPROCESSOR), find_toolchain())
    PAGE.write_text(with_section(PAGE.read_text(), section(codes)))


if __name__ == "__main__":
    main()
