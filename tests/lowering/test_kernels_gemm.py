import functools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tcexport.artifacts.steps import stepped_through
from tcexport.artifacts.weights import Weight
from tcexport.lowering.kernels.gemm import PACKING, gemm, packed_shape
from tcexport.lowering.kernels.tile import tile_vectors
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS, assembly, compile_kernel, inner_loops

ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def pack(weight):
    packed = stepped_through(Weight(weight, "float32"), PACKING)
    return np.ascontiguousarray(packed.data)


@functools.cache
def _compiled(level, n, k, bias, activation, residual):
    target = CPU_TARGETS[level]
    func = gemm(n, k, bias=bias, activation=activation, residual=residual, target=target)
    return compile_kernel(func, target)


def _check(level, m, n, k, bias, activation, residual):
    rng = np.random.default_rng(m * 1000 + n + k)
    a, b, r = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (n,), (m, n)))
    weight = rng.standard_normal((n, k), np.float32) / np.float32(max(k, 1) ** 0.5)
    inputs = [a, pack(weight), *([b] if bias else []), *([r] if residual else [])]
    got = _compiled(level, n, k, bias, activation, residual)(inputs, (m, n))
    expected = torch.from_numpy(a.astype(np.float64) @ weight.T.astype(np.float64))
    expected = ACTIVATIONS[activation](expected + (torch.from_numpy(b) if bias else 0))
    expected = expected.numpy() + (r if residual else 0)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_packing_pads_the_last_panel_with_zeros():
    weight = np.arange(1, 34 * 3 + 1, dtype=np.float32).reshape(34, 3)
    packed = pack(weight)
    assert packed.shape == packed_shape(34, 3) == (2, 3, 32)
    assert packed[1, 2, 1] == weight[33, 2]
    assert not packed[1, :, 2:].any()


@pytest.mark.parametrize("target", CPU_TARGETS.values(), ids=lambda target: target.name)
def test_no_tile_is_larger_than_the_register_file(target):
    for rows in range(1, target.tile_rows + 1):
        assert rows * tile_vectors(rows, target) < target.registers


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n, k", [(64, 20), (173, 7)])
def test_every_row_count_agrees_with_numpy(level, n, k):
    for m in (*range(30), 97, 200):
        _check(level, m, n, k, bias=True, activation=None, residual=False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n, k", [(75, 193), (40, 512)])
def test_every_row_count_agrees_where_the_panel_to_come_is_asked_for(level, n, k):
    """Long enough for it, with a step left over and without; all panels before the next rows, too."""
    for m in (*range(1, 45), 97, 300, 700):
        _check(level, m, n, k, bias=True, activation=None, residual=False)


@pytest.mark.parametrize("level", LEVELS)
def test_a_panel_that_leaves_no_room_for_the_next_agrees_with_numpy(level):
    for m in (3, 14, 15, 61):
        _check(level, m, 70, 5300, bias=True, activation=None, residual=False)


@pytest.mark.parametrize("level, steps", [("x86-64-v3", 2), ("x86-64-v4", 1)])
def test_products_ask_for_what_comes(level, steps):
    """The panel to come in the level-two cache, this one's next lines in the level-one cache; and no
    sum leaves the registers for it."""
    target = CPU_TARGETS[level]
    func = gemm(96, 512, bias=True, activation="gelu", residual=False, target=target)
    products = [loop for loop in inner_loops(assembly(func, target)) if "vfmadd231ps" in loop]
    asking = [loop for loop in products if "prefetcht0" in loop]
    most = max(loop.count("vfmadd231ps") for loop in asking)
    assert most == 2 * steps * target.tile_rows
    assert all("prefetcht1" in loop for loop in products)
    assert not [loop for loop in asking if _SPILL.search(loop)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogues_agree_with_torch(level, activation):
    for m in (1, 5, 31):
        _check(level, m, 77, 19, bias=True, activation=activation, residual=True)


_SPILL = re.compile(r"^.*rsp.*mm\d|^.*mm\d.*rsp", re.M)  # a vector to or from the stack


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_the_constants_of_an_epilogue_take_no_registers_from_the_products(activation):
    target = CPU_TARGETS["x86-64-v4"]
    func = gemm(64, 128, bias=True, activation=activation, residual=False, target=target)
    loops = inner_loops(assembly(func, target))
    products = [loop for loop in loops if "vfmadd231ps" in loop and "vdivps" not in loop]
    most = max(loop.count("vfmadd231ps") for loop in products)
    assert most == 2 * target.tile_rows
    assert not [loop for loop in products if _SPILL.search(loop)]
    assert all("prefetch" in loop for loop in products)


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "x86-64-v2"])
def test_no_sum_of_a_product_leaves_the_registers(level):
    """Where products are added in one instruction; else they take a register of their own."""
    target = CPU_TARGETS[level]
    func = gemm(512, 128, bias=True, activation=None, residual=False, target=target)
    loops = inner_loops(assembly(func, target))
    products = [loop for loop in loops if "mulps" in loop or "vfmadd231ps" in loop]
    assert len(products) > target.tile_rows // 2
    assert not [loop for loop in products if _SPILL.search(loop)]


@settings(max_examples=5, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    rows=st.lists(st.integers(0, 150), min_size=1),
    n=st.integers(1, 300),
    k=st.integers(0, 80),
    bias=st.booleans(),
)
def test_drawn_sizes_agree_with_numpy(level, rows, n, k, bias):
    for m in rows:
        _check(level, m, n, k, bias=bias, activation=None, residual=False)


@pytest.mark.parametrize("level", LEVELS)
def test_long_k_and_many_rows_split_into_chunks(level):
    _check(level, 700, 40, 3000, bias=False, activation=None, residual=False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_of_special_values_are_torchs(level, activation):
    values = np.array([0, -0.0, np.nan, 1e30, 100, -1e30, -100, -5, 5], np.float32)
    one = np.ones((1, 1), np.float32)
    got = _compiled(level, 1, 1, False, activation, False)(
        [values[:, None], pack(one)], (len(values), 1)
    )
    expected = ACTIVATIONS[activation](torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(got[:, 0], expected, rtol=1e-5, atol=2e-5)
