"""A Hugging Face BERT with a small random configuration."""

import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
model = BertModel(
    BertConfig(
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=512,
    )
)
example_inputs = {
    "input_ids": torch.randint(0, 2000, (2, 12)),
    "attention_mask": torch.cat(
        [torch.ones(2, 8, dtype=torch.int64), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])], dim=1
    ),
}
axes = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}
