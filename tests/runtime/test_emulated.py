"""Code for aarch64 under qemu-user: eager's numbers at several sizes, with `-s` shown. Skipped where
something is not there that it needs (`emulated.missing` says what).

The whole host is emulated: reading, digests, contract, TVM's runtime, its threads, and the kernels.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tcexport
from tcexport.exporter.eager import same_numbers

from .emulated import Emulated, missing

MODELS = Path(__file__).parent.parent / "models"


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    if why := missing():
        pytest.skip(why)
    return Emulated.built(tmp_path_factory.mktemp("aarch64"))


def compare(
    host: Emulated, bundle: Path, model: nn.Module, inputs: dict[str, torch.Tensor], folder: Path
) -> None:
    """Every output against eager's."""
    with torch.no_grad():
        wanted = model(**inputs)
    if isinstance(wanted, torch.Tensor):
        wanted = {"result": wanted}
    answers = host.run(bundle, {name: value.numpy() for name, value in inputs.items()}, folder)
    assert answers.keys() == wanted.keys()
    for name, want in wanted.items():
        same, error = same_numbers(torch.from_numpy(answers[name]), want)
        shown = ", ".join(f"{each} {list(value.shape)}" for each, value in inputs.items())
        print(f"{bundle.name} on aarch64, {shown}: {name} within {error:.1e} of eager")
        assert same, f"{shown}: {name} is {error:.3g} apart"


@pytest.mark.parametrize(
    ("name", "typed", "shapes"),
    [
        ("residual_net", ["batch=1..8"], [(1, 3, 64, 64), (3, 3, 64, 64), (8, 3, 64, 64)]),
        ("text_encoder", ["batch=1..16", "seq=1..1024"], [(1, 1), (2, 16), (3, 37), (1, 128)]),
    ],
)
def test_a_model_has_eagers_numbers_on_aarch64(
    emulated: Emulated, tmp_path: Path, name: str, typed: list[str], shapes: list[tuple[int, ...]]
) -> None:
    source, bundle = MODELS / f"{name}.py", tmp_path / f"{name}.tcpkg"
    command = [sys.executable, "-m", "tcexport", f"{source}", "-q", "-o", f"{bundle}"]
    command += ["--target", "cpu:aarch64", *(f"--dynamic={each}" for each in typed)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    loaded = runpy.run_path(f"{source}")
    ((path, _),) = loaded["axes"].items()
    for number, shape in enumerate(shapes):
        whole = not loaded["example_inputs"][0].is_floating_point()
        drawn = torch.randint(0, 30000, shape) if whole else torch.randn(shape)
        folder = tmp_path / f"{number}"
        compare(emulated, bundle, loaded["model"].eval(), {path: drawn}, folder)


class Kinds(nn.Module):
    """Ops whose code differs from machine to machine: halves, bools, integers, tables, reductions."""

    def forward(self, x: torch.Tensor, half: torch.Tensor, k: torch.Tensor) -> dict[str, Any]:
        top, where = x.topk(2, 1)
        return {
            "half": (half * 1.1).softmax(1) + half.exp(),
            "erf": torch.erf(x) + torch.tanh(x) * torch.log1p(x.abs()) + torch.lgamma(x.abs() + 1),
            "sorted": x.sort(1).values,
            "top": top,
            "where": where,
            "sum": k.cumsum(1) % 7,
            "shifted": (k << 2) // 3,
            "positive": (x > 0) & (k > 3),
            "max": x.amax(0),
            "rounded": torch.round(x * 2.5),
        }


def test_each_kind_of_op_has_eagers_numbers_on_aarch64(emulated: Emulated, tmp_path: Path) -> None:
    model = Kinds().eval()

    def drawn(n: int, m: int) -> tuple[torch.Tensor, ...]:
        x = torch.randn(n, m)
        return x, torch.randn(n, m).half(), torch.randint(0, 9, (n, m))

    bundle = tmp_path / "kinds.tcpkg"
    names = ("x", "half", "k")
    tcexport.export(
        model,
        drawn(3, 5),
        axes=dict.fromkeys(names, ("n", "m")),
        dynamic={"n": (1, 64), "m": (2, 300)},
        targets=("cpu:aarch64",),
        out=bundle,
    )
    for number, sizes in enumerate([(1, 2), (4, 33), (64, 300)]):
        inputs = dict(zip(names, drawn(*sizes), strict=True))
        compare(emulated, bundle, model, inputs, tmp_path / f"{number}")


def test_a_call_outside_of_the_contract_is_refused_on_aarch64(
    emulated: Emulated, tmp_path: Path
) -> None:
    bundle = tmp_path / "add.tcpkg"

    class Add(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    tcexport.export(
        Add().eval(),
        (torch.ones(3, 4),),
        axes={"x": ("n", None)},
        dynamic={"n": (1, 8)},
        targets=("cpu:aarch64",),
        out=bundle,
    )
    np.save(tmp_path / "x.npy", np.ones((9, 4), np.float32))
    done = emulated.started(bundle, f"x={tmp_path / 'x.npy'}")
    assert done.returncode == 4
    assert "[TC301] x axis 0 (n): got 9, needs n <= 8" in done.stderr
