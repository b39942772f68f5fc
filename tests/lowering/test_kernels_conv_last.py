import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tcexport.artifacts.steps import stepped_through
from tcexport.artifacts.weights import Weight
from tcexport.lowering.kernels.conv_last import conv2d
from tcexport.lowering.kernels.conv_weights import Convolution, packing
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS, compile_kernel

KINDS = [
    Convolution(3, 16, (3, 3), padding=(1, 1), bias=True),
    Convolution(5, 13, (1, 1), bias=True),
    Convolution(3, 45, (7, 7), stride=(2, 2), padding=(3, 3)),
    Convolution(6, 12, (3, 5), stride=(1, 2), padding=(0, 2), dilation=(2, 3), bias=True),
    Convolution(4, 7, (1, 1), stride=(2, 2), residual=True),
    Convolution(2, 3, (2, 3), stride=(3, 2), padding=(2, 1), dilation=(1, 2)),
    Convolution(21, 21, (3, 3), stride=(2, 2), padding=(1, 1), groups=21, bias=True),
    Convolution(8, 8, (3, 5), padding=(1, 4), dilation=(1, 2), groups=8, activation="relu"),
    Convolution(9, 37, (3, 3), padding=(1, 1), bias=True, residual=True, activation="relu"),
    Convolution(9, 37, (3, 3), padding=(1, 1), bias=True, residual=True, activation="silu"),
]
# Kernels of the same family, each at one level; drawn sizes meet the others.
GROUPS = [
    Convolution(40, 40, (9, 9), padding=(4, 4), groups=40),
    Convolution(13, 26, (3, 3), padding=(1, 1), groups=13),
    Convolution(20, 20, (3, 3), padding=(1, 1), groups=5, bias=True, activation="relu"),
    Convolution(48, 24, (3, 3), stride=(2, 1), dilation=(1, 2), groups=6, residual=True),
    Convolution(24, 48, (1, 1), groups=3, bias=True),
    Convolution(10, 90, (3, 3), padding=(1, 0), groups=2, bias=True, residual=True),
    Convolution(32, 64, (3, 3), stride=(2, 2), padding=(1, 1), groups=2),
    Convolution(6, 88, (2, 3), padding=(1, 1), dilation=(2, 2), groups=2, activation="silu"),
    Convolution(9, 40, (1, 1), residual=True, activation="relu"),
    # Panels that leave the level-one cache, with a step left over and without.
    Convolution(33, 75, (3, 3), padding=(1, 1), bias=True, activation="relu"),
    Convolution(64, 40, (3, 3), stride=(2, 2), bias=True),
]


@functools.cache
def _compiled(level, kind):
    return compile_kernel(conv2d(kind, CPU_TARGETS[level]), CPU_TARGETS[level])


def _check(level, kind, n, h, w):
    generator = torch.Generator().manual_seed(n + h * 100 + w)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    x, weight = (
        draw(n, kind.channels, h, w),
        draw(kind.filters, kind.group_channels, *kind.kernel),
    )
    bias = draw(kind.filters) if kind.bias else None
    expected = F.conv2d(
        x.double(),
        weight.double(),
        bias.double() if kind.bias else None,
        kind.stride,
        kind.padding,
        kind.dilation,
        kind.groups,
    )
    residual = draw(*expected.shape)
    if kind.residual:
        expected = expected + residual
    if kind.activation is not None:
        expected = getattr(F, kind.activation)(expected)

    def last(image):
        return np.ascontiguousarray(image.numpy().transpose(0, 2, 3, 1))

    steps = packing(weight.shape, kind.groups)
    packed = stepped_through(Weight(weight.numpy(), "float32"), steps)
    inputs = [
        last(x).reshape(n, h, w * kind.channels),
        np.ascontiguousarray(packed.data),
        *([bias.numpy()] if kind.bias else []),
        *([last(residual)] if kind.residual else []),
    ]
    expected = last(expected)
    got = _compiled(level, kind)(inputs, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_convolution_agrees_with_torch(level, kind):
    for n, h, w in ((1, 9, 11), (2, 20, 17), (0, 9, 9), (3, 13, 13), (1, 10, 60)):
        _check(level, kind, n, h, w)


@pytest.mark.parametrize(("number", "kind"), list(enumerate(GROUPS)))
def test_groups_agree_with_torch(number, kind):
    for n, h, w in ((1, 9, 11), (2, 20, 17), (0, 9, 9), (1, 10, 60)):
        _check(LEVELS[number % len(LEVELS)], kind, n, h, w)


@settings(max_examples=40, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    kind=st.sampled_from(KINDS + GROUPS),
    n=st.integers(1, 3),
    h=st.integers(9, 50),
    w=st.integers(11, 50),
)
def test_drawn_sizes_agree_with_torch(level, kind, n, h, w):
    _check(level, kind, n, h, w)


@pytest.mark.parametrize("level", LEVELS)
def test_small_images_agree_with_torch(level):
    for size in range(1, 9):
        _check(level, KINDS[0], 2, size, size)
        _check(level, KINDS[8], 1, size + 1, size)
