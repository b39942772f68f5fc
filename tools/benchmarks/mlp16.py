"""Two layers of 16: a model as small as they come, with weights and a kernel between."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
example_inputs = (torch.randn(4, 16),)
axes = {"input": ("n", None)}
