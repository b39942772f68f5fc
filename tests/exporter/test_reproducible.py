"""Equal exports give equal bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tcexport.artifacts.container import open_bundle

MODEL = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 3)

    def forward(self, ids, scale):
        x = self.layers(self.table(ids)) * scale[:, :, None]
        return {"mean": self.head(x.mean(1)), "max": x.amax(1)}


model = Net()
example_inputs = (torch.randint(0, 50, (2, 5)), torch.rand(2, 5))
axes = {"ids": ("batch", "seq"), "scale": ("batch", "seq")}
"""


def test_two_folders_and_two_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate(("1", "2")):
        folder = tmp_path / f"place{number}" / ("deeper" * number) / "here"
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(MODEL)
        command = [sys.executable, "-m", "tcexport", "net.py", "--dynamic", "batch,seq=1..64"]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        files.append(folder / "net.tcpkg")
    with open_bundle(files[0]) as one, open_bundle(files[1]) as two:
        assert one.manifest == two.manifest
    assert files[0].read_bytes() == files[1].read_bytes()
