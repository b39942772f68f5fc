"""The kernels of lowering/cuda/device, on the stand-in, against numpy: every tail, layout and mask."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tcexport.lowering.cuda.attention import attention_tile
from tcexport.lowering.cuda.tensor_cores import FEW_ROWS, LARGE, SMALL

from .device import Device

DTYPES = {  # by numpy, in CUDA, and what may differ
    "half": (np.float16, "__half", 2e-3),
    "bfloat": (ml_dtypes.bfloat16, "__nv_bfloat16", 2e-2),
    "float": (np.float32, "float", 1e-6),
}
TILES = {"few": FEW_ROWS, "small": SMALL, "large": LARGE}
LAYOUTS = ("PANELS", "ROWS", "COLUMNS")
_POINTERS = "void* a, void* b, void* bias, void* residual, void* c"
_KERNEL = """extern "C" __global__ void __launch_bounds__(128) {name}({parameters}) {{
  extern __shared__ __align__(64) unsigned char memory[];
  tcexport::{call};
}}
"""


def _gemm(name: str, dtype: str, tile: str, layout: str, epilogue: str) -> str:
    sizes = "int64_t batch, int64_t step_a, int64_t step_b, int64_t m, int64_t n, int64_t k"
    call = (
        f"gemm<{DTYPES[dtype][1]}, {TILES[tile].name}, tcexport::{layout}, "
        f"{epilogue}, false, false>(memory, a, b, bias, residual, c, step_a, step_b, m, n, k)"
    )
    return _KERNEL.format(name=name, parameters=f"{_POINTERS}, {sizes}", call=call)


PLAIN = "tcexport::NO_ACTIVATION, false, false"
EPILOGUES = {
    "bias": "tcexport::NO_ACTIVATION, true, false",
    "relu": "tcexport::RELU, false, false",
    "silu": "tcexport::SILU, true, false",
    "gelu": "tcexport::GELU, true, true",
    "gelu_tanh": "tcexport::GELU_TANH, false, true",
}


def _attention(name: str, dtype: str, sizes: str, mask: str, causal: bool) -> str:
    """``sizes`` are those of a head, its parts of rows for each warp, and the keys at a time."""
    steps = ", ".join(f"int64_t step{axis}" for axis in range(4))
    numbers = f"int64_t heads, int64_t group, int64_t rows, int64_t keys, {steps}, float scale"
    function = "attention_float<" if dtype == "float" else f"attention<{DTYPES[dtype][1]}, "
    call = (
        f"{function}{sizes}, tcexport::{mask}, {str(causal).lower()}>(memory, a, b, bias, residual, "
        "c, heads, group, rows, keys, step0, step1, step2, step3, scale)"
    )
    return _KERNEL.format(name=name, parameters=f"{_POINTERS}, {numbers}", call=call)


ATTENTIONS = {  # dtype, size of a head, of its values, parts, keys, mask, causal
    "plain": ("half", 64, 64, 2, 64, "NO_MASK", False),
    "causal": ("bfloat", 64, 64, 1, 64, "NO_MASK", True),
    "hidden": ("half", 24, 40, 2, 32, "BOOL_MASK", False),
    "added": ("half", 80, 33, 1, 16, "FLOAT_MASK", True),
    "wide": ("bfloat", 256, 256, 1, 16, "BOOL_MASK", True),
    "float": ("float", 64, 64, 2, 32, "BOOL_MASK", True),
    "float_odd": ("float", 18, 33, 1, 32, "FLOAT_MASK", False),
    "float_wide": ("float", 256, 132, 1, 8, "NO_MASK", True),
}
BY_HAND = """
extern "C" __global__ void __launch_bounds__(32) by_hand(float* out, unsigned* a, unsigned* b) {
  int at = threadIdx.x;
  unsigned left[4] = {a[at], a[at + 32], a[at + 64], a[at + 96]};
  float sum[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  float4 made = tcexport::multiply_by_hand(make_float4(1.0f, 2.0f, 3.0f, 4.0f),
      make_uint4(left[0], left[1], left[2], left[3]), b[at], b[at + 32]);
  tcexport::multiply<__nv_bfloat16>(sum, left, b[at], b[at + 32]);
  out[at] = made.x - sum[0];
  out[at + 32] = made.y - sum[1];
  out[at + 64] = made.z - sum[2];
  out[at + 96] = made.w - sum[3];
}
"""
EARLY = """
extern "C" __global__ void __launch_bounds__(32) early(float* out, float* from, int waits) {
  extern __shared__ __align__(64) unsigned char memory[];
  float* kept = reinterpret_cast<float*>(memory);
  if (threadIdx.x < 8) tcexport::fetch16(kept + 4 * threadIdx.x, from + 4 * threadIdx.x, 12);
  tcexport::end_group();
  if (waits) tcexport::arrived<0>();
  __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x];
  __syncthreads();
  tcexport::arrived<0>();
}
"""
FILES = ("attention", "attention_float", "by_hand", "gemm")
_KERNELS = [
    *(
        _gemm(f"gemm_{tile}_{layout}", "half", tile, layout, PLAIN)
        for tile, layout in itertools.product(TILES, LAYOUTS)
    ),
    *(_gemm(f"epilogue_{name}", "bfloat", "few", "PANELS", e) for name, e in EPILOGUES.items()),
    *(
        _attention(f"attention_{name}", dtype, ", ".join(map(str, sizes)), mask, causal)
        for name, (dtype, *sizes, mask, causal) in ATTENTIONS.items()
    ),
]
SOURCE = "\n".join(
    ["", *(f"#include <tcexport/{name}.cuh>" for name in FILES), BY_HAND, EARLY, *_KERNELS]
)


@pytest.fixture
def device(libraries: tuple[ctypes.CDLL, ctypes.CDLL], kernels: Path) -> Device:
    return Device(libraries, kernels, SOURCE)


def _laid(b: np.ndarray, layout: str) -> np.ndarray:
    """``[batch, k, n]`` as the kernel reads it."""
    if layout == "ROWS":
        return b
    if layout == "COLUMNS":
        return np.ascontiguousarray(b.transpose(0, 2, 1))
    batch, k, n = b.shape
    padded = np.zeros((batch, k, -(-n // 32) * 32), b.dtype)
    padded[:, :, :n] = b
    return np.ascontiguousarray(padded.reshape(batch, k, -1, 32).transpose(0, 2, 1, 3))


def _product(
    device: Device,
    name: str,
    tile: str,
    a: np.ndarray,
    b: np.ndarray,
    layout: str,
    bias: Any = None,
    residual: Any = None,
) -> np.ndarray:
    batch, m, k = a.shape
    n = b.shape[2]
    laid = _laid(b, layout)
    one = TILES[tile]
    blocks = batch * -(-m // one.m) * -(-n // one.n)
    assert one.shared_bytes <= 48 << 10
    steps = (m * k, 0 if b.shape[0] == 1 else laid[0].size)
    nothing = np.zeros(1, a.dtype)
    bias, residual = (nothing if each is None else each for each in (bias, residual))
    numbers = [ctypes.c_int64(each) for each in (batch, *steps, m, n, k)]
    c = np.empty((batch, m, n), a.dtype)
    arrays = (a, laid, bias, residual, c)
    return device.run(name, blocks, one.threads, *arrays, *numbers, dynamic=one.shared_bytes)[4]


SIZES = [
    (1, 1, 1),
    (1, 40, 8),
    (17, 33, 65),
    (64, 64, 64),
    (130, 136, 48),
    (65, 31, 264),
    (9, 129, 7),
]


@pytest.mark.parametrize("order", ["", "reverse"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", TILES)
def test_a_product_of_any_sizes_is_that_of_numpy(
    device: Device, driver: Callable[..., None], tile: str, layout: str, order: str
) -> None:
    driver(order=order)
    rng = np.random.default_rng(3)
    for number, (m, n, k) in enumerate(SIZES):
        batch, shared = (2, 1) if number % 2 else (2, 2)
        a = rng.standard_normal((batch, m, k)).astype(np.float16)
        b = rng.standard_normal((shared, k, n)).astype(np.float16)
        got = _product(device, f"gemm_{tile}_{layout}", tile, a, b, layout)
        want = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_allclose(got.astype(np.float32), want, rtol=2e-3, atol=2e-3 * k**0.5)


def _rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("n", [40, 33])
def test_an_epilogue_rounds_after_each_op(device: Device, epilogue: str, n: int) -> None:
    import torch

    rng = np.random.default_rng(5)
    dtype = ml_dtypes.bfloat16
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((1, 19, 24), (1, 24, n)))
    bias, residual = (rng.standard_normal(s).astype(dtype) for s in ((n,), (19, n)))
    _, with_bias, with_residual = EPILOGUES[epilogue].split(", ")
    got = _product(device, f"epilogue_{epilogue}", "few", a, b, "PANELS", bias, residual)
    value = a[0].astype(np.float32) @ b[0].astype(np.float32)
    if with_bias == "true":
        value = value + bias.astype(np.float32)
    value = torch.from_numpy(_rounded(value))
    function = torch.nn.functional
    acts = {"relu": torch.relu, "silu": function.silu, "gelu": function.gelu}
    acts["gelu_tanh"] = lambda x: function.gelu(x, approximate="tanh")
    value = acts.get(epilogue, lambda x: x)(value).numpy()
    if with_residual == "true":
        value = _rounded(value) + residual.astype(np.float32)
    # Equal but where a sum lies so near the middle of two numbers that its order decides.
    got = got[0].astype(np.float32)
    np.testing.assert_allclose(got, value, rtol=2**-7, atol=2**-8)
    assert (got == _rounded(value)).mean() > 0.95


def _attended(
    device: Device,
    name: str,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None,
) -> np.ndarray:
    """The kernel's answer for ``[batch, heads, rows, width]``, K and V with fewer heads, and a mask any
    of whose axes may be 1."""
    kind, width, value_width, parts, at_once, kind_of_mask, _ = ATTENTIONS[name]
    dtype = {"half": "float16", "bfloat": "bfloat16", "float": "float32"}[kind]
    tile = attention_tile(width, value_width, dtype, parts, kind_of_mask != "NO_MASK")
    assert (tile.parts, tile.keys) == (parts, at_once)  # what is tried here is what is used
    batch, heads, rows, _ = q.shape
    own, keys = k.shape[1:3]
    out = np.empty((batch, heads, rows, value_width), q.dtype)
    steps = [0, 0, 0, 0]
    if mask is not None:
        for axis in range(4):
            steps[axis] = 0 if mask.shape[axis] == 1 else int(np.prod(mask.shape[axis + 1 :]))
    numbers = [ctypes.c_int64(each) for each in (heads, heads // own, rows, keys, *steps)]
    numbers.append(ctypes.c_float(width**-0.5))  # type: ignore[arg-type]
    blocks = batch * heads * -(-rows // tile.rows)
    assert tile.shared_bytes <= 48 << 10
    seen = np.zeros(1, q.dtype) if mask is None else mask
    arrays = (q, k, v, seen, out)
    return device.run(
        f"attention_{name}", blocks, 128, *arrays, *numbers, dynamic=tile.shared_bytes
    )[4]


def _softmax_of(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, causal: bool
) -> np.ndarray:
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat(group, 1) for each in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = np.where(np.arange(keys) <= np.arange(rows)[:, None], scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(highest == -np.inf, 0, highest))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_of_any_sizes_is_that_of_numpy(device: Device, name: str) -> None:
    rng = np.random.default_rng(7)
    kind, width, value_width, _, _, mask_kind, causal = ATTENTIONS[name]
    dtype, _, tolerance = DTYPES[kind]
    for number, (heads, own, rows, keys) in enumerate(
        [(1, 1, 1, 1), (2, 1, 5, 3), (4, 2, 33, 70), (2, 2, 130, 65), (1, 1, 70, 150)]
    ):
        shapes = ((2, heads, rows, width), (2, own, keys, width), (2, own, keys, value_width))
        q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        mask: np.ndarray | None = None
        # Broadcast along other axes at each size; whole rows are hidden, too.
        shape = [(2, heads, rows, keys), (1, 1, 1, keys), (2, 1, rows, keys), (1, heads, rows, 1)]
        if mask_kind == "BOOL_MASK":
            mask = rng.random(shape[number % 4]) > 0.4
        if mask_kind == "FLOAT_MASK":
            mask = rng.standard_normal(shape[number % 4]).astype(dtype)
            mask[..., 0] = -np.inf
            mask[..., -1, -1] = np.finfo(dtype).min
        got = _attended(device, name, q, k, v, mask).astype(np.float64)
        want = _softmax_of(q, k, v, mask, causal)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("name", ["hidden", "causal", "float"])
def test_keys_that_attention_may_not_see_do_not_matter(device: Device, name: str) -> None:
    rng = np.random.default_rng(10)
    kind, width, value_width, *_, mask_kind, causal = ATTENTIONS[name]
    dtype = DTYPES[kind][0]
    q, k, v = (
        rng.standard_normal((1, 1, 70, size)).astype(dtype) for size in (width, width, value_width)
    )
    seen = 41
    mask = np.arange(70)[None, None, None] < seen if mask_kind == "BOOL_MASK" else None
    want = _attended(device, name, q, k, v, mask)
    k[:, :, seen:] *= -30
    v[:, :, seen:] += 50
    got = _attended(device, name, q, k, v, mask)
    rows = slice(None) if mask is not None else slice(seen)
    np.testing.assert_array_equal(got[:, :, rows], want[:, :, rows])
    if causal and mask is None:
        assert not np.array_equal(got[:, :, seen:], want[:, :, seen:])  # these rows do see them


def test_a_nan_in_a_query_stays_in_its_row(device: Device) -> None:
    rng = np.random.default_rng(8)
    q, k, v = (rng.standard_normal((1, 1, 70, 64)).astype(np.float16) for _ in range(3))
    want = _attended(device, "plain", q, k, v, None)
    q[0, 0, 5, 3] = np.nan
    got = _attended(device, "plain", q, k, v, None)
    assert np.isnan(got[0, 0, 5]).all()
    others = np.arange(70) != 5
    np.testing.assert_array_equal(got[0, 0, others], want[0, 0, others])


def test_bfloat16_by_hand_is_what_tensor_cores_give(device: Device) -> None:
    rng = np.random.default_rng(9)
    a, b = (
        rng.standard_normal((count, 32, 2)).astype(ml_dtypes.bfloat16).view(np.uint32)
        for count in (4, 2)
    )
    apart = device.run("by_hand", 1, 32, np.empty((4, 32), np.float32), a, b)[0]
    np.testing.assert_allclose(apart, 0, atol=1e-5)


def test_what_was_fetched_is_there_once_it_is_waited_for_and_zero_beyond(device: Device) -> None:
    x = np.arange(32, dtype=np.float32)
    for waits in (0, 1):
        arrays = (np.empty(32, np.float32), x)
        got = device.run("early", 1, 32, *arrays, ctypes.c_int(waits), dynamic=128)[0]
        want = np.where(np.arange(32) % 4 == 3, 0, x) if waits else np.full(32, np.nan)
        np.testing.assert_array_equal(got, want)
