"""Models that are there to be timed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tcexport.exporter.source import load_source

FILE = Path(__file__).parents[2] / "tools" / "benchmarks" / "stored.py"
INPUTS = {
    "mlp": "x=float32[batch=4,512]",
    "resnet18": "x=float32[batch=2,3,height=64,width=32]",
}


@pytest.mark.parametrize("model", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8], ids=str)
def test_a_model_with_stored_weights_is_the_model(model: str, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    exact, stored = (
        load_source(f"{FILE}:{model}_{each}", inputs=[INPUTS[model]]) for each in ("float32", name)
    )
    bulk = {each.dtype for each in stored.module.state_dict().values() if each.numel() > 5000}
    assert bulk == {dtype}
    x = torch.randn(exact.kwargs["x"].shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want, got = exact.module(x), stored.module(x).float()
    assert 0 < (got - want).norm() < 0.05 * want.norm()
