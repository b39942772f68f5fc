"""ResNet-18 (He et al. 2015, https://arxiv.org/abs/1512.03385), with random weights."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.shortcut = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first_norm(self.first(x)).relu()
        y = self.second_norm(self.second(y))
        return (y + self.shortcut(x)).relu()


class ResNet18(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages = nn.Sequential(
            *(Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1)),
            *(Block(128, 256, 2), Block(256, 256, 1), Block(256, 512, 2), Block(512, 512, 1)),
        )
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(512, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norm(self.stem(image)).relu())
        return self.head(self.average(self.stages(x)).flatten(1))


torch.manual_seed(0)
model = ResNet18()
for module in model.modules():
    if isinstance(module, nn.BatchNorm2d):  # statistics as after training
        nn.init.uniform_(module.running_mean, -0.5, 0.5)
        nn.init.uniform_(module.running_var, 0.5, 2.0)
example_inputs = (torch.randn(2, 3, 96, 128),)
axes = {"image": ("batch", None, "height", "width")}

dynamic = ["batch=1..16", "height=32..512", "width=32..512"]
sizes = [
    "batch=1,height=160,width=160",
    "batch=1,height=224,width=224",
    "batch=4,height=160,width=160",
    "batch=4,height=224,width=224",
]
