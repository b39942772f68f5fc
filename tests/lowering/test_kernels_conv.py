import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tcexport.lowering.kernels.conv import conv2d
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS, compile_kernel

# channels, filters, kernel, stride, padding, dilation, groups
SHAPES = [
    (3, 16, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (5, 13, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (3, 30, (7, 7), (2, 2), (3, 3), (1, 1), 1),
    (8, 8, (3, 3), (2, 2), (1, 1), (1, 1), 8),
    (6, 12, (3, 5), (1, 2), (0, 2), (2, 3), 3),
    (3, 20, (4, 4), (4, 4), (0, 0), (1, 1), 1),
    (4, 7, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (2, 3, (2, 3), (3, 2), (2, 1), (1, 2), 1),
]


@functools.cache
def _compiled(level, shape, bias, activation, residual):
    channels, filters, kernel, stride, padding, dilation, groups = shape
    target = CPU_TARGETS[level]
    func = conv2d(
        channels,
        filters,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=bias,
        activation=activation,
        residual=residual,
        target=target,
    )
    return compile_kernel(func, target)


def _check(level, shape, n, h, w, *, bias=True, activation=None, residual=False):
    channels, filters, kernel, stride, padding, dilation, groups = shape
    generator = torch.Generator().manual_seed(n + h * 100 + w)
    x = torch.randn(n, channels, h, w, generator=generator)
    weight = torch.randn(filters, channels // groups, *kernel, generator=generator)
    b = torch.randn(filters, generator=generator) if bias else None
    expected = F.conv2d(
        x.double(), weight.double(), b.double() if bias else None, stride, padding, dilation, groups
    )
    r = torch.randn(expected.shape, generator=generator)
    if activation == "relu":
        expected = expected.relu()
    if residual:
        expected = expected + r
    inputs = [x.numpy(), weight.numpy()]
    inputs += [b.numpy()] if bias else []
    inputs += [r.numpy()] if residual else []
    kernel_func = _compiled(level, shape, bias, activation, residual)
    got = kernel_func(inputs, tuple(expected.shape))
    np.testing.assert_allclose(got, expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_of_convolution_agrees_with_torch(level, shape):
    for n, h, w in ((1, 9, 11), (2, 20, 17), (0, 9, 9)):
        _check(level, shape, n, h, w)


@settings(max_examples=40, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    shape=st.sampled_from(SHAPES),
    n=st.integers(1, 3),
    h=st.integers(9, 50),
    w=st.integers(11, 50),
)
def test_drawn_sizes_agree_with_torch(level, shape, n, h, w):
    _check(level, shape, n, h, w)


@pytest.mark.parametrize("level", LEVELS)
def test_the_smallest_input_agrees_with_torch(level):
    _check(level, SHAPES[0], 1, 1, 1)
    _check(level, SHAPES[1], 1, 1, 1)
    _check(level, SHAPES[2], 1, 1, 2)
    _check(level, SHAPES[5], 1, 4, 4)


@pytest.mark.parametrize("level", LEVELS)
def test_epilogues_agree_with_torch(level):
    _check(level, SHAPES[0], 2, 12, 13, bias=False, activation="relu", residual=True)
