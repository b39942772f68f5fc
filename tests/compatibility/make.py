"""Writes the bundles that later versions must read: ``python tests/compatibility/make.py FOLDER``.

Run once for a version, in its checkout; what is there is never written again. A bundle is kept
*hollow*: zeros stand for TVM's runtime library, 3 MB, which is in its wheel; and packed with xz.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tcexport
from tcexport.artifacts.container import open_bundle


class PlusOne(nn.Module):
    def forward(self, x):
        return x + 1


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return {"scores": self.layers(x), "rows": x.shape[0]}


class Words(nn.Module):
    """Indices from the caller and computed ones, a table of positions, steps, two equal axes."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.position = nn.Parameter(torch.randn(12, 8))

    def forward(self, ids, mask):
        x = self.table(ids) + self.position[: ids.shape[1]]
        last = mask.sum(1) - 1
        return x[torch.arange(ids.shape[0]), last], x * mask[:, :, None]


def models():
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 4))
    yield "plus_one", PlusOne(), (torch.randn(3, 4),), {"x": ("n", None)}, {"n": (0, 64)}
    yield "perceptron", Perceptron(), (torch.randn(3, 5),), {"x": ("batch", None)}, {"batch": None}
    yield (
        "words",
        Words(),
        (ids, torch.ones(2, 4, dtype=torch.int64)),
        {"ids": ("batch", "seq"), "mask": ("batch", "seq")},
        {"batch": (1, 16), "seq": (2, 12, 2)},
    )


def hollow(path: Path) -> bytes:
    """The bytes of a bundle with zeros for the runtime library."""
    data = bytearray(path.read_bytes())
    with open_bundle(path) as bundle:
        for runtime in bundle.manifest.runtimes:
            start = bundle.offsets[runtime.library]
            size = len(bundle.view(runtime.library))
            data[start : start + size] = bytes(size)
    return bytes(data)


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, model, args, axes, dynamic in models():
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / f"{name}.tcpkg"
            tcexport.export(
                model.eval(),
                args,
                axes=axes,
                dynamic=dynamic,
                out=path,
                targets=("cpu:x86-64-v3",),
            )
            (folder / f"{name}.tcpkg.xz").write_bytes(lzma.compress(hollow(path), preset=9))
        with torch.no_grad():
            result = model(*args)
        flat = result.values() if isinstance(result, dict) else result
        outputs = [result] if isinstance(result, torch.Tensor) else list(flat)
        np.savez(
            folder / f"{name}.npz",
            **{f"in{number}": each.numpy() for number, each in enumerate(args)},
            **{f"out{number}": np.asarray(each) for number, each in enumerate(outputs)},
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
