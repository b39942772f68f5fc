"""A small convolutional U-Net (Ronneberger et al. 2015, https://arxiv.org/abs/1505.04597)."""

import torch
from torch import nn
from torch.nn import functional as F


class Twice(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(8, outside),
            nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.GroupNorm(8, outside),
            nn.SiLU(),
        )


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Every pixel four times: upsampling by the nearest neighbour."""
    batch, channels, height, width = x.shape
    wide = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
    return wide.reshape(batch, channels, 2 * height, 2 * width)


class UNet(nn.Module):
    def __init__(self, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        self.one, self.two = Twice(channels, width), Twice(width, 2 * width)
        self.three, self.four = Twice(2 * width, 4 * width), Twice(4 * width, 8 * width)
        self.up_three, self.up_two = Twice(12 * width, 4 * width), Twice(6 * width, 2 * width)
        self.up_one, self.head = Twice(3 * width, width), nn.Conv2d(width, channels, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        one = self.one(image)
        two = self.two(F.max_pool2d(one, 2))
        three = self.three(F.max_pool2d(two, 2))
        x = self.four(F.max_pool2d(three, 2))
        x = self.up_three(torch.cat([doubled(x), three], dim=1))
        x = self.up_two(torch.cat([doubled(x), two], dim=1))
        x = self.up_one(torch.cat([doubled(x), one], dim=1))
        return self.head(x)


torch.manual_seed(0)
model = UNet()
example_inputs = (torch.randn(2, 3, 64, 48),)
axes = {"image": ("batch", None, "8*h", "8*w")}

dynamic = ["batch=1..8", "h=1..64", "w=1..64"]
sizes = ["batch=1,h=8,w=8", "batch=1,h=16,w=16", "batch=4,h=16,w=16", "batch=1,h=32,w=32"]
