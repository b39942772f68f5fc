"""Sizes of 1: served wherever the model allows, refused where it really takes another way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter import ones
from tcexport.exporter.export import CheckReport, check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory


def checked(module: nn.Module, *args: torch.Tensor, axes: Any, **options: Any) -> CheckReport:
    return check(source_in_memory(module.eval(), args, {}, axes), **options)


class Encoder(nn.Module):
    """Torch guards strides of the attention's projections here, not what the model computes."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), diagonal=1)
        return self.layers(x, mask=mask, is_causal=True)


class Heads(nn.Module):
    """Torch excludes batch 1 only where n is 1 too: the layout of a chunk is asked for."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(20, 144)

    def forward(self, x):
        b, n, _ = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.reshape(b, n, 4, -1).transpose(1, 2) for part in parts)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 48)


class AsksForNothing(nn.Module):
    """The model itself excludes sizes, at which it computes the same."""

    def forward(self, x):
        if x.shape[0] == 1:
            x = x.contiguous()
        if x.shape[1] == 1:
            x = x.contiguous()
        return x * 2


class OtherWayAtOne(nn.Module):
    def forward(self, x):
        if x.shape[0] == 1:
            return x * 2
        return x * 3


class OneRowOnly(nn.Module):
    def forward(self, x):
        return x.view(1, 4) + 1


class ByEinsum(nn.Module):
    """Torch's own einsum leaves out axes of size 1."""

    def __init__(self):
        super().__init__()
        self.to_heads = nn.Parameter(torch.randn(3, 2, 16, 8))

    def forward(self, x):
        q, k, v = torch.einsum("bnd,phde->pbhne", x, self.to_heads)
        weights = torch.einsum("bhie,bhje->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bhje->bihe", weights, v).flatten(2)


class Cache(nn.Module):
    """Python takes leading axes of 1 from what is written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(16, 80, 16))

    def forward(self, x):
        self.rows[: x.shape[0], torch.arange(x.shape[1])] = x
        return self.rows[: x.shape[0], : x.shape[1]] * 2


class Windows(nn.Module):
    """Whether the slice is contiguous hangs on whether there was anything to pad."""

    def forward(self, x):
        batch, rows, width = x.shape
        padded = nn.functional.pad(x, (0, 0, 0, -rows % 4))
        windows = padded.view(batch, -1, 4, width).softmax(2).view(padded.shape)
        return windows[:, :rows].contiguous().view(batch, -1)


class Photo(nn.Module):
    """Channels lie last, in what the convolution gives, too: to flatten it takes a copy."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        image = x.unflatten(2, (4, 4)).permute(0, 3, 1, 2)
        return self.conv(image).relu().flatten(1)


class WritesToTurned(nn.Module):
    """One row that is turned is contiguous: what is written to the one is in the other, too."""

    def forward(self, x):
        turned = (x * 2).transpose(1, 2)
        flat = turned.reshape(x.shape[0], -1)
        flat.add_(1)
        return turned * 2, flat


class WritesToPadded(nn.Module):
    """Of an image that needs no padding, all is the image, and no copy."""

    def forward(self, x):
        padded = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 4))
        image = padded[:, : x.shape[1]].contiguous()
        padded.mul_(2)
        return image * 1, padded.sum(1)


class WritesToView(nn.Module):
    """A view at all sizes."""

    def forward(self, x):
        y = x * 2
        y[..., :2].reshape(-1, 2).mul_(2)
        return y


class WritesToCopy(nn.Module):
    """Nobody looks at what was copied, or not."""

    def forward(self, x):
        flat = (x * 2).transpose(1, 2).reshape(x.shape[0], -1)
        flat.add_(1)
        return torch.vmap(lambda row: row.sin() * 2)(flat)


AXES = {"x": ("batch", "seq", None)}
RANGES = {"batch": DimRequest(1, 16), "seq": DimRequest(1, 64)}


@pytest.mark.parametrize("shape", [(2, 5, 16), (1, 1, 16)])
def test_a_transformer_serves_batch_1_and_seq_1_whatever_the_example(shape: Any) -> None:
    report = checked(Encoder(), torch.randn(shape), axes=AXES, dynamic=RANGES)
    assert [dim.span() for dim in report.dims] == ["1..16", "1..64"]
    assert not report.contract.guards


def test_a_transformer_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How its projections lie is not asked for: that would be answered by a further trace for each size
    and for both together."""
    monkeypatch.setattr(ones, "_guards_at", lambda *_: pytest.fail("traced again"))
    report = checked(Encoder(), torch.randn(2, 5, 16), axes=AXES, dynamic=RANGES)
    assert not report.contract.guards


@pytest.mark.parametrize("model", [ByEinsum, Cache, Windows, Photo, AsksForNothing])
def test_layouts_that_hang_on_sizes_exclude_none(model: type[nn.Module]) -> None:
    report = checked(model(), torch.randn(2, 5, 16), axes=AXES, dynamic=RANGES)
    assert [dim.span() for dim in report.dims] == ["1..16", "1..64"]
    assert not report.contract.guards


@pytest.mark.parametrize("model", [WritesToTurned, WritesToPadded])
def test_a_write_to_a_view_at_some_sizes_alone_keeps_them_out(model: type[nn.Module]) -> None:
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(model(), torch.randn(2, 5, 16), axes=AXES, dynamic=RANGES)
    assert {each.code for each in refusal.value.diagnostics} == {"TC210"}


@pytest.mark.parametrize("model", [WritesToView, WritesToCopy])
def test_a_write_that_is_the_same_at_all_sizes_excludes_none(model: type[nn.Module]) -> None:
    report = checked(model(), torch.randn(2, 5, 16), axes=AXES, dynamic=RANGES)
    assert [dim.span() for dim in report.dims] == ["1..16", "1..64"]


def test_sizes_that_torch_excludes_only_together_are_served() -> None:
    report = checked(
        Heads(), torch.randn(3, 5, 20), axes={"x": ("b", "n", None)}, dynamic={"b": None, "n": None}
    )
    assert [dim.span() for dim in report.dims] == ["1..", "1.."]
    assert not report.contract.guards


def test_a_branch_on_size_1_keeps_1_out_and_says_where() -> None:
    report = checked(
        OtherWayAtOne(), torch.randn(3), axes={"x": ("n",)}, dynamic={"n": None}
    )  # fmt: skip
    (dim,) = report.dims
    assert dim.span() == "2.."
    assert dim.lo_from.location is not None
    assert dim.lo_from.location.text == "if x.shape[0] == 1:"
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(
            OtherWayAtOne(), torch.randn(3), axes={"x": ("n",)}, dynamic={"n": DimRequest(1, 8)}
        )
    assert refusal.value.code == "TC210"
    assert "--dynamic n=2..8" in str(refusal.value)


def test_a_model_that_works_at_1_alone_cannot_have_that_dim_dynamic() -> None:
    with pytest.raises(tcexport.ExportError) as refusal:
        checked(OneRowOnly(), torch.randn(1, 4), axes={"x": ("n", None)}, dynamic={"n": None})
    assert refusal.value.code == "TC201"
    assert "the model itself fails with n=" in str(refusal.value)
    assert "return x.view(1, 4) + 1" in str(refusal.value)


def test_what_was_not_traced_again_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """More sizes excluded than are tried: the refusal does not put it down to the model."""
    monkeypatch.setattr(ones, "_MOST_TRACES", 1)
    with pytest.raises(tcexport.ExportError) as error:
        checked(AsksForNothing(), torch.randn(2, 5, 16), axes=AXES, dynamic=RANGES)
    (found,) = error.value.diagnostics
    assert found.code == "TC210" and "!= 1" in found.message
    assert any("was not traced again" in note for note in found.notes)
    bare = checked(
        AsksForNothing(), torch.randn(2, 5, 16), axes=AXES, dynamic=dict.fromkeys(("batch", "seq"))
    )
    (note,) = bare.notes
    assert "not all sizes of" in note.message and "was not traced again" in note.notes[0]
