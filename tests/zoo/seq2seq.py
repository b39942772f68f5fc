"""Encoders with decoders, for translation and summaries: logits for given tokens on both sides."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tcexport.tools.zoo_rows import Row, ids, mask, row

BOTH = {
    "input_ids": ids("batch", "seq"),
    "attention_mask": mask("batch", "seq"),
    "decoder_input_ids": ids("batch", "out"),
}


class Logits(torch.nn.Module):
    """Both sides at once; nothing is cached."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
    ) -> torch.Tensor:
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            use_cache=False,
        ).logits


T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}


@row(batch=(1, 4), seq=(1, 40))
def t5_encoder() -> Row:
    model = hf.T5EncoderModel(hf.T5Config(**T5))
    return model, {"input_ids": ids("batch", "seq"), "attention_mask": mask("batch", "seq")}


@row(slow=True, batch=(1, 4), seq=(1, 40), out=(1, 24))
def t5() -> Row:
    return Logits(hf.T5ForConditionalGeneration(hf.T5Config(**T5))), BOTH


@row(batch=(1, 4), seq=(1, 40), out=(1, 24))
def bart() -> Row:
    return Logits(hf.BartForConditionalGeneration(hf.BartConfig(**BART))), BOTH


@row(slow=True, batch=(1, 4), seq=(1, 40), out=(1, 24))
def marian() -> Row:
    config = hf.MarianConfig(pad_token_id=0, decoder_start_token_id=1, **BART)
    return Logits(hf.MarianMTModel(config)), BOTH


@row(slow=True, batch=(1, 4), seq=(1, 40), out=(1, 24))
def pegasus() -> Row:
    return Logits(hf.PegasusForConditionalGeneration(hf.PegasusConfig(**BART))), BOTH
