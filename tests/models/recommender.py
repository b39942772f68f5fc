"""A recommender with two inputs in a dict and two outputs in a dict."""

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, users=1000, items=5000, width=32, features=13):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.dense = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, width))
        self.score = nn.Sequential(nn.Linear(3 * width, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, batch):
        ids, features = batch["ids"], batch["features"]
        user, item = self.user(ids[:, 0]), self.item(ids[:, 1])
        dense = self.dense(features)
        score = self.score(torch.cat([user, item, dense], dim=1)).squeeze(1)
        return {"score": score.sigmoid(), "similarity": (user * item).sum(-1)}


torch.manual_seed(0)
model = Recommender()
_ids = torch.stack([torch.randint(0, 1000, (4,)), torch.randint(0, 5000, (4,))], dim=1)
example_inputs = ({"ids": _ids, "features": torch.randn(4, 13)},)
axes = {"batch.ids": ("batch", None), "batch.features": ("batch", None)}
