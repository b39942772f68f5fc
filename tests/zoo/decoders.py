"""Language models that read from left to right, without a cache: logits for a whole prompt."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from tcexport.tools.zoo_rows import Row, ids, mask, row

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
TEXT = {"input_ids": ids("batch", "seq"), "attention_mask": mask("batch", "seq")}


class Prompt(torch.nn.Module):
    """The logits of a causal language model; nothing is cached."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).logits


@row(batch=(1, 4), seq=(1, 40))
def gpt2() -> Row:
    config = hf.GPT2Config(vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    return Prompt(hf.GPT2LMHeadModel(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def opt() -> Row:
    config = hf.OPTConfig(
        vocab_size=99,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    )
    return Prompt(hf.OPTForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def llama() -> Row:
    return Prompt(hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **SMALL))), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def qwen2() -> Row:
    return Prompt(hf.Qwen2ForCausalLM(hf.Qwen2Config(num_key_value_heads=2, **SMALL))), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def qwen3() -> Row:
    config = hf.Qwen3Config(num_key_value_heads=2, head_dim=8, **SMALL)
    return Prompt(hf.Qwen3ForCausalLM(config)), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def gemma() -> Row:
    config = hf.GemmaConfig(num_key_value_heads=1, head_dim=8, **SMALL)
    return Prompt(hf.GemmaForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def gemma2() -> Row:
    config = hf.Gemma2Config(num_key_value_heads=2, head_dim=8, sliding_window=16, **SMALL)
    return Prompt(hf.Gemma2ForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def mistral() -> Row:
    config = hf.MistralConfig(num_key_value_heads=2, sliding_window=16, **SMALL)
    return Prompt(hf.MistralForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def phi() -> Row:
    return Prompt(hf.PhiForCausalLM(hf.PhiConfig(**SMALL))), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def phi3() -> Row:
    return Prompt(hf.Phi3ForCausalLM(hf.Phi3Config(num_key_value_heads=2, **SMALL))), TEXT


@row(batch=(1, 4), seq=(1, 40))
def mixtral() -> Row:
    config = hf.MixtralConfig(
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **SMALL
    )
    return Prompt(hf.MixtralForCausalLM(config)), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def gpt_neox() -> Row:
    return Prompt(hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL))), TEXT


@row(batch=(1, 4), seq=(1, 40))
def bloom() -> Row:
    config = hf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)
    return Prompt(hf.BloomForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def falcon() -> Row:
    config = hf.FalconConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    return Prompt(hf.FalconForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def gptj() -> Row:
    config = hf.GPTJConfig(
        vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4
    )
    return Prompt(hf.GPTJForCausalLM(config)), TEXT


@row(slow=True, batch=(1, 4), seq=(1, 40))
def olmo2() -> Row:
    return Prompt(hf.Olmo2ForCausalLM(hf.Olmo2Config(num_key_value_heads=2, **SMALL))), TEXT


@row(batch=(1, 4), seq=(1, 40))
def qwen2_moe() -> Row:
    config = hf.Qwen2MoeConfig(
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        **SMALL,
    )
    return Prompt(hf.Qwen2MoeForCausalLM(config)), TEXT


@row(batch=(1, 4), seq=(1, 40))
def gpt_neo() -> Row:
    config = hf.GPTNeoConfig(
        vocab_size=99,
        max_position_embeddings=64,
        hidden_size=32,
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        num_heads=4,
        window_size=8,
    )
    return Prompt(hf.GPTNeoForCausalLM(config)), TEXT
