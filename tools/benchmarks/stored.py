r"""The perceptron and the ResNet, called with float32, with their weights stored as each dtype:

    tcexport stored.py:mlp_int8 --input 'x=float32[batch=4,512]' --dynamic batch=1..512
    tcexport stored.py:resnet18_int8 --input 'x=float32[batch=2,3,height=96,width=128]' \
        --dynamic batch=1..4,height=32..256,width=32..256
"""

from copy import deepcopy
from functools import partial

import mlp
import resnet18
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization


class Scaled(nn.Module):
    """The floats that int8 codes stand for, with a scale for each output."""

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.to(torch.float32) * self.scale


def quantize(model: nn.Module) -> None:
    """Store the weights of linear layers and convolutions as int8."""
    for module in list(model.modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            weight = module.weight.detach()
            scale = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True) / 127
            module.weight = nn.Parameter((weight / scale).round().to(torch.int8), False)
            register_parametrization(module, "weight", Scaled(scale), unsafe=True)


class Stored(nn.Module):
    """A model in halves, or in float32 with weights in int8."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = deepcopy(model).eval()
        self.dtype = torch.float32 if dtype is torch.int8 else dtype
        self.model.to(self.dtype)
        if dtype is torch.int8:
            quantize(self.model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.to(self.dtype))


mlp_float32 = partial(Stored, mlp.model, torch.float32)
mlp_float16 = partial(Stored, mlp.model, torch.float16)
mlp_bfloat16 = partial(Stored, mlp.model, torch.bfloat16)
mlp_int8 = partial(Stored, mlp.model, torch.int8)
resnet18_float32 = partial(Stored, resnet18.model, torch.float32)
resnet18_float16 = partial(Stored, resnet18.model, torch.float16)
resnet18_bfloat16 = partial(Stored, resnet18.model, torch.bfloat16)
resnet18_int8 = partial(Stored, resnet18.model, torch.int8)
