"""``weights update``: what comes out is what an export with the new weights gives, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tcexport
from tcexport.artifacts.container import open_bundle
from tcexport.artifacts.errors import TcexportError, UsageError
from tcexport.artifacts.sbom import SBOM_NAME
from tcexport.artifacts.update import update_weights
from tcexport.runtime import load
from tcexport.tools import cli

LEVEL = "cpu:x86-64-v3"


class Everything(nn.Module):
    """One of each way that a stored tensor is made of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8, affine=False), nn.ReLU(),
            nn.Conv2d(8, 4, 3, groups=2), nn.ConvTranspose2d(4, 4, 2, groups=2),
        )  # fmt: skip
        self.line = nn.Conv1d(4, 5, 3, padding=1)
        self.table = nn.Embedding(20, 5)
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 20, bias=False)
        self.head.weight = self.table.weight
        self.matrix = nn.Parameter(torch.randn(20, 7))
        self.last = nn.Linear(7, 6).to(torch.bfloat16)
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.register_buffer("mask", torch.ones(6), persistent=False)
        self.factor = nn.Parameter(torch.tensor([0.5]))

    def forward(self, image: Any, ids: Any) -> Any:
        x = self.image(image).flatten(2)[:, :, :6]
        x = self.line(x).transpose(1, 2)[:, self.order]
        x = self.norm(x + self.table(ids)[:, None])
        x = torch.mm(self.head(x).mean(1), self.matrix) * self.factor
        return self.last(x.to(torch.bfloat16)).float() * self.mask


def made(seed: int) -> Everything:
    torch.manual_seed(seed)
    model = Everything()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and name != "factor":
                value.copy_(torch.rand(value.shape) + 0.1)
    return model.eval()


ARGS = (torch.rand(2, 3, 8, 8), torch.tensor([1, 19]))
OPTIONS: dict[str, Any] = {
    "axes": {"image": ("batch", None, None, None), "ids": ("batch",)},
    "dynamic": {"batch": (1, 8)},
    "targets": (LEVEL,),
}


def saved(path: Path, state: dict[str, torch.Tensor]) -> Path:
    save_file({name: value.contiguous().clone() for name, value in state.items()}, path)
    return path


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An export of the model with one seed, and one of it with another."""
    folder = tmp_path_factory.mktemp("update")
    paths = folder / "one.tcpkg", folder / "two.tcpkg"
    for seed, path in enumerate(paths):
        tcexport.export(made(seed), ARGS, out=path, **OPTIONS)
    return paths


def contents(path: Path) -> dict[str, bytes]:
    with open_bundle(path) as bundle:
        bundle.verify()
        return {each.name: bytes(bundle.view(each.name)) for each in bundle.manifest.members}


def test_it_equals_a_fresh_export_with_these_weights(
    bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    one, two = bundles
    new = saved(tmp_path / "new.safetensors", made(1).state_dict())
    done = update_weights(one, new, tmp_path / "out.tcpkg")
    assert len(done.changed) > 10 and done.kept == ()
    assert contents(one)["weights.safetensors"] != contents(two)["weights.safetensors"]
    found, wanted = contents(tmp_path / "out.tcpkg"), contents(two)
    assert found.keys() == wanted.keys()
    for name in found.keys() - {SBOM_NAME}:
        assert found[name] == wanted[name], name
    with open_bundle(tmp_path / "out.tcpkg") as out, open_bundle(two) as fresh:
        made_of = msgspec.structs.replace(out.manifest.provenance, weights_sha256="")
        same = msgspec.structs.replace(
            out.manifest, provenance=made_of, members=fresh.manifest.members
        )
        assert same == fresh.manifest
        assert len(out.manifest.provenance.weights_sha256) == 64
    image, ids = (each.numpy() for each in ARGS)
    with torch.no_grad():
        expected = made(1)(*ARGS).numpy()
    np.testing.assert_allclose(load(tmp_path / "out.tcpkg")(image, ids), expected, rtol=2e-2)


def test_its_own_weights_change_nothing(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    state = made(0).state_dict()
    del state["head.weight"]  # one name of a tied tensor will do
    del state["order"], state["factor"]  # frozen: kept
    del state["image.1.num_batches_tracked"]  # nothing of the graph
    done = update_weights(bundles[0], saved(tmp_path / "w", state), tmp_path / "out.tcpkg")
    assert done.changed == () and set(done.kept) == {"order", "factor"}
    assert (
        contents(tmp_path / "out.tcpkg")["weights.safetensors"]
        == contents(bundles[0])["weights.safetensors"]
    )


Edit = Callable[[dict[str, torch.Tensor]], object]


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (lambda s: s.pop("matrix"), "TC015", "matrix: not in the file"),
        (lambda s: s.update(extra=torch.ones(2)), "TC015", "extra: not in the model"),
        (
            lambda s: s.update({"norm.wieght": s.pop("norm.weight")}),
            "TC015",
            "norm.wieght: not in the model; norm.weight is",
        ),
        (
            lambda s: s.update(matrix=torch.ones(7, 20)),
            "TC015",
            "matrix: shape [7, 20], the model has [20, 7]",
        ),
        (lambda s: s.update(matrix=s["matrix"].half()), "TC015", "matrix: float16"),
        (lambda s: s.update({"head.weight": torch.ones(20, 5)}), "TC015", "are one tensor"),
        (lambda s: s.update(order=torch.tensor([0, 1, 2])), "TC016", "order"),
        (lambda s: s.update(factor=torch.tensor([0.25])), "TC016", "factor"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    bundles: tuple[Path, Path], tmp_path: Path, edit: Edit, code: str, words: str
) -> None:
    state = made(1).state_dict()
    edit(state)
    new = saved(tmp_path / "new", state)
    with pytest.raises(UsageError) as caught:
        update_weights(bundles[0], new, tmp_path / "out.tcpkg")
    assert caught.value.code == code
    assert words in str(caught.value)
    assert not (tmp_path / "out.tcpkg").exists()


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04pickle", b"\x10" + bytes(30)])
def test_what_is_no_file_of_weights_is_refused(
    bundles: tuple[Path, Path], tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "new").write_bytes(content)
    with pytest.raises(UsageError, match="TC015"):
        update_weights(bundles[0], tmp_path / "new", tmp_path / "out.tcpkg")


class Folded(nn.Module):
    """The exponential is taken at export: no recipe tells of it."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.randn(4))

    def forward(self, x: Any) -> Any:
        return x * torch.exp(self.log)


def test_a_constant_that_torch_folded_is_refused_not_left_stale(tmp_path: Path) -> None:
    model = Folded().eval()
    tcexport.export(model, (torch.rand(2, 4),), out=tmp_path / "m.tcpkg", targets=(LEVEL,))
    same = saved(tmp_path / "same", model.state_dict())
    assert update_weights(tmp_path / "m.tcpkg", same, tmp_path / "n.tcpkg").changed == ()
    other = saved(tmp_path / "other", {"log": torch.zeros(4)})
    with pytest.raises(TcexportError, match=r"TC016(.|\n)*log: goes into aten.exp"):
        update_weights(tmp_path / "m.tcpkg", other, tmp_path / "n.tcpkg")


def test_the_command_writes_over_the_bundle_itself_and_is_told_apart_by_diff(
    bundles: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.tcpkg"
    path.write_bytes(bundles[0].read_bytes())
    new = saved(tmp_path / "new", made(1).state_dict())
    assert cli.run_command(["weights", "update", str(path), str(new), "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert cli.run_command(["diff", str(bundles[1]), str(path)]) == 1
    told = capsys.readouterr().out
    assert "weights_sha256" in told and "contract" not in told and "code" not in told
