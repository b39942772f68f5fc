"""BERT-base from transformers with random weights (12 layers, 438 MB): what an export of it costs."""

import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
model = BertModel(BertConfig())
example_inputs = {
    "input_ids": torch.randint(0, 30522, (2, 16)),
    "attention_mask": torch.ones(2, 16, dtype=torch.int64),
}
axes = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}
