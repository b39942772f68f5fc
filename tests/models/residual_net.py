"""A residual convolutional net: stem, pooling, two residual stages, global average, classes."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        y = self.first_norm(self.first(x)).relu()
        y = self.second_norm(self.second(y))
        return (y + self.shortcut(x)).relu()


class ResidualNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages = nn.Sequential(Residual(32, 32, 1), Residual(32, 64, 2))
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(64, classes)

    def forward(self, image):
        x = self.pool(self.norm(self.stem(image)).relu())
        return self.head(self.average(self.stages(x)).flatten(1))


torch.manual_seed(0)
model = ResidualNet()
for module in model.modules():
    if isinstance(module, nn.BatchNorm2d):  # statistics as after training
        nn.init.uniform_(module.running_mean, -0.5, 0.5)
        nn.init.uniform_(module.running_var, 0.5, 2.0)
example_inputs = (torch.randn(2, 3, 64, 64),)
axes = {"image": ("batch", None, None, None)}
