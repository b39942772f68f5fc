"""Recurrent layers with any number of steps, end to end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tcexport


class Tagger(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 7)
        self.layers = kind(7, 8, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps, states = self.layers(self.table(ids))
        return self.out(steps), states if isinstance(states, torch.Tensor) else states[1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_any_number_of_steps_but_none(tmp_path: Path, kind: Any) -> None:
    model = Tagger(kind).eval()
    report = tcexport.export(
        model,
        (torch.randint(0, 50, (3, 5)),),
        axes={"ids": ("batch", "seq")},
        dynamic={"batch": (1, 8), "seq": None},
        out=tmp_path / "m.tcpkg",
    )
    loaded = tcexport.load(report.path)
    for shape in ((1, 1), (8, 2), (2, 77)):
        ids = torch.randint(0, 50, shape)
        for got, want in zip(loaded(ids), model(ids), strict=True):
            torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(tcexport.GuardError, match="seq"):
        loaded(torch.zeros(2, 0, dtype=torch.int64))


def test_a_packed_sequence_is_refused_with_what_to_do() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 4, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.layer(packed)[1]

    found = tcexport.check(Packed().eval(), (torch.randn(2, 3, 4), torch.tensor([3, 2])))
    assert {each.code for each in found.errors} == {"TC101"}
    assert "packs a batch by lengths" in found.errors[0].message
    assert "torch.where" in found.errors[0].tries[0]
