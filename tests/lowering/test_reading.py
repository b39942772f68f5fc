"""A program that is read as the compiler reads it is the one that torch reads."""

from __future__ import annotations

import typing
from pathlib import Path

import torch
from torch import nn

from tcexport.lowering.reading import read_program


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(12).reshape(3, 4))

    def forward(self, x, more):
        first, second = more["parts"]
        rows = x.shape[0] // 2
        return {"y": self.linear(x)[:rows] + first, "z": (second, self.table.sum(0))}


def test_the_same_program(tmp_path: Path) -> None:
    args = (torch.randn(6, 4), {"parts": (torch.randn(4), torch.ones(2, dtype=torch.int64))})
    rows = torch.export.Dim("rows", min=4, max=20)
    shapes = ({0: 2 * torch.export.Dim("half", min=2, max=10)}, {"parts": (None, {0: rows})})
    args[1]["parts"] = (args[1]["parts"][0], torch.ones(5, dtype=torch.int64))
    torch.export.save(
        torch.export.export(Net().eval(), args, dynamic_shapes=shapes), tmp_path / "p.pt2"
    )
    hints = typing.get_type_hints
    ours, torchs = read_program(tmp_path / "p.pt2"), torch.export.load(tmp_path / "p.pt2")
    assert typing.get_type_hints is hints
    assert str(ours) == str(torchs)
    assert ours.graph_signature == torchs.graph_signature
    assert ours.range_constraints == torchs.range_constraints
    assert ours.call_spec == torchs.call_spec
    assert ours.state_dict.keys() == torchs.state_dict.keys()
    for name, value in torchs.state_dict.items():
        assert torch.equal(ours.state_dict[name], value)
