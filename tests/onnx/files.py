"""ONNX files made by hand, and what ONNX Runtime says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from tcexport.exporter.eager import same_numbers
from tcexport.exporter.onnx.source import Opened, open_onnx

KINDS = {
    "float": TensorProto.FLOAT,
    "double": TensorProto.DOUBLE,
    "half": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
TORCH = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "int32": torch.int32,
    "int64": torch.int64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def made(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[str, Sequence[int | str | None]]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    **more: Any,
) -> onnx.ModelProto:
    """A model; ``inputs``: a kind of `KINDS` and the dims; ``constants``: arrays by name."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, KINDS[kind], dims) for n, (kind, dims) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more
    )
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False)
    for wanted, found in zip(model.graph.output, inferred.graph.output, strict=True):
        wanted.CopyFrom(found)
        if not wanted.type.tensor_type.HasField("shape"):  # not inferred: of the first input's form
            kind, dims = next(iter(inputs.values()))
            names = [f"{wanted.name}_{axis}" for axis, _ in enumerate(dims)]
            wanted.CopyFrom(helper.make_tensor_value_info(wanted.name, KINDS[kind], names))
    return model


def saved(folder: Path, model: onnx.ModelProto, name: str = "net.onnx") -> Path:
    path = folder / name
    onnx.save(model, path)
    return path


def values(kind: str, shape: Sequence[int], seed: int, high: int = 5) -> torch.Tensor:
    """Numbers that an operator can tell apart: with signs, and with ties among integers."""
    generator = torch.Generator().manual_seed(seed)
    dtype = TORCH[kind]
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low = 0 if dtype == torch.uint8 else -high
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def leaves_at(opened: Opened, sizes: Mapping[str, int], high: int = 5) -> list[torch.Tensor]:
    names = {dtype: kind for kind, dtype in TORCH.items()}
    return [
        values(
            names[each.dtype],
            [sizes[dim] if isinstance(dim, str) else int(dim or 0) for dim in each.dims],
            seed,
            high,
        )
        for seed, each in enumerate(opened.graph.inputs)
    ]


def agree(got: Any, want: Sequence[torch.Tensor]) -> None:
    found = list(got.values()) if isinstance(got, dict) else [got]
    assert len(found) == len(want)
    for a, b in zip(found, want, strict=True):
        same, error = same_numbers(a, b)
        assert same, f"{error}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}\n{a}\n{b}"


def as_onnxruntime(path: Path, *sizes: Mapping[str, int], leaves: Sequence[Any] = ()) -> Opened:
    """The file is read, and gives what ONNX Runtime gives, at all of these sizes."""
    opened = open_onnx(path)
    for each in sizes or ({},):
        given = list(leaves) or leaves_at(opened, each)
        with torch.no_grad():
            got = opened.module(*given)
        agree(got, opened.reference(given))
    return opened
