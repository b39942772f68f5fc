"""Several functions in one library: sizes as numbers, shared kernels, shared weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

from tcexport.artifacts.weights import read_weights
from tcexport.exporter.verify import tensor_of
from tcexport.lowering.answer import Function
from tcexport.lowering.lower import lower
from tcexport.lowering.tensor import Constant
from tcexport.lowering.variants import with_sizes
from tcexport.lowering.weights import shared_constants

from .conftest import TARGET, aligned, trace


class Positions(nn.Module):
    """A table that is sliced by a size: what a variant could compute at export, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(512, 64))
        self.small = nn.Parameter(torch.randn(512, 2))
        self.mix = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seq = x.shape[1]
        y = self.mix(x + self.table[:seq]) * seq
        return y + self.small[:seq].sum(-1, keepdim=True) / (x.shape[0] + 1)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lowered")
    torch.manual_seed(0)
    model = Positions().eval()
    dims = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    program = trace(model, (torch.randn(3, 5, 64),), dims)
    x = next(n for n in program.graph.nodes if n.op == "placeholder" and n.name == "x")
    batch, seq = (str(size.node.expr) for size in x.meta["val"].shape[:2])
    functions = [
        Function(),
        Function("v1_main", sizes={batch: 1, seq: 500}),
        Function("v2_main", sizes={seq: 7}),
        Function("v3_main", sizes={seq: 1}),
    ]
    result = lower(program, (TARGET,), folder, lambda *_: None, functions=functions)
    return model, result


def called_with(machine, called, weights, x: torch.Tensor) -> np.ndarray:
    kept = [aligned(tensor_of(weights[name])) for name in called.weights]
    tensors = [tvm_ffi.from_dlpack(each) for each in (aligned(x), *kept)]
    return torch.from_dlpack(machine[called.name](*tensors)).numpy()


def test_each_function_gives_the_numbers_of_the_model_at_its_sizes(built) -> None:
    model, result = built
    library = tvm.runtime.load_module(str(result.libraries[TARGET]))
    machine = relax.VirtualMachine(library, tvm.cpu())
    weights = read_weights(memoryview(result.weights_file.read_bytes()))
    for called, shapes in zip(
        result.functions,
        ([(2, 9), (1, 1), (3, 500)], [(1, 500)], [(1, 7), (4, 7)], [(1, 1), (5, 1)]),
        strict=True,
    ):
        for batch, seq in shapes:
            x = torch.randn(batch, seq, 64)
            got = called_with(machine, called, weights, x)
            with torch.no_grad():
                np.testing.assert_allclose(got, model(x), rtol=1e-4, atol=1e-3)


def test_a_function_with_other_sizes_than_its_own_refuses_to_run(built) -> None:
    _, result = built
    machine = relax.VirtualMachine(
        tvm.runtime.load_module(str(result.libraries[TARGET])), tvm.cpu()
    )
    weights = read_weights(memoryview(result.weights_file.read_bytes()))
    called = result.functions[2]
    with pytest.raises(Exception, match="7"):
        called_with(machine, called, weights, torch.randn(2, 8, 64))


def test_variants_take_the_same_weights_and_compute_none_of_them_at_export(built) -> None:
    _, result = built
    weights = read_weights(memoryview(result.weights_file.read_bytes()))
    sizes = {name: weight.data.nbytes for name, weight in weights.items()}
    kept = {"table", "small", "mix.weight:packed32", "mix.bias"}
    assert {name for name in sizes if not name.startswith(".padding")} == kept
    assert all(set(called.weights) == kept for called in result.functions)
    assert {each.frozen for each in result.parameters.sources} == {""}  # all can be exchanged


def test_the_metadata_is_as_before_when_the_sizes_are_no_numbers_any_more() -> None:
    program = trace(nn.Linear(4, 4), (torch.randn(3, 4),), ({0: torch.export.Dim.AUTO},))
    x = next(n for n in program.graph.nodes if n.name == "input").meta["val"]
    symbol = str(x.shape[0].node.expr)
    with with_sizes(program, {symbol: 7}):
        assert x.shape[0].node.expr == 7
    assert str(x.shape[0].node.expr) == symbol


def test_constants_of_two_programs_are_shared_where_they_are_equal_bit_for_bit() -> None:
    def of(**values: torch.Tensor) -> dict[str, Constant]:
        return {f"p_{name}": Constant(name, value) for name, value in values.items()}

    first = of(a=torch.tensor([0.0, float("nan")]), b=torch.ones(2))
    second = of(a=torch.tensor([0.0, float("nan")]), b=torch.tensor([1.0, -1.0]))
    shared = shared_constants([first, second])
    assert shared[1]["p_a"] is shared[0]["p_a"]
    assert (shared[0]["p_b"].name, shared[1]["p_b"].name) == ("b", "b@1")
    zeros = shared_constants([of(z=torch.tensor(0.0)), of(z=torch.tensor(-0.0))])
    assert zeros[1]["p_z"].name == "z@1"
