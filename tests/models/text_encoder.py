"""A text encoder: token embedding, four transformer layers under a causal mask, logits."""

import torch
from torch import nn


class TextEncoder(nn.Module):
    def __init__(self, vocabulary=30000, width=512, heads=8, hidden=2048, layers=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids):
        length = input_ids.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        hidden = self.encoder(self.embedding(input_ids), mask=mask, is_causal=True)
        return self.head(hidden)


torch.manual_seed(0)
model = TextEncoder()
example_inputs = (torch.randint(0, 30000, (2, 16)),)
axes = {"input_ids": ("batch", "seq")}

# For the benchmark of the tools.
dynamic = ["batch=1..16", "seq=1..1024"]
sizes = [
    "batch=1,seq=16",
    "batch=1,seq=128",
    "batch=4,seq=128",
    "batch=1,seq=512",
    "batch=16,seq=64",
]
