"""The networks of image diffusion, by diffusers."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DiTTransformer2DModel,
    UNet2DConditionModel,
    UNet2DModel,
)
from torch import nn

from tcexport.tools.zoo_rows import Row, floats, ids, row


class Denoise(nn.Module):
    """One step: the noise in an image."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, **more: Any) -> torch.Tensor:
        return self.model(sample, timestep, return_dict=False, **more)[0]


@row(batch=(1, 2), height=(16, 48, 8), width=(16, 48, 8))
def unet_2d() -> Row:
    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    noise = floats("batch", 3, "height", "width")
    return Denoise(model), {"sample": noise, "timestep": ids("batch", below=1000)}


class Guided(Denoise):
    """One step that looks at a text."""

    def forward(  # type: ignore[override]
        self, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        return self.model(sample, timestep, text, return_dict=False)[0]


@row(slow=True, batch=(1, 2), height=(16, 48, 8), width=(16, 48, 8), seq=(1, 24))
def unet_2d_condition() -> Row:
    model = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        cross_attention_dim=24,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    inputs = {
        "sample": floats("batch", 4, "height", "width"),
        "timestep": ids("batch", below=1000),
        "text": floats("batch", "seq", 24),
    }
    return Guided(model), inputs


class Decode(nn.Module):
    def __init__(self, model: AutoencoderKL) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = model.post_quant_conv, model.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant_conv(latents)).clamp(-1, 1)


class Encode(nn.Module):
    """The mean of the latents' distribution: nothing is drawn."""

    def __init__(self, model: AutoencoderKL) -> None:
        super().__init__()
        self.encoder, self.quant_conv = model.encoder, model.quant_conv

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.quant_conv(self.encoder(image)).chunk(2, dim=1)[0]


def _autoencoder() -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
    )


@row(batch=(1, 2), height=(8, 24), width=(8, 24))
def vae_decoder() -> Row:
    return Decode(_autoencoder()), {"latents": floats("batch", 4, "height", "width")}


@row(batch=(1, 2), height=(16, 48, 2), width=(16, 48, 2))
def vae_encoder() -> Row:
    return Encode(_autoencoder()), {"image": floats("batch", 3, "height", "width")}


@row(batch=(1, 2))
def dit() -> Row:
    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        norm_num_groups=4,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=10,
    )

    class Labelled(Denoise):
        def forward(  # type: ignore[override]
            self, sample: torch.Tensor, timestep: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            return self.model(sample, timestep, labels, return_dict=False)[0]

    inputs = {
        "sample": floats("batch", 4, 16, 16),
        "timestep": ids("batch", below=1000),
        "labels": ids("batch", below=10),
    }
    return Labelled(model), inputs
