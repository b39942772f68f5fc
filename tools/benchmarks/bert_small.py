"""BERT of the size "small" (4 layers, width 512) from transformers, with padding masks."""

import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
model = BertModel(
    BertConfig(
        vocab_size=30522,
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2048,
        max_position_embeddings=512,
    )
)
_lengths = torch.tensor([12, 8])
example_inputs = {
    "input_ids": torch.randint(0, 30522, (2, 12)),
    "attention_mask": (torch.arange(12) < _lengths[:, None]).long(),
}
axes = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}

dynamic = ["batch=1..16", "seq=1..512"]
sizes = ["batch=1,seq=16", "batch=4,seq=128", "batch=1,seq=384"]
