"""From `export` to a call: a bundle with the compiler's own machine code, loaded on the stand-in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import tcexport
from tcexport.artifacts.errors import GuardError
from tcexport.lowering.targets import gpu_target

from ..lowering.gpu_numbers import model_of
from .exported import ARCHITECTURE, Exported, exported_for_gpu

TOLERANCE = 2e-3  # float16
SIZES = ((2, 9), (1, 1), (3, 70), (4, 128))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The encoder in float16 with dynamic sizes, exported for one architecture."""
    torch.manual_seed(0)
    model, (example, *_), _ = model_of("encoder", torch.float16)
    return exported_for_gpu(
        tmp_path_factory.mktemp("export"),
        model,
        example,
        axes={"ids": ("batch", "seq"), "keep": ("batch", "seq")},
        dynamic={"batch": (1, 4), "seq": (1, 128)},
    )


@pytest.mark.parametrize("order", ("", "reverse"))
def test_an_exported_encoder_gives_eagers_numbers_at_every_size(
    exported: Exported,
    kernels: Path,
    driver: Callable[..., None],
    libraries: tuple[ctypes.CDLL, ctypes.CDLL],
    order: str,
) -> None:
    driver(devices="9.0", order=order)
    loaded = tcexport.load(exported.for_standin(kernels), device="cuda")
    assert loaded.device == "cuda:0"
    assert loaded.target.name == gpu_target([ARCHITECTURE]).name
    generator = torch.Generator().manual_seed(1)
    for batch, seq in SIZES:
        ids = torch.randint(0, 50, (batch, seq), generator=generator)
        keep = torch.ones(batch, seq, dtype=torch.bool)
        keep[0, seq // 2 + 1 :] = False
        with torch.no_grad():
            wanted = exported.model(ids, keep).numpy()
        found = loaded(ids.numpy(), keep.numpy())
        assert found.dtype == np.float16 and found.shape == wanted.shape
        np.testing.assert_allclose(
            found.astype(np.float32), wanted.astype(np.float32), rtol=0, atol=TOLERANCE
        )
    recorded = tcexport.load(exported.path, device="cuda", cuda_graphs=True)
    for seed in range(4):
        ids = torch.randint(0, 50, (3, 70), generator=generator).numpy()
        keep = np.random.default_rng(seed).random((3, 70)) < 0.7
        np.testing.assert_array_equal(recorded(ids, keep), loaded(ids, keep))
    assert recorded.metrics.replays == 2
    for ids, what in (
        (np.zeros((1, 129), np.int64), "TC301"),
        (np.full((1, 3), 50, np.int64), "TC309"),
    ):
        with pytest.raises(GuardError, match=what):
            loaded(ids, np.ones(ids.shape, np.bool_))
    libraries[0].standin_check()  # no kernel wrote beside its memory


class Sampler(torch.nn.Module):
    """The last step of a decoder: few rows by a weight in parts, and the most likely that are left."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(1024, 1200)

    def forward(self, x: torch.Tensor, most: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = self.head(x)
        values, places = logits.float().sort(dim=-1, descending=True, stable=True)
        before = values.softmax(-1).cumsum(-1) - values.softmax(-1)
        kept = values.masked_fill(before > most[:, None], float("-inf"))
        left = torch.full_like(kept, float("-inf")).scatter(-1, places, kept)
        return left, *logits.topk(5)


def test_scans_sorts_writes_and_parts_are_recorded_as_graphs(
    tmp_path: Path, kernels: Path, libraries: tuple[ctypes.CDLL, ctypes.CDLL]
) -> None:
    torch.manual_seed(0)
    made = exported_for_gpu(
        tmp_path,
        Sampler().half(),
        (torch.randn(3, 1024, dtype=torch.float16), torch.rand(3)),
        axes={"x": ("n", None), "most": ("n",)},
        dynamic={"n": (1, 40)},
    )
    assert "gemm_part" in made.source
    plain = tcexport.load(made.for_standin(kernels), device="cuda")
    recorded = tcexport.load(made.path, device="cuda", cuda_graphs=True)
    for rows in (3, 20, 3, 20, 3, 20):
        x, most = torch.randn(rows, 1024, dtype=torch.float16), torch.rand(rows)
        found = plain(x.numpy(), most.numpy())
        for got, same in zip(recorded(x.numpy(), most.numpy()), found, strict=True):
            np.testing.assert_array_equal(got, same)
        with torch.no_grad():
            wanted = made.model(x, most)
        np.testing.assert_allclose(found[1], wanted[1].numpy(), rtol=0, atol=TOLERANCE)
        hidden = np.isinf(found[0]) != np.isinf(wanted[0].numpy())
        assert hidden.sum() <= rows  # where a sum is as large as the limit, give or take a rounding
    assert recorded.metrics.replays == 2
    libraries[0].standin_check()
