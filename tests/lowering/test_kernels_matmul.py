import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tcexport.lowering.kernels.matmul import batched_matmul
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS, compile_kernel


@functools.cache
def _compiled(level, sizes, transpose_b, broadcast_a, broadcast_b):
    target = CPU_TARGETS[level]
    func = batched_matmul(
        **dict(zip("bmkn", sizes, strict=True)),
        transpose_b=transpose_b,
        broadcast_a=broadcast_a,
        broadcast_b=broadcast_b,
        target=target,
    )
    return compile_kernel(func, target)


def _check(level, b, m, k, n, *, fixed="", transpose_b=False, broadcast=""):
    generator = torch.Generator().manual_seed(b + m + k + n)
    first = torch.randn(1 if broadcast == "a" else b, m, k, generator=generator)
    shape = (n, k) if transpose_b else (k, n)
    second = torch.randn(1 if broadcast == "b" else b, *shape, generator=generator)
    sizes = tuple(
        s if name in fixed else None for name, s in zip("bmkn", (b, m, k, n), strict=True)
    )
    kernel = _compiled(level, sizes, transpose_b, broadcast == "a", broadcast == "b")
    got = kernel([first.numpy(), second.numpy()], (b, m, n))
    expected = first.double() @ (second.mT if transpose_b else second).double()
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5 * max(k, 1) ** 0.5)


@settings(max_examples=30, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    b=st.integers(1, 4),
    m=st.integers(0, 110),
    k=st.integers(0, 70),
    n=st.integers(1, 100),
    transpose_b=st.booleans(),
)
def test_drawn_sizes_agree_with_torch(level, b, m, k, n, transpose_b):
    _check(level, b, m, k, n, transpose_b=transpose_b)


@pytest.mark.parametrize("level", LEVELS)
def test_fixed_sizes_agree_with_torch(level):
    _check(level, 3, 17, 64, 64, fixed="kn")
    _check(level, 2, 9, 5, 33, fixed="bmkn", transpose_b=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("broadcast", ["a", "b"])
def test_an_operand_with_a_batch_of_one_is_broadcast(level, broadcast):
    _check(level, 3, 20, 12, 40, broadcast=broadcast)
