"""Measure what share of a core's peak the GEMM kernel reaches: python -m tcexport.tools.gemm_peak

Peak is measured, not looked up: as many independent multiply-adds as a register tile has, in a
loop that touches no memory. Run it on an idle machine; each number is the best of some runs.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import tvm
from tvm import tirx

from ..artifacts.steps import stepped_through
from ..artifacts.weights import Weight
from ..lowering.kernels.gemm import PACKING, gemm
from ..lowering.kernels.prim_func import PASS_CONFIG, load, param, prim_func, store
from ..lowering.kernels.tile import accumulate, along
from ..lowering.targets import CPU_TARGETS, CpuTarget

_STEPS = 1_000_000


def peak_kernel(target: CpuTarget) -> tirx.PrimFunc:
    """A full register tile of multiply-adds of two values that stay in registers."""
    rows, lanes = target.tile_rows, target.lanes

    def declare() -> Callable[[], None]:
        x, y = param("x", (2 * lanes,)), param("y", (2 * rows * lanes,))

        def body() -> None:
            sums = accumulate(
                rows,
                2,
                lanes,
                along(_STEPS),
                lambda i, k: x[0],
                lambda j, k: load(x, j * lanes, lanes=lanes),
            )
            for i in range(2 * rows):
                store(y, load(sums, i * lanes, lanes=lanes), i * lanes, lanes=lanes)

        return body

    return prim_func("peak", declare)


def _compile(func: tirx.PrimFunc, target: CpuTarget) -> Callable[..., None]:
    module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    with tvm.transform.PassContext(**PASS_CONFIG):
        return tvm.compile(module, target=dict(target.llvm), tir_pipeline="s_tir")["kernel"]


def _seconds(call: Callable[[], None], repeats: int) -> float:
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="x86-64-v4", choices=sorted(CPU_TARGETS))
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--k", type=int, default=512)
    options = parser.parse_args()
    target, n, k = CPU_TARGETS[options.level], options.n, options.k

    peak = _compile(peak_kernel(target), target)
    x = tvm.runtime.tensor(np.full(2 * target.lanes, 0.5, np.float32))
    y = tvm.runtime.tensor(np.zeros(2 * target.tile_rows * target.lanes, np.float32))
    work = 2 * _STEPS * 2 * target.tile_rows * target.lanes
    limit = work / _seconds(lambda: peak(x, y), 3) / 1e9
    print(f"{options.level}: peak {limit:.0f} GFLOP/s on one thread")

    kernel = _compile(gemm(n, k, bias=True, activation=None, residual=False, target=target), target)
    weight = np.random.default_rng(0).standard_normal((n, k), np.float32)
    packed = np.ascontiguousarray(stepped_through(Weight(weight, "float32"), PACKING).data)
    b, bias = tvm.runtime.tensor(packed), tvm.runtime.tensor(np.zeros(n, np.float32))
    for m in (1, 2, 4, 8, 16, 32, 128, 512):
        a = tvm.runtime.tensor(np.ones((m, k), np.float32))
        c = tvm.runtime.tensor(np.zeros((m, n), np.float32))
        work = 2 * m * n * k
        seconds = _seconds(partial(kernel, a, b, bias, c), max(1, int(1e8 / work)))
        speed = work / seconds / 1e9
        print(f"m={m:4d}  n={n}  k={k}  {speed:6.0f} GFLOP/s  {speed / limit:4.0%} of peak")


if __name__ == "__main__":
    main()
