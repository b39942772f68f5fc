"""Models that were quantized through torch.export: the same numbers, the same roundings."""

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn
from torch.nn import functional as F

from tcexport.artifacts.errors import ExportError
from tcexport.lowering.graph import build
from tcexport.lowering.targets import CPU_TARGETS
from tcexport.lowering.weights import WeightStore, constants

from .conftest import trace

ops = torch.ops.quantized_decomposed
AUTO = torch.export.Dim.AUTO


class Quantized(nn.Module):
    """What convert_pt2e makes of two layers: int8 weights, one static activation, one dynamic."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(16, 12)
        scales = weight.abs().amax(1) / 127
        zeros = torch.zeros(16, dtype=torch.int64)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.register_buffer(
            "weight", ops.quantize_per_channel(weight, scales, zeros, 0, -127, 127, torch.int8)
        )
        self.register_buffer("filter", torch.randint(-128, 128, (4, 3, 3, 3), dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> Any:
        weight = ops.dequantize_per_channel(
            self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
        )
        static = ops.quantize_per_tensor(x, 0.043, -3, -128, 127, torch.int8)
        back = ops.dequantize_per_tensor(static, 0.043, -3, -128, 127, torch.int8)
        scale, zero = ops.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        dynamic = ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        wide = ops.dequantize_per_tensor.tensor(dynamic, scale, zero, -128, 127, torch.int8)
        kernel = ops.dequantize_per_tensor(self.filter, 0.01, 2, -128, 127, torch.int8)
        return (
            F.linear(back, weight, self.bias).relu(),
            F.linear(wide, weight),
            F.conv2d(image, kernel, padding=1),
            static,
            scale,
            zero,
        )


def test_layers_of_int8(agree) -> None:
    auto = torch.export.Dim.AUTO
    calls = [
        (3 * torch.randn(b, s, 12), torch.randn(b, 3, n, n))
        for b, s, n in ((2, 5, 6), (1, 1, 4), (3, 9, 11))
    ]
    dynamic = ({0: auto, 1: auto}, {0: auto, 2: auto, 3: auto})
    agree(Quantized(), *calls, dynamic=dynamic)


def test_scales_of_each_token_and_symmetric_ones(agree) -> None:
    def tokens(x: torch.Tensor) -> Any:
        scales, zeros = ops._choose_qparams_per_token_asymmetric_impl(x, torch.int8)
        small = ops.quantize_per_token(x, scales, zeros, -128, 127, torch.int8)
        return small, ops.dequantize_per_token(
            small, scales, zeros, -128, 127, torch.int8, torch.float32
        )

    def symmetric(x: torch.Tensor) -> Any:
        scale, zero = ops.choose_qparams_symmetric.tensor(x, -128, 127, 1e-6, torch.int8)
        return ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8), scale, zero

    agree([tokens, symmetric], (torch.randn(2, 5, 8),), (torch.randn(1, 1, 8),))


def test_products_of_int8_are_exact(agree) -> None:
    """Also of so many that float32 alone would round the sum."""

    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("short", torch.full((33, 1024), 127, dtype=torch.int8))
            self.register_buffer("long", torch.randint(-128, 128, (40, 2600), dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> Any:
            first = torch._int_mm(x[:, :1024], self.short.t())
            return first, torch._int_mm(x, self.long.t()), torch._int_mm(x, x.t())

    calls = [(torch.randint(-128, 128, (n, 2600), dtype=torch.int8),) for n in (24, 17, 100)]
    calls.append((torch.full((20, 2600), -128, dtype=torch.int8),))
    agree(Products(), *calls, dynamic=({0: AUTO},))


class WeightsAlone(nn.Module):
    """Products whose weights are int8, too large to be kept as floats."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("first", "second", "third", "fourth"):
            codes = torch.randint(-127, 128, (165, 420), dtype=torch.int8)
            self.register_buffer(name, codes)
        self.register_buffer("scales", torch.rand(165) / 100)
        self.register_buffer("zeros", torch.zeros(165, dtype=torch.int64))
        self.register_buffer("offsets", torch.arange(165) % 3)
        self.bias = nn.Parameter(torch.randn(165))

    def forward(self, x: torch.Tensor) -> Any:
        def of_rows(codes: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
            return ops.dequantize_per_channel(codes, self.scales, zeros, 0, -127, 127, torch.int8)

        whole = ops.dequantize_per_tensor(self.second, 0.01, 0, -127, 127, torch.int8)
        half = x.to(torch.bfloat16)
        return (
            F.gelu(F.linear(x, of_rows(self.first, self.zeros), self.bias)),
            F.linear(x, whole) + self.bias,
            F.linear(x, of_rows(self.third, self.offsets)),
            F.linear(half, self.fourth.to(torch.bfloat16)) * self.scales.to(torch.bfloat16),
            of_rows(self.first, self.zeros)[0],
        )


def test_a_product_reads_int8_weights_as_they_are(agree) -> None:
    calls = [(torch.randn(rows, 420),) for rows in (3, 1, 5, 40)]
    compiled = agree(WeightsAlone(), *calls, dynamic=({0: AUTO},), tolerance=1e-4)
    kept = dict(zip(compiled.answer.main.weights, compiled.kept, strict=True))
    for name in ("first:permute", "second", "fourth"):
        assert kept[f"{name}:packed32"].dtype is torch.int8
    assert not {"second", "fourth"} & kept.keys()
    large = [name for name, value in kept.items() if value.numel() > 1000]
    assert all(kept[name].dtype is torch.int8 for name in large)


class ScaledAfterwards(nn.Module):
    """As torchao's `Int8WeightOnlyConfig` has it: the codes turned, and the scale after the product."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"first": (48, 40), "second": (24, 48)}.items():
            self.register_buffer(name, torch.randint(-127, 128, shape, dtype=torch.int8))
            self.register_buffer(f"{name}_scales", torch.rand(shape[0], 1) / 100)
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.mm(x, self.first.t().to(x.dtype)) * self.first_scales.view(-1)
        last = self.second.t().to(x.dtype)
        half = x.to(torch.bfloat16) @ self.first.t().to(torch.bfloat16)
        return F.gelu(y) @ last * self.second_scales.view(-1), torch.addmm(self.bias, y, last), half


def test_a_product_reads_codes_that_are_scaled_afterwards(agree) -> None:
    calls = [(torch.randn(rows, 40),) for rows in (3, 1, 5, 40)]
    compiled = agree(ScaledAfterwards(), *calls, dynamic=({0: AUTO},), tolerance=1e-4)
    kept = dict(zip(compiled.answer.main.weights, compiled.kept, strict=True))
    assert all(value.dtype is torch.int8 for value in kept.values() if value.numel() > 100)


class QuantizedConv(nn.Module):
    """A convolution between the ops that convert_pt2e puts around it: uint8 activations with one
    scale, int8 weights with a scale for each channel, the bias in floats."""

    def __init__(self, c_in: int, c_out: int, size: int, **options: Any) -> None:
        super().__init__()
        conv = nn.Conv2d(c_in, c_out, size, **options)
        self.options = {"stride": conv.stride, "padding": conv.padding, "groups": conv.groups}
        scales = conv.weight.detach().abs().amax((1, 2, 3)) / 127
        zeros = torch.zeros(c_out, dtype=torch.int64)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        weight = ops.quantize_per_channel(conv.weight, scales, zeros, 0, -128, 127, torch.int8)
        self.register_buffer("weight", weight.detach())
        self.bias = conv.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = ops.dequantize_per_channel(
            self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8
        )
        return F.conv2d(x, weight, self.bias, **self.options)


class QuantizedConvnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = QuantizedConv(3, 16, 3, padding=1)
        self.each = QuantizedConv(16, 16, 3, stride=2, padding=1, groups=16)
        self.wide = QuantizedConv(16, 24, 1)
        self.same = QuantizedConv(24, 24, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        small = self.between(x, 0.031, 128)
        y = self.between(self.stem(small).relu(), 0.012, 0)
        y = self.between(self.wide(self.each(y)), 0.009, 113)
        y = self.between((self.same(y) + y).relu(), 0.011, 0)
        return y.mean((2, 3)), ops.quantize_per_tensor(y, 0.02, 0, 0, 255, torch.uint8)

    @staticmethod
    def between(x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
        small = ops.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return ops.dequantize_per_tensor(small, scale, zero, 0, 255, torch.uint8)


def test_a_convnet_of_int8(agree) -> None:
    torch.manual_seed(0)
    calls = [(torch.randn(n, 3, h, w),) for n, h, w in ((2, 12, 10), (1, 7, 9), (3, 16, 16))]
    # No sum lies so near the middle of two steps of a quantizer that the order of its terms decides.
    compiled = agree(
        QuantizedConvnet(), *calls, dynamic=({0: AUTO, 2: AUTO, 3: AUTO},), tolerance=1e-4
    )
    kept = dict(zip(compiled.answer.main.weights, compiled.kept, strict=True))
    weights = {name: value.dtype for name, value in kept.items() if ".weight" in name}
    assert len(weights) == 4
    assert all(name.endswith(":conv-last") for name in weights)  # between the quantizers, too
    assert set(weights.values()) == {torch.int8}


class Filters(nn.Module):
    """Convolutions by int8 of every kind that has a kernel, each alone, and so in torch's own order, or
    behind another."""

    KINDS = (
        ("plane", (24, 6, 3, 3), {"padding": 1}),
        ("line", (10, 6, 5), {"padding": 2, "stride": 2}),
        ("groups", (48, 2, 3, 3), {"groups": 3, "dilation": 2}),
        ("each", (6, 1, 3, 3), {"groups": 6, "stride": 2, "padding": 1}),
    )

    def __init__(self) -> None:
        super().__init__()
        for name, shape, _ in self.KINDS:
            self.register_buffer(name, torch.randint(-127, 128, shape, dtype=torch.int8))
            self.register_buffer(f"{name}_scales", torch.rand(shape[0]) / 100)
        self.register_buffer("small", torch.randint(-127, 128, (6, 6, 1, 1), dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x: torch.Tensor) -> Any:
        results = []
        before = F.conv2d(x, ops.dequantize_per_tensor(self.small, 0.02, 0, -127, 127, torch.int8))
        for name, shape, options in self.KINDS:
            codes, scales = getattr(self, name), getattr(self, f"{name}_scales")
            weight = codes.float() * scales.view(-1, *(1,) * (len(shape) - 1))
            if len(shape) == 3:
                results.append(F.conv1d(x.flatten(2), weight, **options))
                continue
            bias = self.bias if name == "plane" else None
            results.append(F.conv2d(x, weight, bias, **options).relu())
            results.append(F.relu(F.conv2d(before, weight, bias, **options)))
        half = self.plane.to(torch.bfloat16)
        return *results, F.conv2d(x.to(torch.bfloat16) / 64, half, padding=1)


def test_a_convolution_reads_int8_weights_as_they_are(agree) -> None:
    calls = [(torch.randn(n, 6, h, w),) for n, h, w in ((2, 12, 10), (1, 5, 7), (3, 16, 17))]
    dynamic = ({0: AUTO, 2: AUTO, 3: AUTO},)
    compiled = agree(Filters(), *calls, dynamic=dynamic, tolerance=1e-4)
    kept = dict(zip(compiled.answer.main.weights, compiled.kept, strict=True))
    for name in (*(name for name, *_ in Filters.KINDS), "small"):
        forms = {n: v.dtype for n, v in kept.items() if n.split(":")[0] == name}
        assert forms and set(forms.values()) == {torch.int8}, forms


class Elsewhere(nn.Module):
    """int8 weights that no kernel reads: small, so that floats are made of them at export."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"moved": (6, 5, 3, 3), "turned": (5, 6, 3, 3), "volume": (4, 5, 1, 3, 3)}
        shapes |= {"batch": (3, 8, 4), "columns": (8, 4), "twice": (8, 4), "shown": (8, 8)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.randint(-127, 128, shape, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4) / 100)
        self.register_buffer("zeros", torch.arange(6) % 2)

    def forward(self, image: torch.Tensor, x: torch.Tensor) -> Any:
        offset = ops.dequantize_per_channel(
            self.moved, torch.full((6,), 0.01), self.zeros, 0, -127, 127, torch.int8
        )
        shown = self.shown.to(x.dtype)
        return (
            F.conv2d(image, offset),
            F.conv_transpose2d(image, self.turned.float() * 0.01),
            F.conv3d(image.unsqueeze(2), self.volume.float() * 0.01),
            x.unsqueeze(1) @ self.batch[1:2].float(),
            x @ (self.columns.float() * self.scales),
            x @ (self.twice.float() * 0.5 * self.scales),
            F.linear(x, shown),
            shown,
        )


def test_weights_that_no_kernel_reads_as_int8_are_floats_from_the_export_on(agree) -> None:
    calls = [(torch.randn(n, 5, h, w), torch.randn(n, 8)) for n, h, w in ((2, 6, 5), (1, 3, 9))]
    dynamic = ({0: AUTO, 2: AUTO, 3: AUTO}, {0: AUTO})
    compiled = agree(Elsewhere(), *calls, dynamic=dynamic, tolerance=1e-4)
    assert all(value.dtype is not torch.int8 for value in compiled.kept)


class Float8(nn.Module):
    """What torchao's `Float8WeightOnlyConfig` leaves of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(300, 300).to(torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.codes.t().to(x.dtype)) * 0.1


def test_weights_of_float8_are_refused_by_name() -> None:
    program = trace(Float8(), (torch.randn(3, 300),))
    with pytest.raises(ExportError, match="TC501") as error:
        build(program, constants(program), CPU_TARGETS["x86-64-v3"], WeightStore())
    found = error.value.diagnostics[0]
    assert "aten.t.default of float8_e4m3fn" in found.message
    assert found.location.file == __file__
    assert "int8" in found.tries[0]
