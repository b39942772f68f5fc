"""LSTM, GRU and RNN, whose gates ONNX has in another order than torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..numbers import as_tensor
from ..operands import require
from ..registry import operator

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch's, as positions of ONNX's
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}

Run = Callable[[torch.Tensor, "list[torch.Tensor]", "list[torch.Tensor]", bool], Any]


def _recurrent(
    kind: str,
    run: Run,
    x: torch.Tensor,
    weights: tuple[Any, Any, Any],
    states: Sequence[Any],
    direction: str,
    hidden: int | None,
    layout: int,
) -> tuple[torch.Tensor, ...]:
    """Y, Y_h and, for an LSTM, Y_c: [seq, directions, batch, hidden] and [directions, batch, hidden];
    with ``layout=1`` batch comes first."""
    both = direction == "bidirectional"
    directions = 2 if both else 1
    x = x.transpose(0, 1) if layout else x
    x = x.flip(0) if direction == "reverse" else x
    w, r = as_tensor(weights[0]), as_tensor(weights[1])
    size = hidden or r.shape[-1]
    b = None if weights[2] is None else as_tensor(weights[2])
    parameters: list[torch.Tensor] = []
    for at in range(directions):
        parameters += [_ordered(kind, w[at], size), _ordered(kind, r[at], size)]
        if b is None:
            zeros = torch.zeros(w.shape[1], dtype=w.dtype)
            parameters += [zeros, zeros]
        else:
            count = len(_GATES[kind]) * size
            parameters += [_ordered(kind, b[at][:count], size), _ordered(kind, b[at][count:], size)]
    initial = [
        x.new_zeros((directions, x.shape[1], size))
        if each is None
        else as_tensor(each).transpose(0, 1)
        if layout
        else as_tensor(each)
        for each in states
    ]
    y, *last = run(x, initial, parameters, both)
    y = y.reshape([*x.shape[:2], directions, size]).permute(0, 2, 1, 3)
    y = y.flip(0) if direction == "reverse" else y
    if layout:
        return (y.permute(2, 0, 1, 3), *(each.transpose(0, 1) for each in last))
    return (y, *last)


def _ordered(kind: str, stacked: torch.Tensor, size: int) -> torch.Tensor:
    """The gates of stacked weights in torch's order."""
    if len(_GATES[kind]) == 1:
        return stacked
    return torch.cat([stacked[at * size : (at + 1) * size] for at in _GATES[kind]])


def _require_plain(
    kind: str,
    direction: str,
    lengths: Any,
    clip: float | None,
    activations: list[str] | None,
    alpha: Any,
    beta: Any,
) -> None:
    require(lengths is None, "is not read with sequence_lens", "sequences of equal length")
    require(clip is None, "is not read with clip")
    require(alpha is None and beta is None, "is not read with activation_alpha or activation_beta")
    if kind in _ACTIVATIONS and activations is not None:
        usual = _ACTIVATIONS[kind] * (2 if direction == "bidirectional" else 1)
        wanted = [each.lower() for each in usual]
        plain = [each.lower() for each in activations] == wanted
        require(plain, f"is not read with the activations {', '.join(activations)}")


@operator("LSTM", since=7)
def lstm(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    peepholes: Any = None,
    *,
    outputs: int,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[torch.Tensor, ...]:
    _require_plain("LSTM", direction, lengths, clip, activations, activation_alpha, activation_beta)
    require(peepholes is None, "is not read with peepholes")
    require(not input_forget, "is not read with input_forget=1")

    def run(x: torch.Tensor, states: list[torch.Tensor], parameters: Any, both: bool) -> Any:
        return torch.lstm(x, states, parameters, True, 1, 0.0, False, both, False)

    found = _recurrent("LSTM", run, as_tensor(x), (w, r, b), (h, c), direction, hidden_size, layout)
    return found[:outputs]


@operator("GRU", since=7)
def gru(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    *,
    outputs: int,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[torch.Tensor, ...]:
    _require_plain("GRU", direction, lengths, clip, activations, activation_alpha, activation_beta)
    require(
        bool(linear_before_reset),
        "is not read with linear_before_reset=0",
        "linear_before_reset=1, which is what torch.nn.GRU computes",
    )

    def run(x: torch.Tensor, states: list[torch.Tensor], parameters: Any, both: bool) -> Any:
        return torch.gru(x, states[0], parameters, True, 1, 0.0, False, both, False)

    found = _recurrent("GRU", run, as_tensor(x), (w, r, b), (h,), direction, hidden_size, layout)
    return found[:outputs]


@operator("RNN", since=7)
def rnn(
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    *,
    outputs: int,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[torch.Tensor, ...]:
    _require_plain("RNN", direction, lengths, clip, None, activation_alpha, activation_beta)
    kinds = {each.lower() for each in activations or ["tanh"]}
    require(
        kinds in ({"tanh"}, {"relu"}),
        f"is not read with the activations {', '.join(activations or [])}",
        "Tanh or Relu",
    )
    of_torch = torch.rnn_tanh if kinds == {"tanh"} else torch.rnn_relu

    def run(x: torch.Tensor, states: list[torch.Tensor], parameters: Any, both: bool) -> Any:
        return of_torch(x, states[0], parameters, True, 1, 0.0, False, both, False)

    found = _recurrent("RNN", run, as_tensor(x), (w, r, b), (h,), direction, hidden_size, layout)
    return found[:outputs]
