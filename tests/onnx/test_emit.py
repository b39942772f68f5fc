"""`--emit-onnx`: the copy beside the bundle has the user's dims, or there is neither of both."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import tcexport
from tcexport import ExportError, UsageError
from tcexport.exporter.export import Report
from tcexport.exporter.onnx import emit
from tcexport.exporter.onnx.emit import Draft, EmittedModel
from tcexport.exporter.reference import NoAnswer

SOURCE = '''
import torch
from torch import nn


class Pairs(nn.Module):
    """Takes named parts, one of which has twice as many rows as the other."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, parts, times=2):
        rows = parts["short"].shape[0]
        both = parts["long"].reshape(rows, 2, 4).sum(1) + parts["short"] * times
        scores = self.layer(both)
        return {"scores": scores, "best": both.argmax(-1), "rows": rows, "same": parts["short"]}


torch.manual_seed(0)
model = Pairs
example_inputs = ({"long": torch.randn(6, 4), "short": torch.randn(3, 4)},)
axes = {"parts.long": ("2*n", None), "parts.short": ("n", None)}
'''


class Rows(nn.Module):
    """Attention over a batch of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(ids), src_key_padding_mask=mask)


def exported(model: nn.Module, args: Any, axes: Any, dims: Any, out: Path, **more: Any) -> Report:
    return tcexport.export(
        model.eval(),
        args,
        axes=axes,
        dynamic=dims,
        targets=("cpu:x86-64-v3",),
        out=out,
        emit_onnx=True,
        **more,
    )


def of_rows(model: nn.Module, out: Path, **more: Any) -> Report:
    """The export of a model that takes some rows."""
    return exported(model, (torch.randn(3, 4),), {"x": ("n", None)}, {"n": (1, 16)}, out, **more)


def dims_of(model: onnx.ModelProto) -> dict[str, list[Any]]:
    return {
        each.name: [dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in (*model.graph.input, *model.graph.output)
    }


def test_the_copy_has_the_users_names_and_equal_exports_give_equal_bytes(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.py").write_text(SOURCE)
        typed = ["model.py", "--dynamic", "n=1..64", "--target", "cpu:x86-64-v3", "--emit-onnx"]
        done = subprocess.run(
            [sys.executable, "-m", "tcexport", *typed], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "model.tcpkg\n"
        assert "an ONNX copy in model.onnx" in done.stderr
        assert "equals its ONNX copy" in done.stderr and "n=64" in done.stderr
        left = {each.name for each in folder.iterdir()} - {"__pycache__"}
        assert left == {"model.py", "model.onnx", "model.tcpkg"}
        found.append((folder / "model.onnx").read_bytes())
    assert found[0] == found[1]
    assert str(tmp_path).encode() not in found[0] and b"model.py" not in found[0]
    model = onnx.load_from_string(found[0])
    onnx.checker.check_model(model, full_check=True)
    assert dims_of(model) == {
        "parts.long": ["2*n", 4],
        "parts.short": ["n", 4],
        "scores": ["n", 3],
        "best": ["n"],
        "rows": [],
        "same": ["n", 4],
    }
    session = onnxruntime.InferenceSession(found[0], providers=["CPUExecutionProvider"])
    long, short = torch.randn(14, 4), torch.randn(7, 4)
    given = {"parts.long": long.numpy(), "parts.short": short.numpy()}
    best, rows, same = session.run(["best", "rows", "same"], given)
    want = (long.reshape(7, 2, 4).sum(1) + short * 2).argmax(-1)
    assert torch.equal(torch.from_numpy(best), want) and rows == 7
    assert torch.equal(torch.from_numpy(same), short)


def test_large_weights_lie_beside_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "_INLINE", 0)
    ids = torch.randint(0, 20, (2, 6))
    report = exported(
        Rows(),
        (ids, torch.zeros(2, 6, dtype=torch.bool)),
        {"ids": ("batch", "seq"), "mask": ("batch", "seq")},
        {"batch": (1, 4), "seq": (1, 32)},
        tmp_path / "m.tcpkg",
    )
    assert report.onnx == str(tmp_path / "m.onnx")
    names = sorted(each.name for each in tmp_path.iterdir())
    assert len(names) == 3 and names[1:] == ["m.onnx", "m.tcpkg"]
    assert names[0].startswith("m-") and names[0].endswith(".onnx.data")
    model = onnx.load(report.onnx, load_external_data=False)
    places = {
        each.value
        for tensor in model.graph.initializer
        for each in tensor.external_data
        if each.key == "location"
    }
    assert places == {names[0]}
    assert dims_of(model)["ids"] == ["batch", "seq"]
    compared = [each for each in report.verified if each.against == EmittedModel.name]
    assert len({tuple(each.sizes.items()) for each in compared}) >= 3
    assert not [each for each in compared if each.skipped]


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def off_by_one(x: torch.Tensor, answers: list[torch.Tensor]) -> list[torch.Tensor]:
    return [each + 1 for each in answers]


def none_of_three(x: torch.Tensor, answers: list[torch.Tensor]) -> list[torch.Tensor]:
    if x.shape[0] == 3:
        raise NoAnswer("no kernel")
    return answers


def flat(x: torch.Tensor, answers: list[torch.Tensor]) -> list[torch.Tensor]:
    return [each.reshape(-1) for each in answers]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (off_by_one, "up to 1 apart, with n=1"),
        (none_of_three, "n=3: no kernel"),
        (flat, "result as eager and as its ONNX copy gives it are"),
    ],
)
def test_another_answer_or_none_refuses_the_export_and_nothing_appears(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[torch.Tensor, list[torch.Tensor]], list[torch.Tensor]],
    said: str,
) -> None:
    original = EmittedModel.__call__
    monkeypatch.setattr(
        EmittedModel,
        "__call__",
        lambda self, leaves: changed(leaves[0], original(self, leaves)),
    )
    with pytest.raises(ExportError) as caught:
        of_rows(Doubled(), tmp_path / "m.tcpkg")
    assert caught.value.code == "TC133" and "ONNX copy" in str(caught.value)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_what_is_not_installed_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else original(name, *rest),
    )
    with pytest.raises(UsageError) as caught:
        of_rows(Doubled(), tmp_path / "m.tcpkg")
    assert caught.value.code == "TC011"
    assert package in str(caught.value) and "tcexport[onnx]" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.sum(0)
        return self.seen + x


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x)


class Distances(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x)  # the line


class Three(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, 3


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 4 else x * 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Counter, "state from call to call: seen"),
        (Noisy, "draws random numbers"),
        (Spectrum, "no complex numbers: result"),
        (Distances, "_cdist_forward"),
        (Three, "the output [1] is always 3"),
    ],
)
def test_what_has_no_place_in_a_copy_is_refused_with_the_reason(
    tmp_path: Path, model: type[nn.Module], said: str
) -> None:
    with pytest.raises(ExportError) as caught:
        of_rows(model(), tmp_path / "m.tcpkg")
    assert caught.value.code == "TC135" and said in str(caught.value)
    if model is Distances:
        assert "# the line" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_arms_of_a_branch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        exported(
            Branch(),
            (torch.randn(3, 4),),
            {"x": ("n", None)},
            None,
            tmp_path / "m.tcpkg",
            cover={"n": (1, 16)},
        )
    assert caught.value.code == "TC135" and "--cover" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_specialized_bundle_has_the_copy_of_the_whole_model(tmp_path: Path) -> None:
    report = of_rows(Doubled(), tmp_path / "m.tcpkg", specialize={"n": 8}, keep_variants=True)
    assert dims_of(onnx.load(report.onnx))["x"] == ["n", 4]
    compared = [each for each in report.verified if each.against == EmittedModel.name]
    assert len({each.variant for each in compared}) == 3  # the bundle, and its two variants
    assert not [each for each in compared if each.skipped]


def test_an_onnx_file_is_not_written_over_its_source(tmp_path: Path) -> None:
    of_rows(Doubled(), tmp_path / "m.tcpkg")
    before = (tmp_path / "m.onnx").read_bytes()
    typed = ["m.onnx", "--target", "cpu:x86-64-v3", "--emit-onnx"]
    done = subprocess.run(
        [sys.executable, "-m", "tcexport", *typed], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0 and "error[TC135]" in done.stderr
    assert "m.onnx is an ONNX file already" in done.stderr
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_the_copy_has_another_name_than_the_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        of_rows(Doubled(), tmp_path / "m.onnx")
    assert caught.value.code == "TC012" and "the bundle's own name" in str(caught.value)


def test_where_the_bundle_cannot_appear_the_copy_goes_again(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    for name in ("m-1.onnx.data", "m.onnx"):
        (tmp_path / name).write_text(name)
    (place / "m-1.onnx.data").write_text("another's")
    files = (tmp_path / "m-1.onnx.data", tmp_path / "m.onnx")
    draft = Draft(files, EmittedModel(files[-1], [], []))
    with pytest.raises(KeyboardInterrupt), draft.published(place) as shown:
        assert shown.read_text() == "m.onnx"
        raise KeyboardInterrupt
    assert [each.name for each in place.iterdir()] == ["m-1.onnx.data"]
