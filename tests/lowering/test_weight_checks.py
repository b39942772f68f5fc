"""Weights are compared by the kernels that take them, and not by the VM at each call as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.artifacts.errors import InternalError
from tcexport.artifacts.manifest import WEIGHTS_NAME
from tcexport.artifacts.weights import read_weights, write_weights
from tcexport.runtime import load
from tcexport.tools.fuzz_reader import Seed, described, sealed


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("layers") / "layers.tcpkg"
    axes: dict[str, Any] = {"input": ("n", None)}
    tcexport.export(
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval(),
        (torch.ones(3, 16),),
        axes=axes,
        dynamic={"n": (1, 64)},
        out=path,
        targets=("cpu:x86-64-v3",),
    )
    return path


def test_the_vm_checks_inputs_alone(bundle: Path) -> None:
    text = str(load(bundle)._calls.code.library["as_text"]())
    checked = [line for line in text.splitlines() if "call  vm.builtin.check_tensor_info" in line]
    # `main` takes one tensor beside the weights, `main_into` two.
    assert [line.partition("in: ")[2].partition(",")[0] for line in checked] == ["%0", "%0", "%1"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("2.bias", np.zeros(8, np.float32)),
        ("2.bias", np.zeros(16, np.float64)),
        ("0.bias", np.zeros((1, 16), np.float32)),
        ("0.weight:packed32", np.zeros((1, 16, 16), np.float32)),
        ("0.weight:packed32", np.zeros(512, np.float32)),
    ],
)
def test_weights_that_do_not_fit_the_code_are_refused(
    bundle: Path, tmp_path: Path, name: str, wrong: np.ndarray
) -> None:
    seed = Seed.read(bundle)
    weights: dict[str, Any] = dict(read_weights(memoryview(dict(seed.members)[WEIGHTS_NAME])))
    assert name in weights
    write_weights(tmp_path / "w", weights | {name: wrong})
    content = (tmp_path / "w").read_bytes()
    members = tuple((n, content if n == WEIGHTS_NAME else data) for n, data in seed.members)
    path = tmp_path / "m.tcpkg"
    path.write_bytes(sealed(described(json.loads(seed.head), members), members))
    with pytest.raises(InternalError, match=r"TC601.*argument #"):
        load(path)(np.ones((4, 16), np.float32))
