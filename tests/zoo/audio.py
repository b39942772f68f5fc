"""Models of sound: raw samples or spectrograms of any length."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn

from tcexport.tools.zoo_rows import Row, floats, ids, mask, row

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
WAVE = dict(
    conv_dim=(16, 16, 16),
    conv_stride=(5, 4, 2),
    conv_kernel=(10, 8, 4),
    num_feat_extract_layers=3,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2,
    **SMALL,
)


@row(batch=(1, 4), samples=(800, 4000))
def wav2vec2() -> Row:
    config = hf.Wav2Vec2Config(vocab_size=32, **WAVE)
    return hf.Wav2Vec2ForCTC(config), {"input_values": floats("batch", "samples")}


@row(slow=True, batch=(1, 4), samples=(800, 4000))
def wav2vec2_masked() -> Row:
    config = hf.Wav2Vec2Config(vocab_size=32, feat_extract_norm="layer", **WAVE)
    samples = mask("batch", "samples")
    model = hf.Wav2Vec2Model(config)
    return model, {"input_values": floats("batch", "samples"), "attention_mask": samples}


@row(slow=True, batch=(1, 4), samples=(800, 4000))
def hubert() -> Row:
    return hf.HubertModel(hf.HubertConfig(**WAVE)), {"input_values": floats("batch", "samples")}


@row(batch=(1, 4))
def whisper_encoder() -> Row:
    config = hf.WhisperConfig(
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        max_source_positions=50,
    )
    model = hf.WhisperModel(config).get_encoder()
    return model, {"input_features": floats("batch", 16, 100)}


class Transcribe(nn.Module):
    """Whisper's logits for given tokens."""

    def __init__(self, config: hf.WhisperConfig) -> None:
        super().__init__()
        self.model = hf.WhisperForConditionalGeneration(config)

    def forward(
        self, input_features: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        return self.model(
            input_features, decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits


@row(slow=True, batch=(1, 4), seq=(1, 24))
def whisper() -> Row:
    config = hf.WhisperConfig(
        vocab_size=99,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50,
        max_target_positions=64,
        pad_token_id=0,
    )
    inputs = {
        "input_features": floats("batch", 16, 100),
        "decoder_input_ids": ids("batch", "seq"),
    }
    return Transcribe(config), inputs


@row(batch=(1, 4))
def audio_spectrogram_transformer() -> Row:
    config = hf.ASTConfig(max_length=48, num_mel_bins=32, patch_size=8, **SMALL)
    return hf.ASTModel(config), {"input_values": floats("batch", 48, 32)}


class GatedTcn(nn.Module):
    """WaveNet's layers (van den Oord et al. 2016): dilated causal convolutions with gates."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=dilation) for dilation in (1, 2, 4, 8)
        )
        self.last = nn.Conv1d(channels, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            padded = nn.functional.pad(x, (layer.dilation[0], 0))
            values, gates = layer(padded).chunk(2, dim=1)
            x = x + values.tanh() * gates.sigmoid()
        return self.last(x).log_softmax(dim=1)


@row(batch=(1, 4), time=(1, 200))
def wavenet() -> Row:
    return GatedTcn(16), {"x": floats("batch", 1, "time")}


class ConformerBlock(nn.Module):
    """Gulati et al. 2020: attention and a gated depthwise convolution between half feed-forwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.point = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.after = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.before(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        y = nn.functional.glu(self.point(x.transpose(1, 2)), dim=1)
        y = nn.functional.silu(self.batch_norm(self.depth(y)))
        return self.after(x + y.transpose(1, 2))


@row(batch=(1, 4), time=(1, 60))
def conformer() -> Row:
    padded = mask("batch", "time", dtype=torch.float32)
    inputs = {"x": floats("batch", "time", 32), "padding": padded}

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ConformerBlock(32)

        def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
            later = torch.arange(x.shape[1]) > 0  # the first step counts always
            return self.block(x, (padding == 0) & later)

    return Padded(), inputs
