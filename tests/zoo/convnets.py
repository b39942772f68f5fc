"""Convolutional networks, with height and width dynamic."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn

from tcexport.tools.zoo_rows import Row, floats, row, settled

IMAGE = {"pixel_values": floats("batch", 3, "height", "width")}


@row(batch=(1, 4), height=(32, 96), width=(32, 96))
def resnet() -> Row:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 1, 1])
    return hf.ResNetForImageClassification(config), IMAGE


@row(slow=True, batch=(1, 4), height=(32, 96), width=(32, 96))
def resnet_basic() -> Row:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic"
    )
    return hf.ResNetForImageClassification(config), IMAGE


@row(batch=(1, 4), height=(32, 96, 32), width=(32, 96, 32))
def mobilenet_v2() -> Row:
    config = hf.MobileNetV2Config(depth_multiplier=0.25, finegrained_output=False)
    return settled(
        hf.MobileNetV2ForImageClassification(config), IMAGE, batch=4, height=64, width=64
    ), IMAGE


@row(slow=True, batch=(1, 4), height=(32, 96, 32), width=(32, 96, 32))
def efficientnet() -> Row:
    config = hf.EfficientNetConfig(
        image_size=64, width_coefficient=0.25, depth_coefficient=0.2, hidden_dim=320
    )
    return settled(hf.EfficientNetModel(config), IMAGE, batch=4, height=64, width=64), IMAGE


@row(slow=True, batch=(1, 4), height=(32, 96), width=(32, 96))
def regnet() -> Row:
    config = hf.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], groups_width=8
    )
    return hf.RegNetForImageClassification(config), IMAGE


@row(batch=(1, 4), height=(32, 96), width=(32, 96))
def convnext() -> Row:
    config = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    return hf.ConvNextForImageClassification(config), IMAGE


@row(slow=True, batch=(1, 4), height=(32, 96), width=(32, 96))
def convnext_v2() -> Row:
    config = hf.ConvNextV2Config(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    return hf.ConvNextV2Model(config), IMAGE


class DenseBlock(nn.Module):
    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + growth * index),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels + growth * index, growth, 3, padding=1, bias=False),
            )
            for index in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x.clone())], dim=1)
        return x


@row(batch=(1, 4), height=(16, 64), width=(16, 64))
def densenet() -> Row:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        DenseBlock(8, 4, 2),
        nn.Conv2d(16, 8, 1),
        nn.AvgPool2d(2),
        DenseBlock(8, 4, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return model, {"input": floats("batch", 3, "height", "width")}


class UNet(nn.Module):
    """Ronneberger et al. 2015, on any size: what is upsampled takes the size of what it joins."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(3, 8), self.block(8, 16)])
        self.middle = self.block(16, 32)
        self.up = nn.ModuleList([self.block(48, 16), self.block(24, 8)])
        self.out = nn.Conv2d(8, 4, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            skip = kept.pop()
            x = nn.functional.interpolate(x, size=skip.shape[-2:], mode="bilinear")
            x = block(torch.cat([x, skip], dim=1))
        return self.out(x).argmax(dim=1)


@row(batch=(1, 4), height=(16, 64), width=(16, 64))
def unet() -> Row:
    return UNet(), {"x": floats("batch", 3, "height", "width")}


class ShuffleUnit(nn.Module):
    """Ma et al. 2018: half of the channels pass, then the channels are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, groups=half),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=1)
        return nn.functional.channel_shuffle(torch.cat([left, self.branch(right)], dim=1), 2)


@row(batch=(1, 4), height=(16, 64), width=(16, 64))
def shufflenet() -> Row:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), ShuffleUnit(16), nn.MaxPool2d(3, 2, 1), ShuffleUnit(16)
    )
    return model, {"input": floats("batch", 3, "height", "width")}


@row(batch=(1, 4), height=(16, 64), width=(16, 64))
def super_resolution() -> Row:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(16, 9, 3, padding=1),
        nn.PixelShuffle(3),
    )
    return model, {"input": floats("batch", 1, "height", "width")}


@row(batch=(1, 2), depth=(8, 16), height=(8, 24), width=(8, 24))
def video_3d() -> Row:
    model = nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3, padding=1),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return model, {"input": floats("batch", 3, "depth", "height", "width")}
