"""The files of docs/huggingface.md, with small random models in the place of downloads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tcexport
from tcexport.exporter.check import check_source
from tcexport.exporter.export import export_source
from tcexport.exporter.options import parse_dynamic
from tcexport.exporter.source import Source, load_source

PAGE = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
LENGTH, VOCABULARY = 512, 100
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": LENGTH,
}
BERT = f"transformers.BertConfig(**{SIZES})"
LLAMA = f"transformers.LlamaConfig(num_key_value_heads=2, **{SIZES})"


def source_of(name: str, config: str, folder: Path) -> Source:
    """A file of the page; its model is made from ``config`` where it is downloaded."""
    (text,) = re.findall(rf"```python\n# {name}\n(.*?)```", PAGE, re.DOTALL)
    text, count = re.subn(r"from_pretrained\(name\)", f"from_config({config})", text)
    assert count == 1
    (folder / name).write_text("import transformers\n" + text)
    torch.manual_seed(0)
    return load_source(str(folder / name))


@pytest.mark.parametrize(
    ("name", "config"),
    [("bert.py", BERT), pytest.param("llama.py", LLAMA, marks=pytest.mark.zoo)],
)
def test_a_file_of_the_page_is_exported_over_its_range(
    name: str, config: str, tmp_path: Path
) -> None:
    source = source_of(name, config, tmp_path)
    dynamic = parse_dynamic(["batch=1..16", f"seq=1..{LENGTH}"])
    found = check_source(source, dynamic=dynamic)
    assert not found.errors
    assert [dim.span() for dim in found.dims] == ["1..16", f"1..{LENGTH}"]


def test_the_decoder_of_the_page_gives_what_the_whole_sequence_gives(tmp_path: Path) -> None:
    source = source_of("decode.py", LLAMA, tmp_path)
    path = tmp_path / "decode.tcpkg"
    export_source(source, dynamic={}, out=path, targets=("cpu:x86-64-v3",))
    module: Any = source.module
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, 12))
    with torch.no_grad():
        whole = module.model(torch.from_numpy(ids), use_cache=False).logits
    session = tcexport.load(path).session()
    for position in range(ids.shape[1]):
        logits = session(ids[:, position : position + 1], np.array([position]))
        np.testing.assert_allclose(logits[0, 0], whole[0, position], rtol=1e-3, atol=1e-4)
    assert sorted(session.state()) == ["keys_0", "keys_1", "values_0", "values_1"]
    with pytest.raises(tcexport.GuardError, match="TC309"):
        session(ids[:, :1], np.array([LENGTH]))
