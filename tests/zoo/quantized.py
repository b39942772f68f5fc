"""Quantized models as torchao leaves them: the ops of `quantized_decomposed` around layers of int8."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # registers the ops
import transformers as hf
from torch import nn
from torch.nn import functional as F

from tcexport.tools.zoo_rows import Row, ids, mask, row

ops = torch.ops.quantized_decomposed


class Coded(nn.Module):
    """A layer whose weight is int8, with a scale for each output."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1).clamp(min=1e-6) / 127
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        codes = ops.quantize_per_channel(weight, scales, zeros, 0, -127, 127, torch.int8)
        for name, value in {"weight": codes, "scales": scales, "zeros": zeros}.items():
            self.register_buffer(name, value)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = ops.dequantize_per_channel(
            self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
        )
        return F.linear(x, weight, self.bias)


class ByToken(nn.Module):
    """int8 by int8, with a scale for each token that is computed in the call."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.coded = Coded(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        codes = torch.round(rows / scale).clamp(-127, 127).to(torch.int8)
        sums = torch._int_mm(codes, self.coded.weight.t()).to(torch.float32)
        y = sums * scale * self.coded.scales + self.coded.bias
        return y.reshape(*x.shape[:-1], -1)


def _replaced(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """The model with every linear layer as ``kind`` of it."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))
    return model


@row(batch=(1, 4), seq=(1, 40))
def quantized_bert() -> Row:
    config = hf.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=37, max_position_embeddings=64,
    )  # fmt: skip
    model = _replaced(hf.BertModel(config, add_pooling_layer=False), ByToken)
    return model, {
        "input_ids": ids("batch", "seq"),
        "attention_mask": mask("batch", "seq"),
    }


@row(batch=(1, 4), seq=(1, 40))
def weight_only_bert() -> Row:
    config = hf.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=37, max_position_embeddings=64,
    )  # fmt: skip
    model = _replaced(hf.BertModel(config, add_pooling_layer=False), Coded)
    return model, {
        "input_ids": ids("batch", "seq"),
        "attention_mask": mask("batch", "seq"),
    }
