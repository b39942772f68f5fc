"""What halves and int8 in the weight cost beside float32: python -m tcexport.tools.stored_weights

A perceptron's three products, and convolutions of a ResNet and a MobileNet, each by kernels alone whose
weight is stored as each dtype; the ratio of its time to that of float32, the median of interleaved
rounds. What a whole model gains, with all that is between its products, `bench_bundles` tells. Run it
on an idle machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tvm

from ..lowering.kernels.conv_last import conv2d
from ..lowering.kernels.conv_weights import Convolution, packed_shape
from ..lowering.kernels.gemm import gemm
from ..lowering.kernels.gemm import packed_shape as panels_of
from ..lowering.targets import CPU_TARGETS, CpuTarget
from .gemm_peak import compiled

_STORED = ("float32", "float16", "bfloat16", "int8")
_LAYERS = ((2048, 512), (2048, 2048), (512, 2048))  # outputs and inputs of each
_ROWS = (1, 4, 8, 16, 32, 128)
_CONVOLUTIONS = (
    (Convolution(64, 64, (3, 3), padding=(1, 1)), 56),
    (Convolution(256, 64, (1, 1)), 56),
    (Convolution(128, 128, (3, 3), padding=(1, 1)), 28),
    (Convolution(256, 512, (1, 1), stride=(2, 2)), 28),
    (Convolution(512, 512, (3, 3), padding=(1, 1)), 7),
    (Convolution(96, 96, (3, 3), padding=(1, 1), groups=96), 56),
    (Convolution(3, 64, (7, 7), stride=(2, 2), padding=(3, 3)), 224),
)

Call = Callable[[], None]


def _tensor(shape: Sequence[int], dtype: str) -> Any:
    """Small numbers: none of them makes a kernel slower."""
    values = np.random.default_rng(0).integers(-3, 4, tuple(shape))
    if dtype == "bfloat16":
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        empty = tvm.runtime.empty(tuple(shape), "bfloat16")
        return empty.copyfrom(bits)
    return tvm.runtime.tensor(values.astype(dtype))


@functools.cache
def _product(stored: str, n: int, k: int, target: CpuTarget) -> Callable[..., None]:
    function = gemm(
        n,
        k,
        bias=True,
        activation="relu",
        residual=False,
        target=target,
        dtype="float32" if stored == "int8" else stored,
        weight_dtype=stored,
        scale=stored == "int8",
    )
    return compiled(function, target)


def _perceptron(stored: str, rows: int, target: CpuTarget) -> Call:
    dtype = "float32" if stored == "int8" else stored
    calls = []
    for n, k in _LAYERS:
        operands = [_tensor((rows, k), "float32"), _tensor(panels_of(n, k), stored)]
        operands += [_tensor((n,), "float32")] if stored == "int8" else []
        operands += [_tensor((n,), dtype), _tensor((rows, n), dtype)]
        calls.append(partial(_product(stored, n, k, target), *operands))

    def run() -> None:
        for call in calls:
            call()

    return run


def _convolution(stored: str, shape: Convolution, size: int, target: CpuTarget) -> Call:
    dtype = "float32" if stored == "int8" else stored
    scaled = stored == "int8"
    conv = replace(shape, bias=True, dtype=dtype, weight_dtype=stored, scaled=scaled)
    ends = [
        (size + 2 * border - kernel) // step + 1
        for border, kernel, step in zip(conv.padding, conv.kernel, conv.stride, strict=True)
    ]
    operands = [_tensor((1, size, size * conv.channels), conv.input_dtype)]
    operands += [_tensor(packed_shape(conv), stored)]
    operands += [_tensor((conv.filters,), "float32")] if scaled else []
    operands += [_tensor((conv.filters,), dtype), _tensor((1, *ends, conv.filters), dtype)]
    return partial(compiled(conv2d(conv, target), target), *operands)


def _row(name: str, calls: Sequence[Call], rounds: int) -> None:
    for call in calls:
        call()
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, samples, strict=True):
            begun = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begun)
    first, *others = samples
    ratios = [
        statistics.median(b / a for a, b in zip(first, other, strict=True)) for other in others
    ]
    shown = "".join(f"{ratio:10.2f}" for ratio in ratios)
    print(f"{name:28}{statistics.median(first) * 1e3:9.3f}{shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="x86-64-v4", choices=sorted(CPU_TARGETS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    os.environ["TVM_BIND_THREADS"] = "0"
    target = CPU_TARGETS[options.level]
    print(f"{options.level:28}{'f32 ms':>9}" + "".join(f"{each:>10}" for each in _STORED[1:]))
    for rows in _ROWS:
        calls = [_perceptron(stored, rows, target) for stored in _STORED]
        _row(f"perceptron, {rows} rows", calls, options.rounds)
    for shape, size in _CONVOLUTIONS:
        calls = [_convolution(stored, shape, size, target) for stored in _STORED]
        groups = f" of {shape.groups}" if shape.groups > 1 else ""
        kernel = "x".join(str(each) for each in shape.kernel)
        name = f"{shape.channels}-{shape.filters} {kernel}{groups} at {size}"
        _row(name, calls, options.rounds)


if __name__ == "__main__":
    main()
