import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tcexport.lowering.kernels.norm import layer_norm, rms_norm, softmax
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS, compile_kernel

WIDTHS = (1, 3, 16, 67, 768)
ROWS = (0, 1, 5, 40)


@functools.cache
def _layer_norm(level, d, weight, bias, residual):
    target = CPU_TARGETS[level]
    func = layer_norm(d, 1e-5, weight=weight, bias=bias, residual=residual, target=target)
    return compile_kernel(func, target)


@functools.cache
def _softmax(level, n, log):
    target = CPU_TARGETS[level]
    return compile_kernel(softmax(n, log=log, target=target), target)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("d", WIDTHS)
def test_layer_norm_agrees_with_torch(level, d):
    torch.manual_seed(d)
    for optional in (False, True):
        kernel = _layer_norm(level, d, optional, optional, optional)
        for m in ROWS:
            x, r, w, b = torch.randn(m, d) + 3, torch.randn(m, d), torch.randn(d), torch.randn(d)
            inputs = [x, r, w, b] if optional else [x]
            expected = (
                F.layer_norm((x + r).double(), (d,), w.double(), b.double())
                if optional
                else F.layer_norm(x.double(), (d,))
            )
            got = kernel([value.numpy() for value in inputs], (m, d))
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("d", WIDTHS)
def test_rms_norm_agrees_with_torch(level, d):
    torch.manual_seed(d)
    target = CPU_TARGETS[level]
    kernel = compile_kernel(rms_norm(d, 1e-6, weight=True, target=target), target)
    for m in ROWS:
        x, w = torch.randn(m, d), torch.randn(d)
        expected = F.rms_norm(x, (d,), w, eps=1e-6)
        got = kernel([x.numpy(), w.numpy()], (m, d))
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    fixed=st.booleans(),
    log=st.booleans(),
    m=st.integers(0, 30),
    n=st.integers(1, 300),
)
def test_softmax_agrees_with_torch_at_drawn_sizes(level, fixed, log, m, n):
    n = 37 if fixed else n
    x = 10 * torch.randn(m, n, generator=torch.Generator().manual_seed(m * 1000 + n))
    expected = (F.log_softmax if log else F.softmax)(x, -1).numpy()
    got = _softmax(level, n if fixed else None, log)([x.numpy()], (m, n))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_infinities_and_nan_is_torchs(level, log):
    x = torch.randn(5, 50)
    x[0] = -torch.inf
    x[1, 7] = torch.nan
    x[2, 3] = torch.inf
    x[3, 4:] = -torch.inf
    x[4, ::2] = -1e30
    expected = (F.log_softmax if log else F.softmax)(x, -1).numpy()
    got = _softmax(level, None, log)([x.numpy()], x.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
