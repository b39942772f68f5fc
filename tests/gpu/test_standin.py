"""The stand-in driver itself: what it computes is what a device computes, and it hides no mistake."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from . import standin
from .device import Device

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
extern "C" __global__ void __launch_bounds__(64) narrow(
    half* __restrict__ h, nv_bfloat16* __restrict__ b, float* __restrict__ x, int64_t n) {
  int64_t at = (int64_t)blockIdx.x * 64 + threadIdx.x;
  if (at < n) { h[at] = half(x[at]); b[at] = nv_bfloat16(x[at]); }
}
extern "C" __global__ void __launch_bounds__(256) sums(
    float* __restrict__ out, float* __restrict__ x, int n) {
  __shared__ alignas(64) float parts[8];
  float sum = 0;
  for (int at = threadIdx.x; at < n; at += 256) sum += x[blockIdx.x * n + at];
  for (int step = 16; step; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step, 32);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 8) {
    float part = parts[threadIdx.x];
    for (int step = 4; step; step >>= 1) part += __shfl_xor_sync(__activemask(), part, step, 8);
    if (threadIdx.x == 0) out[blockIdx.x] = part;
  }
}
extern "C" __global__ void __launch_bounds__(64) turned(float* __restrict__ x, int together) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];
  if (together) __syncthreads();
  x[threadIdx.x] = all[(threadIdx.x + 32) % 64];
  if (!together) __syncthreads();
}
extern "C" __global__ void __launch_bounds__(32) product(
    float* __restrict__ out, half* __restrict__ a, half* __restrict__ b) {
  extern __shared__ __align__(64) unsigned char buffer[];
  half* kept = (half*)buffer;
  for (int at = threadIdx.x; at < 256; at += 32) { kept[at] = a[at]; kept[256 + at] = b[at]; }
  __syncthreads();
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> left;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::col_major> right;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum;
  nvcuda::wmma::fill_fragment(sum, 0.0f);
  nvcuda::wmma::load_matrix_sync(left, kept, 16);
  nvcuda::wmma::load_matrix_sync(right, kept + 256, 16);
  nvcuda::wmma::mma_sync(sum, left, right, sum);
  nvcuda::wmma::store_matrix_sync(out, sum, 16, nvcuda::wmma::mem_row_major);
}
extern "C" __global__ void __launch_bounds__(32) beyond(float* __restrict__ out, int64_t by) {
  out[by + threadIdx.x] = 1.0f;
}
"""
IMAGE = standin.fatbin(SOURCE)


@pytest.fixture
def device(libraries: tuple[ctypes.CDLL, ctypes.CDLL], kernels: Path) -> Device:
    return Device(libraries, kernels, SOURCE)


def test_half_types_round_to_nearest_even(device: Device) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves.view(np.uint32) + 0x1000).view(np.float32)  # ties of half precision
    x = np.concatenate([bits.view(np.float32), halves, between])
    half, bfloat = np.empty(x.size, np.float16), np.empty(x.size, ml_dtypes.bfloat16)
    got, got_b, _ = device.run(
        "narrow", -(-x.size // 64), 64, half, bfloat, x, ctypes.c_int64(x.size)
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, x.astype(np.float16))
        np.testing.assert_array_equal(
            got_b.astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(np.float32)
        )


@pytest.mark.parametrize("order", ["", "reverse"])
@pytest.mark.parametrize("n", [1, 200, 1000])
def test_warps_and_blocks_reduce(
    device: Device, driver: Callable[..., None], order: str, n: int
) -> None:
    driver(order=order)
    x = np.random.default_rng(n).standard_normal((3, n), dtype=np.float32)
    got, _ = device.run("sums", 3, 256, np.empty(3, np.float32), x, ctypes.c_int(n))
    np.testing.assert_allclose(got, x.sum(1), rtol=1e-4, atol=1e-5)


def test_a_missing_barrier_shows_in_one_of_the_orders(
    device: Device, driver: Callable[..., None]
) -> None:
    x = np.arange(64, dtype=np.float32)
    right = {}
    for together in (1, 0):
        for order in ("", "reverse"):
            driver(order=order)
            got = device.run("turned", 1, 64, x, ctypes.c_int(together))[0]
            right[together, order] = bool((got == np.roll(x, 32)).all())
    assert right[1, ""] and right[1, "reverse"]
    assert not (right[0, ""] and right[0, "reverse"])


def test_tensor_cores_multiply_halves_and_add_in_float(device: Device) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    got = device.run("product", 1, 32, np.empty((16, 16), np.float32), a, b, dynamic=1024)[0]
    np.testing.assert_allclose(
        got, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-5, atol=1e-5
    )


def test_what_a_device_cannot_launch_is_refused(device: Device) -> None:
    out = np.empty(4096, np.float32)
    for grid, block, dynamic in [(1, 64, 0), (0, 32, 0), (1, 32, 60_000)]:
        with pytest.raises(RuntimeError, match=r"CUDA error 1$"):
            device.run("beyond", grid, block, out, ctypes.c_int64(0), dynamic=dynamic)


def test_lazily_nothing_runs_before_something_waits(
    device: Device, driver: Callable[..., None]
) -> None:
    driver(lazy="1")
    before = device.cuda.standin_count(3)
    memory = device.start("beyond", 1, 32, np.zeros(32, np.float32), ctypes.c_int64(0))
    assert device.cudart.cudaStreamQuery(None) == 600
    got = device.finish(memory)[0]
    assert (got == 1).all()
    assert device.cudart.cudaStreamQuery(None) == 0
    assert device.cuda.standin_count(3) > before


@pytest.mark.parametrize(
    ("devices", "driver_version", "cubins", "ptx", "error"),
    [
        ("9.0", 13000, [90], None, 0),
        ("8.6", 13000, [80], None, 0),
        ("8.0", 13000, [86], None, 209),
        ("9.0", 13000, [80], None, 209),
        ("12.0", 13000, [80], 90, 0),
        ("8.0", 13000, [90], 90, 209),
        ("12.0", 12080, [80], 90, 222),
    ],
)
def test_an_image_is_chosen_as_a_driver_does(
    driver: Callable[..., None],
    libraries: tuple[ctypes.CDLL, ctypes.CDLL],
    kernels: Path,
    devices: str,
    driver_version: int,
    cubins: list[int],
    ptx: int | None,
    error: int,
) -> None:
    source = 'extern "C" __global__ void nothing(float* x) {\n}\n'
    image = standin.fatbin(source, cubins, ptx)
    standin.build_kernels(source, image, kernels)
    driver(devices=devices, driver=driver_version)
    module = ctypes.c_void_p()
    assert libraries[0].cuModuleLoadData(ctypes.byref(module), image) == error


_FAULTS = {
    "a kernel that writes behind": ("driver.standin_check()", "behind the end"),
    "host code that reads the device": (
        "print(bytes((ctypes.c_char * 4).from_address(out.value)))",
        "",
    ),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_fault_ends_the_process(
    device: Device, kernels: Path, fault: str, tmp_path: Path
) -> None:
    command, says = _FAULTS[fault]
    image = tmp_path / "image"
    image.write_bytes(IMAGE)
    code = f"""
import ctypes
driver = ctypes.CDLL({str(standin.build_driver() / "libcuda.so.1")!r})
module, function, out = (ctypes.c_void_p() for _ in range(3))
assert not driver.cuModuleLoadData(ctypes.byref(module), open({str(image)!r}, "rb").read())
assert not driver.cuModuleGetFunction(ctypes.byref(function), module, b"beyond")
assert not driver.cudaMalloc(ctypes.byref(out), ctypes.c_size_t(128))
by = ctypes.c_int64(1)
arguments = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(by))
assert not driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
{command}
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"STANDIN_KERNELS": str(kernels)},
        capture_output=True,
        text=True,
    )
    assert done.returncode < 0
    assert says in done.stderr
