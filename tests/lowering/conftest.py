"""`agree`: export a small module, lower it in this process, run it, compare with eager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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
from tcexport.exporter.verify import tensor_of
from tcexport.lowering import (
    converters,  # noqa: F401  (registers them)
    worker,
)
from tcexport.lowering.answer import Made, library_path, weights_path
from tcexport.lowering.converters.registry import COMPLEX, CONVERTERS, is_complex
from tcexport.lowering.decompose import decompose
from tcexport.lowering.tracing import whole_ops
from tcexport.runtime.tensors import empty_tensor

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
            whole_ops(),
        ):
            program = torch.export.export(module, args, dynamic_shapes=dynamic, strict=True)
            return decompose(program, {})
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


class Compiled:
    """A lowered program in a VM of this process."""

    def __init__(self, answer: Made, folder: Path) -> None:
        self.answer = answer
        library = tvm.runtime.load_module(str(library_path(folder, TARGET)))
        self.vm = relax.VirtualMachine(library, tvm.cpu())
        weights = read_weights(memoryview(weights_path(folder).read_bytes()))
        kept = [tensor_of(weights[name]) for name in answer.main.weights]
        self.kept = [aligned(weight) for weight in kept]
        self.weights = [tvm_ffi.from_dlpack(weight) for weight in self.kept]

    def __call__(
        self, args: Call, sizes: Sequence[int] = (), states: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        flat = tree_leaves(args, is_leaf=lambda leaf: leaf is None)
        inputs = [aligned(in_parts(flat[index])) for index in self.answer.main.inputs]
        tensors = [argument(each) for each in inputs]
        assert len(sizes) == len(self.answer.main.sizes)
        extra = [tvm_ffi.Shape(sizes)] if self.answer.main.sizes else []
        held = [tvm_ffi.from_dlpack(state) for state in states]
        results = self.vm["main"](*tensors, *extra, *held, *self.weights)
        alone = isinstance(results, tvm_ffi.Tensor)
        return [torch.from_dlpack(result) for result in ([results] if alone else results)]


def in_parts(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as compiled code takes it."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def argument(tensor: torch.Tensor) -> tvm_ffi.Tensor:
    """As the runtime passes it: what has no elements has strides that compiled code takes."""
    if 0 in tensor.shape:
        return empty_tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return tvm_ffi.from_dlpack(tensor)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on a 64-byte boundary, as the runtime passes tensors."""
    size = tensor.numel() * tensor.element_size()
    memory = torch.empty(size + 64, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 64 :][:size]
    return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())


# Of halves: some units in the last place, as torch itself differs between its kernels.
_TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_equal(expected: torch.Tensor, got: torch.Tensor, what: str, tolerance: float) -> None:
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, not {expected.dtype}"
    assert got.shape == expected.shape, what
    tolerance = max(tolerance, _TOLERANCES.get(expected.dtype, 0))
    if expected.is_complex():
        expected, got = (torch.view_as_real(t.resolve_conj()) for t in (expected, got))
    wide = (lambda t: t.double().numpy()) if expected.is_floating_point() else torch.Tensor.numpy
    np.testing.assert_allclose(
        wide(got), wide(expected.detach()), rtol=tolerance, atol=tolerance, err_msg=what
    )


RECORD = Path(__file__).parent / "ops.json"


class Record:
    """Which ops were compared with eager, with which dtypes: the source of docs/ops.md."""

    def __init__(self, known: dict[str, dict[str, Any]], recording: bool) -> None:
        self.known = known
        self.recording = recording

    def see(self, program: torch.export.ExportedProgram, several: bool = True) -> None:
        """A program that equals eager, at ``several`` sizes or in one."""
        new = []
        for node in program.graph.nodes:
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            if str(node.target) not in (COMPLEX if is_complex(node) else CONVERTERS):
                continue
            values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
            tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
            dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
            symbolic = several and any(
                isinstance(n, torch.SymInt) for t in tensors for n in t.shape
            )
            entry = self.known.setdefault(str(node.target), {"dtypes": [], "dynamic": False})
            if not dtypes <= set(entry["dtypes"]) or symbolic > entry["dynamic"]:
                new.append(str(node.target))
                entry["dtypes"] = sorted(dtypes | set(entry["dtypes"]))
                entry["dynamic"] = entry["dynamic"] or symbolic
        assert self.recording or not new, f"run pytest tests/lowering --record-ops: {new}"


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest) -> Iterator[Record]:
    recording = request.config.getoption("--record-ops")
    kept = Record(json.loads(RECORD.read_text(encoding="utf-8")), recording)
    yield kept
    if recording:
        text = json.dumps(dict(sorted(kept.known.items())), indent=1)
        RECORD.write_text(text + "\n", encoding="utf-8")


@pytest.fixture
def compile_program(tmp_path: Path) -> Callable[[torch.export.ExportedProgram], Compiled]:
    def run(program: torch.export.ExportedProgram) -> Compiled:
        torch.export.save(program, tmp_path / "program.pt2")
        return Compiled(worker.run((tmp_path / "program.pt2",), (TARGET,), tmp_path), tmp_path)

    return run


@pytest.fixture
def agree(compile_program: Callable[..., Compiled], record: Record) -> Callable[..., Compiled]:
    """``agree(module or functions, example, *calls)``: eager's values, dtypes and shapes."""

    def check(
        model: nn.Module | Sequence[Callable[..., Any]],
        *calls: Call,
        dynamic: Any = None,
        tolerance: float = 1e-5,
    ) -> Compiled:
        module = model if isinstance(model, nn.Module) else Each(model)
        module.eval()
        program = trace(module, calls[0], dynamic)
        compiled = compile_program(program)
        failures: list[str] = []
        for call in calls:
            with torch.no_grad():
                expected = [t for t in tree_leaves(module(*call)) if isinstance(t, torch.Tensor)]
            results = compiled(call)
            assert len(results) == len(expected)
            shapes = [tuple(t.shape) for t in tree_leaves(call) if isinstance(t, torch.Tensor)]
            for number, (want, got) in enumerate(zip(expected, results, strict=True)):
                got = torch.view_as_complex(got) if want.is_complex() else got
                try:
                    assert_equal(want, got, f"result {number} for inputs {shapes}", tolerance)
                except AssertionError as error:
                    failures.append(str(error))
        assert not failures, "\n".join(failures)
        record.see(program)
        return compiled

    return check
