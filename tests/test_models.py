"""Real models, exported by the command line: eager's numbers at sizes that were not the example's,
with torch in the process and in an environment that has none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tcexport
from tcexport.exporter.source import load_source

MODELS = Path(__file__).parent / "models"

Inputs = Callable[[np.random.Generator, int, int], dict[str, Any]]


def _text(random: np.random.Generator, batch: int, seq: int) -> dict[str, Any]:
    return {"input_ids": random.integers(0, 30000, (batch, seq))}


def _image(random: np.random.Generator, batch: int, seq: int) -> dict[str, Any]:
    return {"image": random.standard_normal((batch, 3, 64, 64)).astype(np.float32)}


def _rows(random: np.random.Generator, batch: int, seq: int) -> dict[str, Any]:
    ids = np.stack([random.integers(0, 1000, batch), random.integers(0, 5000, batch)], axis=1)
    features = random.standard_normal((batch, 13)).astype(np.float32)
    return {"batch": {"ids": ids, "features": features}}


def _masked(random: np.random.Generator, batch: int, seq: int) -> dict[str, Any]:
    lengths = random.integers(1, seq + 1, (batch, 1))
    mask = (np.arange(seq)[None] < lengths).astype(np.int64)
    return {"input_ids": random.integers(0, 2000, (batch, seq)), "attention_mask": mask}


CASES: dict[str, tuple[Inputs, list[tuple[int, int]]]] = {
    "text_encoder": (_text, [(1, 1), (1, 7), (3, 33), (2, 128), (16, 5)]),
    "residual_net": (_image, [(1, 0), (2, 0), (5, 0), (8, 0)]),
    "recommender": (_rows, [(1, 0), (7, 0), (256, 0)]),
    "bert": (_masked, [(1, 1), (2, 12), (3, 65), (1, 200)]),
}


def _to_torch(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_torch(item) for key, item in value.items()}
    return torch.from_numpy(value)


def _flat(result: Any) -> dict[str, np.ndarray]:
    if hasattr(result, "items"):
        return {key: np.asarray(value) for key, value in result.items()}
    return {"result": np.asarray(result)}


@pytest.mark.parametrize("name", CASES)
def test_a_real_model_gives_eagers_numbers_at_other_sizes(
    name: str, model_bundle: Callable[[str], Path]
) -> None:
    inputs, sizes = CASES[name]
    module = load_source(str(MODELS / f"{name}.py")).module
    model = tcexport.load(model_bundle(name))
    for batch, seq in sizes:
        call = inputs(np.random.default_rng(batch + seq), batch, seq)
        with torch.no_grad():
            want = _flat(module(**_to_torch(call)))
        got = _flat(model(**call))
        assert got.keys() == want.keys()
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4, atol=1e-4, err_msg=key)


# Runs where torch is not installed; answers with what it saw as JSON.
_WITHOUT_TORCH = """
import importlib.util, json, sys
import numpy as np
import tcexport
bundle, inputs, outputs = sys.argv[1:]
model = tcexport.load(bundle)
with np.load(inputs) as file:
    call = {}
    for name in file.files:
        first, _, key = name.partition(".")
        if key:
            call.setdefault(first, {})[key] = file[name]
        else:
            call[first] = file[name]
result = model(**call)
np.savez(outputs, **(result if isinstance(result, dict) else {"result": result}))
refused = ""
try:
    model(*[None for _ in model.contract.parameters])
except tcexport.GuardError as error:
    refused = error.code
print(json.dumps({
    "refused": refused,
    "found": [name for name in ("torch", "tvm", "sympy") if importlib.util.find_spec(name)],
}))
"""


@pytest.mark.parametrize("name", CASES)
def test_a_real_model_runs_where_neither_torch_nor_a_compiler_is_installed(
    name: str, model_bundle: Callable[[str], Path], runtime_python: Path, tmp_path: Path
) -> None:
    inputs, sizes = CASES[name]
    batch, seq = sizes[2]
    call = inputs(np.random.default_rng(0), batch, seq)
    saved = {
        f"{first}.{key}" if isinstance(value, dict) else first: array
        for first, value in call.items()
        for key, array in (value.items() if isinstance(value, dict) else [("", value)])
    }
    np.savez(tmp_path / "inputs.npz", **saved)
    command = [str(runtime_python), "-c", _WITHOUT_TORCH, str(model_bundle(name))]
    command += [str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"refused": done_code(name), "found": []}
    module = load_source(str(MODELS / f"{name}.py")).module
    with torch.no_grad():
        want = _flat(module(**_to_torch(call)))
    with np.load(tmp_path / "outputs.npz") as got:
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4, atol=1e-4, err_msg=key)


def done_code(name: str) -> str:
    """What a call with None for every argument is refused with: a dict is missing its keys, BERT
    takes None for most of its parameters."""
    return {"recommender": "TC302"}.get(name, "TC303")


def test_a_bundle_is_at_most_8_mb_larger_than_its_weights(
    model_bundle: Callable[[str], Path],
) -> None:
    path = model_bundle("text_encoder")
    weights = sum(
        parameter.numel() * parameter.element_size()
        for parameter in load_source(str(MODELS / "text_encoder.py")).module.parameters()
    )
    assert path.stat().st_size <= weights + 8e6
