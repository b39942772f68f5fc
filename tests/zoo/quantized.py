"""Quantized models as torchao leaves them: the ops of `quantized_decomposed` around layers of int8."""

from __future__ import annotations

from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers the ops
import transformers as hf
from torch import nn
from torch.nn import functional as F

from tcexport.tools.zoo_rows import Row, floats, ids, mask, row

ops = torch.ops.quantized_decomposed


class Steps(nn.Module):
    """uint8 between layers: floats while it watches what comes, 256 steps of that range afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.range, self.watches = (0.0, 1e-3), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lo, hi = self.range
        if self.watches:
            self.range = (min(lo, float(x.min())), max(hi, float(x.max())))
            return x
        scale = (hi - lo) / 255
        zero = round(-lo / scale)
        codes = ops.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return ops.dequantize_per_tensor(codes, scale, zero, 0, 255, torch.uint8)


class Coded(nn.Module):
    """A layer whose weight is int8, with a scale for each output."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.flatten(1).abs().amax(1).clamp(min=1e-6) / 127
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        codes = ops.quantize_per_channel(weight, scales, zeros, 0, -127, 127, torch.int8)
        for name, value in {"weight": codes, "scales": scales, "zeros": zeros}.items():
            self.register_buffer(name, value)
        self.bias = layer.bias
        names = ("stride", "padding", "dilation", "groups")
        self.options = {name: getattr(layer, name) for name in names if hasattr(layer, name)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = ops.dequantize_per_channel(
            self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
        )
        function = F.conv2d if self.options else F.linear
        return function(x, weight, self.bias, **self.options)


def conv(c_in: int, c_out: int, size: int, **options: Any) -> nn.Sequential:
    layer = nn.Conv2d(c_in, c_out, size, padding=size // 2, **options)
    return nn.Sequential(Coded(layer), nn.ReLU(), Steps())


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = conv(channels, channels, 3)
        self.last = Coded(nn.Conv2d(channels, channels, 3, padding=1))
        self.steps = Steps()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(F.relu(self.last(self.inner(x)) + x))


class QuantizedResnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = Steps()
        self.stem = nn.Sequential(conv(3, 16, 3, stride=2), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(Residual(16), conv(16, 32, 3, stride=2), Residual(32))
        self.mobile = nn.Sequential(conv(32, 32, 3, groups=32), conv(32, 48, 1))
        self.head, self.pooled = Coded(nn.Linear(48, 10)), Steps()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        y = self.mobile(self.body(self.stem(self.image(image))))
        return self.head(self.pooled(F.adaptive_avg_pool2d(y, 1).flatten(1)))


@row(batch=(1, 4), height=(32, 96), width=(32, 96))
def quantized_resnet() -> Row:
    model = QuantizedResnet()
    for seed in range(4):
        model(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed)))
    for each in model.modules():
        if isinstance(each, Steps):
            each.watches = False
    return model, {"image": floats("batch", 3, "height", "width")}


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
