"""``x + 1`` on a few numbers: what a call costs beside the sums."""

import torch
from torch import nn


class PlusOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


model = PlusOne()
example_inputs = (torch.randn(4, 16),)
axes = {"x": ("n", None)}
