"""A trace prepares no calls of what it captures, and knows values where it needs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo import utils

from tcexport.exporter.trace import _tracing


@torch.compiler.assume_constant_result
def scale(weight):
    return float(weight.detach().mul_(2).sum())


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) * scale(self.linear.weight)


def test_weights_are_copied_where_a_value_is_asked_for_and_not_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[torch.Size] = []
    original = utils.clone_input
    monkeypatch.setattr(
        "torch._dynamo.variables.builder.clone_input",
        lambda x, **more: copied.append(x.shape) or original(x, **more),
    )
    model = Scaled().eval()
    before = model.linear.weight.detach().clone()
    expected = float((2 * before).sum())
    with _tracing():
        program = torch.export.export(model, (torch.randn(3, 4),), strict=True)
    assert torch.equal(model.linear.weight, before)
    assert copied.count(model.linear.weight.shape) == 1
    assert model.linear.bias.shape not in copied
    (product,) = [node for node in program.graph.nodes if node.target is torch.ops.aten.mul.Tensor]
    assert product.args[1] == pytest.approx(expected)
