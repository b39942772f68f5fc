"""Transformers on images, with height and width dynamic where the model takes any."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tcexport.tools.zoo_rows import Row, floats, ids, lively, mask, row, settled

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
IMAGE = {"pixel_values": floats("batch", 3, "height", "width")}


class AnySize(torch.nn.Module):
    """A model that takes images of any size, and is told so."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values, interpolate_pos_encoding=True).last_hidden_state


@row(batch=(1, 4), height=(16, 64, 8), width=(16, 64, 8))
def vit() -> Row:
    return AnySize(hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **SMALL))), IMAGE


@row(batch=(1, 4))
def vit_fixed() -> Row:
    model = hf.ViTForImageClassification(hf.ViTConfig(image_size=32, patch_size=8, **SMALL))
    return model, {"pixel_values": floats("batch", 3, 32, 32)}


@row(slow=True, batch=(1, 4), height=(16, 64, 8), width=(16, 64, 8))
def deit() -> Row:
    return AnySize(hf.DeiTModel(hf.DeiTConfig(image_size=32, patch_size=8, **SMALL))), IMAGE


@row(batch=(1, 4), height=(16, 64, 8), width=(16, 64, 8))
def dinov2() -> Row:
    config = hf.Dinov2Config(
        image_size=32,
        patch_size=8,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    return hf.Dinov2Model(config), IMAGE


@row(batch=(1, 4))
def beit() -> Row:
    model = hf.BeitModel(hf.BeitConfig(image_size=32, patch_size=8, **SMALL))
    return model, {"pixel_values": floats("batch", 3, 32, 32)}


@row(slow=True, batch=(1, 4))
def siglip() -> Row:
    config = hf.SiglipVisionConfig(image_size=32, patch_size=8, **SMALL)
    return hf.SiglipVisionModel(config), {"pixel_values": floats("batch", 3, 32, 32)}


@row(batch=(1, 4), height=(16, 64, 8), width=(16, 64, 8))
def clip_vision() -> Row:
    config = hf.CLIPVisionConfig(image_size=32, patch_size=8, **SMALL)
    return AnySize(hf.CLIPVisionModel(config)), IMAGE


@row(batch=(1, 4), seq=(1, 40))
def clip_text() -> Row:
    config = hf.CLIPTextConfig(vocab_size=99, max_position_embeddings=64, eos_token_id=98, **SMALL)
    model = hf.CLIPTextModel(config)
    return model, {"input_ids": ids("batch", "seq"), "attention_mask": mask("batch", "seq")}


@row(slow=True, batch=(1, 4), height=(32, 128, 4), width=(32, 128, 4))
def swin() -> Row:
    config = hf.SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return AnySize(hf.SwinModel(config)), IMAGE


@row(slow=True, batch=(1, 4))
def swinv2() -> Row:
    config = hf.Swinv2Config(
        image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return hf.Swinv2Model(config), {"pixel_values": floats("batch", 3, 64, 64)}


@row(batch=(1, 4), height=(32, 96, 32), width=(32, 96, 32))
def segformer() -> Row:
    config = hf.SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[4, 2],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
    )
    return hf.SegformerForSemanticSegmentation(config), IMAGE


@row(slow=True, batch=(1, 2), height=(64, 96, 32), width=(64, 96, 32))
def detr() -> Row:
    backbone = hf.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], out_features=["stage2"]
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_queries=8,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )
    model = hf.DetrForObjectDetection(config)
    pixels = mask("batch", "height", "width")
    return model, {**IMAGE, "pixel_mask": pixels}


@row(batch=(1, 4))
def yolos() -> Row:
    config = hf.YolosConfig(image_size=[32, 48], patch_size=8, num_detection_tokens=5, **SMALL)
    return hf.YolosForObjectDetection(config), {"pixel_values": floats("batch", 3, 32, 48)}


@row(slow=True, batch=(1, 4), height=(64, 192, 64), width=(64, 192, 64))
def mobilevit() -> Row:
    config = hf.MobileViTConfig(
        image_size=64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
        num_attention_heads=2,
    )
    return settled(hf.MobileViTModel(config), IMAGE, batch=4, height=64, width=64), IMAGE


@row(batch=(1, 4), height=(32, 128, 32), width=(32, 128, 32))
def poolformer() -> Row:
    config = hf.PoolFormerConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32])
    return hf.PoolFormerForImageClassification(config), IMAGE


@row(slow=True, batch=(1, 2))
def dpt() -> Row:
    config = hf.DPTConfig(
        image_size=32,
        patch_size=16,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        is_hybrid=False,
    )
    return lively(hf.DPTForDepthEstimation(config)), {"pixel_values": floats("batch", 3, 32, 32)}
