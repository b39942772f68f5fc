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


def inner_loops(code: str) -> list[str]:
    """The loops of ``code`` that hold no other: from a label to the jump back to it."""
    return [
        found.group(0)
        for found in re.finditer(r"^(\.LBB\w+):(?:(?!^\.LBB).)*?\bj\w+\s+\1\n", code, re.M | re.S)
    ]
