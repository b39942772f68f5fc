"""`agree`: export a small module, lower it in this process, run it, compare with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx.experimental._config as fx_config
import tvm
import tvm_ffi
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from tvm import relax

from tcexport.artifacts.weights import read_weights
from tcexport.lowering import worker
from tcexport.lowering.decompose import decompose

TARGET = "x86-64-v3"
Call = tuple[Any, ...]


class Each(nn.Module):
    """Several functions of the same arguments as one module: one compilation for all of them."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Any) -> Any:
        return tuple(function(*args) for function in self.functions)


def trace(module: nn.Module, args: Call, dynamic: Any = None) -> torch.export.ExportedProgram:
    """Export and decompose, every axis dynamic unless ``dynamic`` says otherwise."""
    args = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, args)
    auto = torch.export.Dim.AUTO

    def every_axis(leaf: Any) -> Any:
        return dict.fromkeys(range(leaf.dim()), auto) if isinstance(leaf, torch.Tensor) else None

    if dynamic is None:
        dynamic = tree_map(every_axis, args)
        if isinstance(module, Each):
            dynamic = (dynamic,)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.no_grad(),
            fx_config.patch(backed_size_oblivious=True, use_duck_shape=False),
        ):
            program = torch.export.export(module, args, dynamic_shapes=dynamic, strict=True)
            return decompose(program, {})
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


class Compiled:
    """A lowered program in a VM of this process."""

    def __init__(self, answer: worker.Answer, folder: Path) -> None:
        if answer.errors:
            raise AssertionError(answer.errors)
        self.answer = answer
        library = tvm.runtime.load_module(str(worker.library_path(folder, TARGET)))
        self.vm = relax.VirtualMachine(library, tvm.cpu())
        weights = read_weights(memoryview(worker.weights_path(folder).read_bytes()))
        self.weights = [tvm.runtime.tensor(weights[name].data) for name in answer.weights]

    def __call__(self, args: Call, sizes: Sequence[int] = ()) -> list[np.ndarray]:
        flat = tree_leaves(args, is_leaf=lambda leaf: leaf is None)
        tensors = [tvm.runtime.tensor(flat[index].numpy()) for index in self.answer.inputs]
        assert len(sizes) == len(self.answer.sizes)
        extra = [tvm_ffi.Shape(sizes)] if self.answer.sizes else []
        return [result.numpy() for result in self.vm["main"](*tensors, *extra, *self.weights)]


def assert_equal(expected: torch.Tensor, got: np.ndarray, what: str, tolerance: float) -> None:
    assert str(got.dtype) == str(expected.dtype).removeprefix("torch."), what
    assert got.shape == tuple(expected.shape), what
    np.testing.assert_allclose(
        got, expected.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=what
    )


@pytest.fixture
def compile_program(tmp_path: Path) -> Callable[[torch.export.ExportedProgram], Compiled]:
    def run(program: torch.export.ExportedProgram) -> Compiled:
        torch.export.save(program, tmp_path / "program.pt2")
        return Compiled(worker.run(tmp_path / "program.pt2", (TARGET,), tmp_path), tmp_path)

    return run


@pytest.fixture
def agree(compile_program: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """``agree(module or functions, example, *calls)``: eager's values, dtypes and shapes."""

    def check(
        model: nn.Module | Sequence[Callable[..., Any]],
        *calls: Call,
        dynamic: Any = None,
        tolerance: float = 1e-5,
    ) -> Compiled:
        module = model if isinstance(model, nn.Module) else Each(model)
        module.eval()
        compiled = compile_program(trace(module, calls[0], dynamic))
        for call in calls:
            with torch.no_grad():
                expected = [t for t in tree_leaves(module(*call)) if isinstance(t, torch.Tensor)]
            results = compiled(call)
            assert len(results) == len(expected)
            shapes = [tuple(t.shape) for t in tree_leaves(call) if isinstance(t, torch.Tensor)]
            for number, (want, got) in enumerate(zip(expected, results, strict=True)):
                assert_equal(want, got, f"result {number} for inputs {shapes}", tolerance)
        return compiled

    return check
