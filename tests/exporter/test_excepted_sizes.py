"""Sizes at which a model skips what would change nothing: served, and refused where it would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tcexport
from tcexport.exporter.export import CheckReport, check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory

SEQ = {"batch": DimRequest(1, 4), "seq": DimRequest(1, 40)}


def checked(
    module: nn.Module, x: torch.Tensor, axes: Any, dynamic: dict[str, DimRequest]
) -> CheckReport:
    return check(source_in_memory(module.eval(), (x,), {}, {"x": axes}), dynamic=dynamic)


class Causal(nn.Module):
    """OPT's and GPT-J's mask: no triangle where there is one token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seq = x.shape[1]
        mask = torch.full((seq, seq), -1e9)
        if seq != 1:
            mask = torch.triu(mask, diagonal=1)
        mask = mask * (torch.arange(seq) > torch.arange(seq)[:, None])
        mask = mask[None, None].expand(x.shape[0], 1, -1, -1)
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)


class MaskIfNeeded(nn.Module):
    """CLIP's text model: no mask at all where there is one token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        mask = None
        if seq > 1:
            mask = torch.full((seq, seq), -1e9).triu(1)[None, None].expand(batch, 1, seq, seq)
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=mask)


class AddedIfLong(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 1:
            ramp = torch.arange(x.shape[1], dtype=torch.float32)[:, None] + self.value
            x = x + ramp.expand(x.shape[0], -1, 16)
        return x * 3


class CausalByFlag(nn.Module):
    """As transformers asks for it: causal only where there is more than one query."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, causal = x[:, None], x.shape[1] > 1 and True  # a bool, not a symbol
        return F.scaled_dot_product_attention(q, q, q, is_causal=causal)


class CausalOverMoreKeys(nn.Module):
    """The same, where one query sees the first of two keys per token only if it is causal."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = x[:, None], torch.cat([x, -x], dim=1)[:, None]
        causal = x.shape[1] > 1 and True
        return F.scaled_dot_product_attention(q, k, k, is_causal=causal)


@pytest.mark.parametrize("module", [Causal(), MaskIfNeeded(), AddedIfLong(0.0), CausalByFlag()])
def test_a_mask_that_one_token_does_without_is_no_reason_to_refuse_it(module: nn.Module) -> None:
    report = checked(module, torch.randn(2, 5, 16), ("batch", "seq", None), SEQ)
    assert [dim.span() for dim in report.dims] == ["1..4", "1..40"]
    assert not report.contract.guards


@pytest.mark.parametrize("module", [AddedIfLong(1.0), CausalOverMoreKeys()])
def test_what_would_change_the_numbers_keeps_the_size_out(module: nn.Module) -> None:
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(module, torch.randn(2, 5, 16), ("batch", "seq", None), SEQ)
    assert refusal.value.code == "TC210"
    assert "--dynamic batch=1..4,seq=2..40" in str(refusal.value)


class Positions(nn.Module):
    """A vision transformer's positions: interpolated, unless there are as many as patches."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 16, 8))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = F.avg_pool2d(x, 8)
        high, wide = patches.shape[-2:]
        if high * wide == 16 and high == wide:
            table = self.table * self.scale
        else:
            table = self.table.reshape(1, 4, 4, 8).permute(0, 3, 1, 2)
            table = F.interpolate(table, size=(high, wide), mode="bicubic", align_corners=False)
            table = table.permute(0, 2, 3, 1).reshape(1, -1, 8)
        return patches.flatten(2).transpose(1, 2) + table


IMAGE = {
    "batch": DimRequest(1, 4),
    "height": DimRequest(16, 64, 8),
    "width": DimRequest(16, 64, 8),
}


def test_interpolation_to_the_size_that_is_there_is_served_with_the_rest() -> None:
    x = torch.randn(2, 8, 24, 40)
    report = checked(Positions(1.0), x, ("batch", None, "height", "width"), IMAGE)
    assert [dim.span() for dim in report.dims] == ["1..4", "16..64:8", "16..64:8"]
    assert not report.contract.guards


def test_another_table_at_its_own_size_is_refused_with_the_line() -> None:
    x = torch.randn(2, 8, 24, 40)
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(Positions(2.0), x, ("batch", None, "height", "width"), IMAGE)
    (found,) = [each for each in refusal.value.diagnostics if each.code == "TC210"]
    assert found.location is not None
    assert found.location.text == "if high * wide == 16 and high == wide:"


class Looked(nn.Module):
    """Rows that are computed, and so checked as the code runs; torch excludes one token as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(66, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), 1.0)
        if x.shape[1] != 1:
            mask = torch.triu(mask, diagonal=1)
        mask = mask * (torch.arange(x.shape[1]) > torch.arange(x.shape[1])[:, None])
        return mask @ self.table(torch.cumsum(x, dim=1) * x)


def test_checks_of_computed_rows_do_not_count_as_another_graph() -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    report = checked(Looked(), ids, ("batch", "seq"), SEQ)
    assert [dim.span() for dim in report.dims] == ["1..4", "1..40"]
    assert len(report.contract.computed_guards) == 1


class Patches(nn.Module):
    """MobileViT's unfolding: layouts hang on whether there is one patch in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        rows, columns = height // 2, width // 2
        patches = x.reshape(batch * channels * rows, 2, columns, 2).transpose(1, 2)
        patches = patches.reshape(batch, channels, rows * columns, 4).transpose(1, 3)
        mixed = self.mix(patches.reshape(batch * 4, rows * columns, -1))
        heads = mixed.view(batch * 4, -1, 2, 4).transpose(1, 2)
        return torch.matmul(heads, heads.transpose(-1, -2)).softmax(-1)


@pytest.mark.parametrize("example", [(2, 4), (4, 4), (6, 2)])
def test_what_a_trace_at_a_size_assumes_of_others_is_tried_in_turn(
    example: tuple[int, int],
) -> None:
    sizes = {"b": DimRequest(1, 4), "h": DimRequest(2, 6, 2), "w": DimRequest(2, 6, 2)}
    found = checked(Patches(), torch.randn(2, 8, *example), ("b", None, "h", "w"), sizes)
    assert not found.contract.guards
