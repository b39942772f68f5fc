"""Large results lie in memory that is used again once nobody looks at it."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.runtime.results import WORTH


class Net(nn.Module):
    """A large result behind a reshape, a halved one, a small one, and one whose size is data's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 16)
        self.logits = nn.Linear(16, 4000)

    def forward(self, ids):
        x = self.table(ids)
        y = self.logits(x)
        return {"y": y, "halves": y.bfloat16(), "sums": x.sum(-1), "hits": ids.nonzero()}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def path(net: Net, export_once) -> Path:
    return export_once(
        "large-results", net, (torch.randint(0, 100, (2, 8)),),
        axes={"ids": ("batch", "seq")}, dynamic={"batch": (0, 8), "seq": (1, 512)},
    )  # fmt: skip


def _ids(batch: int, seq: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, (batch, seq))


def _equal(net: Net, ids: np.ndarray, got: dict) -> None:
    with torch.no_grad():
        want = net(torch.from_numpy(ids))
    for name, value in want.items():
        there = got[name]
        if value.dtype == torch.bfloat16:
            there = torch.from_numpy(there.view(np.uint16).copy()).view(torch.bfloat16)
        torch.testing.assert_close(torch.as_tensor(there), value, rtol=1e-2, atol=1e-5)


def test_results_are_eagers_whatever_was_called_before(net: Net, path: Path) -> None:
    model = tcexport.load(path)
    for seed, (batch, seq) in enumerate([(4, 128), (1, 3), (4, 128), (8, 200), (0, 9), (3, 130)]):
        ids = _ids(batch, seq, seed)
        _equal(net, ids, model(ids))


def test_results_that_are_kept_stay_as_they_are(net: Net, path: Path) -> None:
    model = tcexport.load(path)
    kept = [(ids := _ids(4, 128, seed), model(ids)) for seed in range(5)]
    rows = [model(_ids(4, 128, 9))["y"][1, 2:5]]  # a view keeps its memory, too
    copies = [row.copy() for row in rows]
    model(_ids(4, 128, 10))
    for ids, got in kept:
        _equal(net, ids, got)
    assert np.array_equal(rows[0], copies[0])


def test_memory_is_used_again_when_results_are_dropped(path: Path) -> None:
    model = tcexport.load(path)
    ids = _ids(4, 128, 0)
    places = set()
    for _ in range(8):
        result = model(ids)
        assert result["y"].nbytes >= WORTH
        places.add(result["y"].ctypes.data)
    assert len(places) == 2


def test_torch_keeps_the_memory_of_its_results(net: Net, path: Path) -> None:
    model = tcexport.load(path)
    ids = torch.from_numpy(_ids(4, 128, 0))
    kept = model(ids)["y"]
    gc.collect()
    others = [model(torch.from_numpy(_ids(4, 128, seed)))["y"] for seed in range(1, 4)]
    assert len({kept.data_ptr(), *(each.data_ptr() for each in others)}) == 4
    with torch.no_grad():
        torch.testing.assert_close(kept, net(ids)["y"])


def test_memory_of_a_large_call_goes_back_after_many_small_ones(path: Path) -> None:
    model = tcexport.load(path)
    model(_ids(8, 512, 0))
    (spare,) = model._calls.local.worker.spare
    assert spare.nbytes >= 8 * 512 * 4000 * 4
    for _ in range(100):
        model(_ids(1, 1, 0))
    assert spare.nbytes == 0


class Shared(nn.Module):
    """Results that share memory in eager, and a copy that a compiler may leave out."""

    def forward(self, x):
        y = x * 2
        return y, y.clone(), y, y.reshape(-1), y.T, y.unsqueeze(0), x, x.clone(), x * 2


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("rows", [1, 400])  # by the short way, and into memory at hand
def test_each_result_lies_in_memory_of_its_own(export_once, rows: int, library: str) -> None:
    path = export_once(
        "shared-results", Shared(), (torch.randn(4, 600),), axes={"x": ("rows", None)},
        dynamic={"rows": (1, 512)},
    )  # fmt: skip
    model = tcexport.load(path)
    x = torch.randn(rows, 600)
    want = [each.clone() for each in Shared()(x)]
    for _ in range(3):
        given = x.clone()
        results = [
            torch.as_tensor(each) for each in model(given.numpy() if library == "numpy" else given)
        ]
        for number, result in enumerate(results):
            torch.testing.assert_close(result, want[number])
            result.fill_(number)
        for number, result in enumerate(results):
            assert (result == number).all()
        assert torch.equal(given, x)
        del results, result
