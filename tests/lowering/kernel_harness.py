"""Compiles a kernel for one CPU level and calls it with numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import tirx

from tcexport.lowering.kernels.prim_func import PASS_CONFIG
from tcexport.lowering.targets import CPU_TARGETS, CpuTarget


def _flags() -> set[str]:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return set(line.split(":")[1].split())
    return set()


LEVELS = [
    name
    for name, target in CPU_TARGETS.items()
    if target.triple.startswith("x86_64") and set(target.level.flags) <= _flags()
]


def compile_kernel(func: tirx.PrimFunc, target: CpuTarget) -> Callable[..., np.ndarray]:
    """A function from input arrays and the output's shape to the output.

    The output starts as NaN, so that an element that is never written shows.
    """
    module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    with tvm.transform.PassContext(**PASS_CONFIG):
        kernel = tvm.compile(module, target=dict(target.llvm), tir_pipeline="s_tir")["kernel"]

    def call(inputs: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        output = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
        kernel(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in inputs), output)
        return output.numpy()

    return call


def assembly(func: tirx.PrimFunc, target: CpuTarget) -> str:
    """The machine code of a kernel, as LLVM's assembler would read it."""
    module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    with tvm.transform.PassContext(**PASS_CONFIG):
        compiled = tvm.compile(module, target=dict(target.llvm), tir_pipeline="s_tir")
    return compiled.mod.inspect_source("asm")


_LABEL = re.compile(r"(\.LBB\w+):")
_JUMP = re.compile(r"\s+j\w+\s+(\.LBB\w+)\n")


def inner_loops(code: str) -> list[str]:
    """The loops of ``code`` that hold no other: from a label to the jump back to it, with the
    branches between them."""
    lines = code.splitlines(keepends=True)
    labels = {found[1]: i for i, line in enumerate(lines) if (found := _LABEL.match(line))}
    jumps = {
        (labels.get(found[1], i), i) for i, line in enumerate(lines) if (found := _JUMP.match(line))
    }
    loops = {(begin, end) for begin, end in jumps if begin < end}
    return [
        "".join(lines[begin : end + 1])
        for begin, end in sorted(loops)
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in loops)
    ]
