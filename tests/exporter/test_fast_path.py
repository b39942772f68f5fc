"""Torch's fast path for transformers: a mask whose values decide how it computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter.export import check
from tcexport.exporter.options import DimRequest
from tcexport.exporter.source import source_in_memory


class Encoder(nn.Module):
    def __init__(self, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


def checked(nested: bool, padding: torch.Tensor) -> None:
    axes = {"x": ("batch", "seq", None), "padding": ("batch", "seq")}
    x = torch.randn(*padding.shape, 8)
    source = source_in_memory(Encoder(nested).eval(), (x, padding), {}, axes)
    check(source, dynamic={"batch": DimRequest(1, 4), "seq": DimRequest(1, 16)})


NONE = torch.zeros(2, 5, dtype=torch.bool)


def test_rows_that_torch_would_pack_by_their_mask_are_refused_whatever_the_example_masks() -> None:
    with pytest.raises(tcexport.ExportError, match="looks at the values of the padding") as error:
        checked(True, NONE)
    found = error.value.diagnostics[0]
    assert found.code == "TC102"
    assert found.location is not None and found.location.text.startswith("return self.encoder(")
    assert "enable_nested_tensor=False" in found.tries[0]
