"""Time series, recurrent networks and state-space models."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from tcexport.tools.zoo_rows import Row, flags, floats, ids, row


@row(batch=(1, 4))
def patchtst() -> Row:
    config = hf.PatchTSTConfig(
        num_input_channels=3,
        context_length=48,
        patch_length=8,
        patch_stride=8,
        prediction_length=12,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
    )
    return hf.PatchTSTForPrediction(config), {"past_values": floats("batch", 48, 3)}


@row(batch=(1, 4))
def patchtsmixer() -> Row:
    config = hf.PatchTSMixerConfig(
        context_length=48,
        patch_length=8,
        patch_stride=8,
        prediction_length=12,
        num_input_channels=3,
        d_model=16,
        num_layers=2,
    )
    return hf.PatchTSMixerForPrediction(config), {"past_values": floats("batch", 48, 3)}


@row(batch=(1, 4))
def time_series_transformer() -> Row:
    config = hf.TimeSeriesTransformerConfig(
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        prediction_length=6,
        context_length=12,
        lags_sequence=[1, 2, 3],
        num_time_features=2,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    inputs = {
        "past_values": floats("batch", 15),
        "past_time_features": floats("batch", 15, 2),
        "past_observed_mask": floats("batch", 15),
        "future_values": floats("batch", 6),
        "future_time_features": floats("batch", 6, 2),
    }
    return hf.TimeSeriesTransformerModel(config), {**inputs, "use_cache": False}


@row(batch=(1, 4), seq=(1, 24))
def mamba() -> Row:
    config = hf.MambaConfig(
        vocab_size=99, hidden_size=32, state_size=8, num_hidden_layers=2, use_cache=False
    )
    return hf.MambaModel(config), {"input_ids": ids("batch", "seq")}


@row(batch=(1, 4))
def mamba_fixed() -> Row:
    config = hf.MambaConfig(
        vocab_size=99, hidden_size=32, state_size=8, num_hidden_layers=1, use_cache=False
    )
    return hf.MambaModel(config), {"input_ids": ids("batch", 8)}


@row(batch=(1, 4), seq=(1, 24))
def rwkv() -> Row:
    config = hf.RwkvConfig(
        vocab_size=99, context_length=64, hidden_size=32, num_hidden_layers=2, use_cache=False
    )
    return hf.RwkvModel(config), {"input_ids": ids("batch", "seq")}


class Tagger(nn.Module):
    """A recurrent network between an embedding and a classifier of every step."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 16)
        self.network = kind(16, 24, batch_first=True, **options)
        self.classify = nn.LazyLinear(7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.network(self.embedding(tokens))
        return self.classify(states).log_softmax(-1)


def _tagger(kind: Any, seq: Any, **options: Any) -> Row:
    model = Tagger(kind, **options)
    model(torch.zeros(1, 4, dtype=torch.int64))
    return model, {"tokens": ids("batch", seq)}


@row(batch=(1, 4))
def lstm_fixed() -> Row:
    return _tagger(nn.LSTM, 9, num_layers=2)


@row(batch=(1, 4))
def gru_fixed() -> Row:
    return _tagger(nn.GRU, 9, bidirectional=True)


@row(batch=(1, 4))
def rnn_fixed() -> Row:
    return _tagger(nn.RNN, 9)


@row(batch=(1, 4), seq=(1, 24))
def lstm() -> Row:
    return _tagger(nn.LSTM, "seq", num_layers=2, bidirectional=True)


@row(batch=(1, 4), seq=(1, 24))
def gru() -> Row:
    return _tagger(nn.GRU, "seq")


@row(batch=(1, 4), seq=(1, 24))
def rnn() -> Row:
    return _tagger(nn.RNN, "seq")


class PaddedEncoder(nn.Module):
    """Padding is hidden; the first token never is: of rows without any, eager gives NaN."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, src: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        later = torch.arange(src.shape[1]) > 0
        return self.encoder(src, src_key_padding_mask=padding & later)


@row(batch=(1, 4), seq=(1, 40))
def transformer_encoder() -> Row:
    return PaddedEncoder(), {"src": floats("batch", "seq", 32), "padding": flags("batch", "seq")}


@row(batch=(1, 4), seq=(1, 24), out=(1, 16))
def transformer() -> Row:
    model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
    return model, {"src": floats("batch", "seq", 32), "tgt": floats("batch", "out", 32)}
