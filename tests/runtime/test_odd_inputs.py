"""Inputs that are legal arrays and still odd: huge without memory, overlapping, the same one twice."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tcexport.artifacts.contract import TensorInput, TensorOutput
from tcexport.artifacts.errors import GuardError
from tcexport.runtime import load

from .bundles import compiled, contract_of, dim, multiply_and_sizes, pack


@pytest.mark.parametrize("size", [65, 2**31 - 1, 2**31, 2**33])
def test_a_huge_array_without_memory_is_refused_before_any_copy(added: Path, size: int) -> None:
    model = load(added)
    start = time.perf_counter()
    with pytest.raises(GuardError, match=f"TC301.*got {size}, needs n <= 64"):
        model(np.broadcast_to(np.float32(1), (size, 4)))
    with pytest.raises(GuardError, match=f"TC301.*got {size}, needs n <= 64"):
        model(torch.ones(1, 1).expand(size, 4))
    assert time.perf_counter() - start < 1
    assert model.metrics.copies == 0


def test_inputs_that_share_memory(tmp_path: Path) -> None:
    contract = contract_of(
        {
            "x": TensorInput("x", "float32", ("n", "k")),
            "y": TensorInput("y", "float32", ("k", "m")),
        },
        [TensorOutput("xy", "float32", ("n", "m"), 0), TensorOutput("ones", "float32", ("n",), 1)],
        [dim("n", 0, 0, 1, 64), dim("k", 0, 1, 1, 64), dim("m", 1, 1, 1, 64)],
    )
    path = pack(
        tmp_path / "m.tcpkg",
        contract,
        {"x86-64-v3": compiled(multiply_and_sizes)},
        sizes=("n",),
        results=2,
    )
    model = load(path)
    memory = np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32)
    before = memory.copy()
    for x, y in (
        (memory, memory),
        (memory[:8, :8], memory[1:, 1:]),
        (memory, memory.T),
        (memory[::-1], memory[:, ::-1]),
    ):
        product, ones = model(x, y)
        np.testing.assert_allclose(product, x @ y, rtol=1e-4, atol=1e-4)
        for result in (product, ones):
            assert not np.shares_memory(result, memory)
            result[...] = 0
        np.testing.assert_array_equal(memory, before)
    product, _ = model(x=torch.from_numpy(memory), y=memory)
    torch.testing.assert_close(product, torch.from_numpy(memory @ memory), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("tensor", "refusal"),
    [
        (torch.zeros(2, 4, dtype=torch.complex64), "TC304"),
        (torch.zeros(2, 4, device="meta"), "TC303"),
        (torch.zeros(2, 4).to_sparse(), "TC303"),
        (torch.zeros(2, 4, dtype=torch.complex64).conj(), "TC303"),
        (torch.zeros(2, 4, requires_grad=True), "TC303"),
    ],
)
def test_tensors_of_another_kind_are_refused(
    added: Path, tensor: torch.Tensor, refusal: str
) -> None:
    with pytest.raises(GuardError) as error:
        load(added)(tensor)
    assert (error.value.code, error.value.argument) == (refusal, "x")


def test_a_tensor_without_data_is_refused_and_an_empty_one_is_not(added: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = load(added)
    with FakeTensorMode():
        fake = torch.zeros(2, 4)
    for without in (fake, torch._efficientzerotensor((2, 4))):
        model(torch.ones(2, 4))
        with pytest.raises(GuardError, match=r"TC303.*x: got a tensor without data"):
            model(without)
