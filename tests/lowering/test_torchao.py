"""Models as torchao 0.18.0 quantizes them: its own tensors, and what its pt2e leaves of a graph."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("torchao")

from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.pt2e import allow_exported_model_train_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

AUTO = torch.export.Dim.AUTO


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.inner = nn.Conv2d(16, 16, 3, padding=1)
        self.each = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(self.stem(x), 2)
        y = F.relu(self.inner(y) + y)
        return self.head(self.each(y).mean((2, 3)))


class All(nn.Module):
    """Several models of one input, for one compilation."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: torch.Tensor) -> Any:
        return tuple(model(x) for model in self.models)


def through_pt2e(model: nn.Module, example: torch.Tensor, axes: Any, *, dynamic: bool) -> nn.Module:
    program = torch.export.export(model.eval(), (example,), dynamic_shapes=(axes,))
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = prepare_pt2e(program.module(), quantizer)
    prepared(example)
    return allow_exported_model_train_eval(convert_pt2e(prepared))


def kept_by_dtype(compiled: Any, dtype: torch.dtype) -> int:
    return sum(value.numel() for value in compiled.kept if value.dtype is dtype)


@pytest.mark.parametrize(
    "config",
    [
        Int8WeightOnlyConfig(),
        IntxWeightOnlyConfig(weight_dtype=torch.int4),
        Int8DynamicActivationInt8WeightConfig(),
        Int8DynamicActivationIntxWeightConfig(),
    ],
    ids=lambda config: type(config).__name__,
)
def test_layers_with_tensors_of_torchao(agree, config: Any) -> None:
    torch.manual_seed(1)
    model = Layers().eval()
    quantize_(model, config)
    calls = [(torch.randn(rows, 32),) for rows in (3, 1, 20)]
    agree(model, *calls, dynamic=({0: AUTO},), tolerance=1e-4)


def test_graphs_of_pt2e(agree) -> None:
    torch.manual_seed(0)
    example, axes = torch.randn(4, 32), {0: AUTO}
    models = [through_pt2e(Layers(), example, axes, dynamic=each) for each in (False, True)]
    calls = [(torch.randn(rows, 32),) for rows in (4, 1, 20)]
    compiled = agree(All(models), *calls, dynamic=({0: AUTO},), tolerance=1e-4)
    assert kept_by_dtype(compiled, torch.int8) >= 2 * 32 * (64 + 8)


def test_a_convnet_of_pt2e(agree) -> None:
    torch.manual_seed(0)
    example = torch.randn(2, 3, 12, 12)
    axes = {0: AUTO, 2: AUTO, 3: AUTO}
    model = through_pt2e(Convnet(), example, axes, dynamic=False)
    calls = [(torch.randn(n, 3, h, w),) for n, h, w in ((2, 12, 12), (1, 7, 9), (3, 8, 16))]
    compiled = agree(model, *calls, dynamic=(axes,), tolerance=1e-4)
    assert kept_by_dtype(compiled, torch.int8) >= 16 * (3 + 16 + 1) * 9
