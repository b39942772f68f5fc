import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tcexport.lowering.kernels.attention import attention
from tcexport.lowering.targets import CPU_TARGETS

from .kernel_harness import LEVELS, compile_kernel


@functools.cache
def _compiled(level, head_dim, value_dim, causal, mask, mask_batch, mask_heads):
    target = CPU_TARGETS[level]
    func = attention(
        head_dim,
        value_dim,
        causal=causal,
        mask=mask,
        mask_batch=mask_batch,
        mask_heads=mask_heads,
        scale=head_dim**-0.5,
        target=target,
    )
    return compile_kernel(func, target)


def _mask(kind, b, h, s, t, generator):
    if kind == "bool":
        return torch.rand(b, h, s, t, generator=generator) < 0.7
    mask = torch.randn(b, h, s, t, generator=generator)
    mask[torch.rand(b, h, s, t, generator=generator) < 0.2] = -torch.inf
    return mask


def _check(level, b, h, hk, s, t, d, dv, causal=False, mask=None, per_batch=True, per_head=False):
    generator = torch.Generator().manual_seed(s * 1000 + t)
    q = torch.randn(b, h, s, d, generator=generator)
    k = torch.randn(b, hk, t, d, generator=generator)
    v = torch.randn(b, hk, t, dv, generator=generator)
    inputs, torch_mask = [q, k, v], None
    if mask is not None:
        shape = (b if per_batch else 1, h if per_head else 1, s, t)
        torch_mask = _mask(mask, *shape, generator)
        inputs.append(torch_mask)
    kernel = _compiled(level, d, dv, causal, mask, per_batch, per_head)
    got = kernel([value.numpy() for value in inputs], (b, h, s, dv))
    if torch_mask is not None and mask == "float":
        torch_mask = torch_mask.double()
    expected = F.scaled_dot_product_attention(
        q.double(),
        k.double(),
        v.double(),
        attn_mask=torch_mask,
        is_causal=causal,
        enable_gqa=h != hk,
    )
    np.testing.assert_allclose(got, expected.numpy(), rtol=2e-5, atol=2e-5)


LENGTHS = [(1, 1), (1, 300), (2, 7), (5, 5), (6, 129), (13, 128), (40, 31), (150, 150), (0, 3)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("d, dv", [(64, 64), (20, 7)])
def test_every_length_agrees_with_torch(level, d, dv):
    for s, t in LENGTHS:
        _check(level, 2, 4, 2, s, t, d, dv)


@pytest.mark.parametrize("level", LEVELS)
def test_causal_attention_agrees_with_torch(level):
    for s, t in LENGTHS:
        _check(level, 1, 2, 2, s, t, 16, 32, causal=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("per_batch, per_head", [(True, False), (False, True)])
def test_masks_agree_with_torch(level, mask, per_batch, per_head):
    for s, t in LENGTHS:
        _check(level, 2, 2, 1, s, t, 8, 8, mask=mask, per_batch=per_batch, per_head=per_head)


@settings(max_examples=30, deadline=None)
@given(
    level=st.sampled_from(LEVELS),
    b=st.integers(1, 3),
    hk=st.integers(1, 3),
    group=st.integers(1, 3),
    s=st.integers(1, 60),
    t=st.integers(1, 300),
    causal=st.booleans(),
)
def test_drawn_sizes_agree_with_torch(level, b, hk, group, s, t, causal):
    d, dv = (16, 32) if causal else (64, 64)
    _check(level, b, hk * group, hk, s, t, d, dv, causal=causal)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("s", [1, 4, 30])
def test_rows_that_may_read_nothing_are_what_torch_makes_of_them(level, s):
    q, k = torch.randn(2, 2, s, 8), torch.randn(2, 2, 150, 8)
    for kind, hidden in (("bool", False), ("float", -torch.inf)):
        mask = _mask(kind, 2, 1, s, 150, torch.Generator().manual_seed(0))
        mask[:, :, s // 2] = hidden
        expected = F.scaled_dot_product_attention(q, k, k, attn_mask=mask, scale=8**-0.5)
        kernel = _compiled(level, 8, 8, False, kind, True, False)
        got = kernel([x.numpy() for x in (q, k, k, mask)], q.shape)
        np.testing.assert_allclose(got, expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_a_very_negative_mask_is_no_infinite_one(level):
    q, k = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 9, 8)
    mask = torch.full((1, 1, 5, 9), torch.finfo(torch.float32).min)
    expected = F.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    kernel = _compiled(level, 8, 8, False, "float", True, False)
    got = kernel([x.numpy() for x in (q, k, k, mask)], q.shape)
    np.testing.assert_allclose(got, expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_nan_stays_in_its_row(level):
    q, k = torch.randn(1, 1, 20, 16), torch.randn(1, 1, 200, 16)
    q[0, 0, 3, 5] = torch.nan
    got = _compiled(level, 16, 32, True, None, True, False)(
        [q.numpy(), k.numpy(), torch.randn(1, 1, 200, 32).numpy()], (1, 1, 20, 32)
    )
    assert np.isnan(got[0, 0, 3]).all()
    assert not np.isnan(np.delete(got, 3, axis=2)).any()
