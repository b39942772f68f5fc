"""A multilayer perceptron, 512-2048-2048-512 with exact GELU."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 512)
)
example_inputs = (torch.randn(4, 512),)
axes = {"input": ("batch", None)}

dynamic = ["batch=1..4096"]
sizes = ["batch=1", "batch=4", "batch=16", "batch=128", "batch=512"]
