"""LSTM, GRU and RNN layers are loops over a number of steps that a call chooses."""

from typing import Any

import pytest
import torch
from torch import nn


def steps(*sizes: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor]:
    return (torch.randn(*sizes, 7).to(dtype),)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(7, 19, num_layers=2, batch_first=True, bidirectional=True),
        lambda: nn.LSTM(7, 16, bias=False, proj_size=5, num_layers=2),
        lambda: nn.GRU(7, 35, num_layers=2, bidirectional=True),
        lambda: nn.GRU(7, 8, bias=False, batch_first=True),
        lambda: nn.RNN(7, 33, num_layers=2),
        lambda: nn.RNN(7, 65, nonlinearity="relu", bidirectional=True, batch_first=True),
    ],
    ids=["lstm", "projected", "gru", "gru_no_bias", "rnn", "rnn_relu"],
)
def test_layers_take_any_number_of_steps(agree, layer: Any) -> None:
    torch.manual_seed(0)
    calls = [steps(5, 3), steps(1, 1), steps(40, 2), steps(3, 17), steps(4, 0)]
    if layer().batch_first:
        calls[-1] = steps(0, 4)
    agree(layer(), *calls)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_of_other_dtypes(agree, kind: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    calls = [steps(5, 3, dtype=dtype), steps(1, 1, dtype=dtype), steps(9, 8, dtype=dtype)]
    agree(kind(7, 70).to(dtype), *calls)


class Given(nn.Module):
    """The states come in and go out, as between the chunks of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, 12, batch_first=True)
        self.gru = nn.GRUCell(12, 12)
        self.cell = nn.LSTMCell(7, 12)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        output, (h, c) = self.lstm(x.transpose(0, 1), (h, c))
        first, second = self.cell(x[-1], (h[0], c[0]))
        return output, h, c, self.gru(output[:, -1], h[0]), first, second


def test_states_come_in_and_go_out(agree) -> None:
    calls = [
        (torch.randn(t, b, 7), torch.randn(1, b, 12), torch.randn(1, b, 12))
        for t, b in ((5, 3), (1, 1), (12, 6))
    ]
    auto = torch.export.Dim.AUTO
    agree(Given(), *calls, dynamic=({0: auto, 1: auto}, {1: auto}, {1: auto}))


def test_many_units_are_shared_by_threads(agree) -> None:
    agree(nn.LSTM(7, 300), steps(4, 9), steps(6, 1))
