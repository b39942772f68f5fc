"""Equal exports give equal bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.sbom import SBOM_NAME

from .test_repository import git

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


def test_two_folders_hours_locales_and_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    """And two clones of one commit: it is recorded, and so is that nothing was changed."""
    files = []
    places = (
        {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "COLUMNS": "80"},
        {"PYTHONHASHSEED": "2", "TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8", "COLUMNS": "200"},
    )
    for number, environment in enumerate(places):
        folder = tmp_path / f"place{number}" / ("deeper" * number) / "here"
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(MODEL)
        git(folder, "init", "-q")
        git(folder, "add", "net.py")
        git(folder, "commit", "-qm", "a model")
        hours = 1_000_000_000 + 86_400 * number
        os.utime(folder / "net.py", (hours, hours))
        command = [sys.executable, "-m", "tcexport", "net.py", "--dynamic", "batch,seq=1..64"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            umask=(0o022, 0o077)[number],
        )
        assert done.returncode == 0, done.stderr
        files.append(folder / "net.tcpkg")
    with open_bundle(files[0]) as one, open_bundle(files[1]) as two:
        assert one.manifest == two.manifest
        assert one.manifest.provenance.commit == git(files[0].parent, "rev-parse", "HEAD")
        assert one.manifest.provenance.commit_state == "clean"
        assert SBOM_NAME in one.offsets
    assert files[0].read_bytes() == files[1].read_bytes()
