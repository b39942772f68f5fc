"""Whole models from ONNX files: the bundle beside ONNX Runtime at many sizes, and outside refused."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import tcexport
from tcexport import ExportError, GuardError
from tcexport.exporter.export import Report, export_source
from tcexport.exporter.onnx.reference import OnnxRuntime
from tcexport.exporter.options import dynamic_from_python
from tcexport.exporter.source import load_source

from .files import made, saved, values


def bundled(path: Path, dynamic: Mapping[str, Any]) -> Report:
    return export_source(
        load_source(str(path)),
        dynamic=dynamic_from_python(dict(dynamic)),
        targets=("cpu:x86-64-v3",),
        out=path.with_suffix(".tcpkg"),
    )


def require_same(path: Path, calls: Sequence[Sequence[torch.Tensor]]) -> Any:
    """The bundle's answers are ONNX Runtime's."""
    model = tcexport.load(path.with_suffix(".tcpkg"))
    graph = onnx.load(path, load_external_data=False).graph
    names = [[each.name for each in part] for part in (graph.input, graph.output)]
    reference = OnnxRuntime(path, *names)
    for call in calls:
        got = model(*(each.numpy() for each in call))
        found = list(got.values()) if isinstance(got, dict) else [got]
        for a, b in zip(found, reference(call), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-5)
    return model


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        return self.head(self.layer(x, src_key_padding_mask=mask == 0))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.deep, self.up = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.hardswish(self.norm(self.first(x)))
        y = F.max_pool2d(y + self.deep(y), 3, 2, 1)
        larger = F.interpolate(self.up(y), scale_factor=2, mode="bilinear")
        return self.head(y.mean((2, 3))), F.pad(larger, (1, 2, 0, 1), mode="reflect")


def by_torch(
    model: nn.Module, args: tuple[Any, ...], shapes: Any, path: Path, opset: int = 18
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            args,
            str(path),
            dynamo=True,
            dynamic_shapes=shapes,
            opset_version=opset,
            verbose=False,
        )


@pytest.mark.parametrize("opset", [18, 23])
def test_an_encoder_that_torch_wrote(tmp_path: Path, opset: int) -> None:
    torch.manual_seed(0)
    batch, seq = torch.export.Dim("batch"), torch.export.Dim("seq")
    args = (torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64))
    path = tmp_path / "encoder.onnx"
    encoder = Encoder().eval()
    by_torch(encoder, args, ({0: batch, 1: seq},) * 2, path, opset)
    with pytest.raises(ExportError, match="the trace needs seq <= 64"):
        bundled(path, {"seq": (1, 128)})
    report = bundled(path, {"seq": (1, 64), "batch": (1, 8)})
    compared = {each.against for each in report.verified if not each.skipped}
    assert compared == {"eager", "ONNX Runtime"}
    calls = [
        (torch.randint(0, 50, (b, s)), (torch.arange(s) < s - s // 3).long().expand(b, s))
        for b, s in ((1, 1), (2, 7), (3, 64), (8, 33))
    ]
    # ONNX Runtime's Attention of opset 23 takes no mask that is one row for all queries.
    model = require_same(path, calls if opset < 23 else ())
    for ids, mask in calls:
        want = encoder(ids, mask).detach().numpy()
        np.testing.assert_allclose(model(ids.numpy(), mask.numpy()), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(GuardError, match="seq"):
        model(*(np.ones((2, 65), np.int64),) * 2)
    with pytest.raises(GuardError):
        model(np.full((1, 4), 50), np.ones((1, 4), np.int64))


def test_a_convolutional_net_that_torch_wrote(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dims = {0: torch.export.Dim("batch")} | {
        axis: 8 * torch.export.Dim(name) for axis, name in ((2, "h"), (3, "w"))
    }
    path = tmp_path / "images.onnx"
    by_torch(Images(), (torch.randn(2, 3, 32, 40),), (dims,), path)
    bundled(path, {"batch": (1, 4), "h": (1, 8), "w": (1, 8)})
    calls = [
        (values("float", (b, 3, 8 * h, 8 * w), b),) for b, h, w in ((1, 1, 1), (2, 3, 4), (4, 8, 5))
    ]
    model = require_same(path, calls)
    with pytest.raises(GuardError):
        model(np.zeros((1, 3, 12, 16), np.float32))


def layered(opset: int) -> onnx.ModelProto:
    """A recurrent layer over a dynamic number of steps, quantized weights, reductions."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r", "b"], ["all", "last"], hidden_size=5),
        helper.make_node("Squeeze", ["all", "one"], ["flat"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["head"], axis=1),
        helper.make_node("MatMul", ["flat", "head"], ["scores"], name="/head"),
        helper.make_node("Softmax", ["scores"], ["soft"], axis=-1),
        helper.make_node("ReduceMax", ["soft"], ["top"], axes=[0], keepdims=0),
        helper.make_node("CumSum", ["soft", "zeroth"], ["sums"]),
    ]
    constants = {
        "w": rng.normal(size=(1, 20, 3)).astype(np.float32),
        "r": rng.normal(size=(1, 20, 5)).astype(np.float32),
        "b": rng.normal(size=(1, 40)).astype(np.float32),
        "one": np.array([1]),
        "zeroth": np.int64(0),
        "q": rng.integers(-100, 100, (5, 4)).astype(np.int8),
        "scale": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
        "zero": np.array([0, 1, -1, 5], np.int8),
    }
    inputs: dict[str, Any] = {"x": ("float", ["batch", "steps", 3])}
    return made(nodes, inputs, ["sums", "top", "last"], constants, opset)


def test_a_graph_of_opset_13_with_external_data(tmp_path: Path) -> None:
    path = tmp_path / "layered.onnx"
    model = layered(13)
    onnx.save(model, path, save_as_external_data=True, location="layered.bin", size_threshold=64)
    bundled(path, {"batch": (1, 4), "steps": None})
    calls = [(values("float", (b, s, 3), s),) for b, s in ((1, 1), (2, 9), (4, 40))]
    loaded = require_same(path, calls)
    with pytest.raises(GuardError, match="batch <= 4"):
        loaded(np.zeros((5, 2, 3), np.float32))


def test_a_filled_tensor_in_a_bundle(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node(
            "ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.array([2.5], "f"))
        ),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    path = saved(tmp_path, made(nodes, {"x": ("float", ["n", "m"])}, ["y"]))
    bundled(path, {})
    require_same(path, [(values("float", size, 0),) for size in ((1, 1), (3, 7))])


@pytest.mark.parametrize("steps", [1, 3])
def test_a_step_of_a_quantizer_is_no_other_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The order of the sums before it decides between two of them, and not between four."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sums"]),
        helper.make_node("QuantizeLinear", ["sums", "scale", "zero"], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"]),
    ]
    constants = {
        "w": rng.normal(size=(1024, 256)).astype(np.float32),
        "scale": np.float32(1),
        "zero": np.int8(0),
    }
    path = saved(tmp_path, made(nodes, {"x": ("float", ["n", 1024])}, ["y"], constants))
    original = OnnxRuntime.__call__

    def other(self: OnnxRuntime, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        (found,) = original(self, leaves)
        found[0, 0] += steps
        return [found]

    monkeypatch.setattr(OnnxRuntime, "__call__", other)
    if steps == 1:
        report = bundled(path, {"n": (1, 64)})
        assert [each.undecided for each in report.verified if each.against == "ONNX Runtime"]
        return
    with pytest.raises(ExportError, match="TC133"):
        bundled(path, {"n": (1, 64)})


def test_another_answer_than_onnx_runtimes_refuses_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, layered(13))
    original = OnnxRuntime.__call__
    monkeypatch.setattr(
        OnnxRuntime, "__call__", lambda self, leaves: [2 * each for each in original(self, leaves)]
    )
    with pytest.raises(ExportError) as caught:
        bundled(path, {})
    assert caught.value.code == "TC133" and "ONNX Runtime" in str(caught.value)
    assert not path.with_suffix(".tcpkg").exists()
