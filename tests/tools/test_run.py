"""``tcexport run``: arguments from options and files, outputs into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tcexport import UsageError
from tcexport.artifacts.contract import (
    AbsentNode,
    Contract,
    DictNode,
    Fixed,
    Leaf,
    ListNode,
    NamedTupleNode,
    Parameter,
    TensorInput,
    TensorOutput,
    TupleNode,
)
from tcexport.tools.run import _named_outputs, _summary, _values, _write, call_arguments

CONTRACT = Contract(
    dims=(),
    parameters=(
        Parameter("x", "either", Leaf(0)),
        Parameter("k", "either", Leaf(1), optional=True),
        Parameter("table", "either", AbsentNode(), optional=True),
        Parameter("batch", "either", DictNode(("ids", "at"), (Leaf(2), TupleNode((Leaf(3),))))),
        Parameter("flag", "keyword", Leaf(4)),
    ),
    inputs=(
        TensorInput("x", "float32", (2,)),
        Fixed.of("k", 3),
        TensorInput("batch.ids", "int64", (2, "n")),
        Fixed.of("batch.at[0]", None),
        Fixed.of("flag", True),
    ),
    guards=(),
    index_guards=(),
    outputs=(
        TensorOutput("logits", "float32", (2,), 0),
        Fixed.of("none", None),
        TensorOutput("more[0].y", "int64", (), 1),
    ),
    result=DictNode(
        ("logits", "none", "more"),
        (Leaf(0), Leaf(1), ListNode((NamedTupleNode("P", ("y",), (Leaf(2),)),))),
    ),
)


def refusal(function: Any, *args: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        function(*args)
    return caught.value


def test_arguments_are_built_from_files_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, ids = np.ones(2, np.float32), np.arange(4).reshape(2, 2)
    np.save("x.npy", x)
    np.savez("one.npz", anything=ids)
    _write(Path("all.npz"), {"x": x, "batch.ids": ids})
    for typed in (["x=x.npy", "batch.ids=one.npz"], ["all.npz"]):
        args, kwargs = call_arguments(CONTRACT, _values(CONTRACT, typed))
        assert len(args) == 1 and np.array_equal(args[0], x)
        assert list(kwargs) == ["batch", "flag"], "what follows a parameter left out goes by name"
        assert np.array_equal(kwargs["batch"]["ids"], ids)
        assert kwargs["batch"]["at"] == (None,)
        assert kwargs["flag"] is True
    args, _ = call_arguments(CONTRACT, _values(CONTRACT, ["all.npz", "k=4"]))
    assert args[1] == 4, "another value than the fixed one is for the guard to refuse"


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (["x=none.npy"], "TC001", "there is no file none.npy"),
        (["x=objects.npy"], "TC008", "cannot read objects.npy: Object arrays cannot be loaded"),
        (["x=text.npy"], "TC008", "cannot read text.npy"),
        (["x=two.npz"], "TC008", "two.npz holds 2 arrays, not one: a, b"),
        (["x=3", "x=4"], "TC008", "gives x twice"),
        (["x"], "TC008", "it is read as INPUT=FILE.npy, INPUT=VALUE or FILE.npz"),
        (["y=3"], "TC006", "the bundle has no input y\n  inputs: x, k, batch.ids"),
        (["k=3"], "TC302", "missing inputs: x (float32[2]), batch.ids (int64[2, n])"),
    ],
)
def test_wrong_inputs_say_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], code: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("text.npy").write_text("no array")
    np.savez("two.npz", a=np.zeros(1), b=np.zeros(1))
    error = refusal(lambda: call_arguments(CONTRACT, _values(CONTRACT, typed)))
    assert error.code == code
    assert said in str(error)
    if code == "TC302":
        assert error.diagnostics[0].tries == ("--input x=x.npy --input batch.ids=ids.npy",)


def test_outputs_are_named_by_path_and_written_in_each_form(tmp_path: Path) -> None:
    logits, y = np.arange(8, dtype=np.float32), np.array(7)
    outputs = dict(_named_outputs(CONTRACT, {"logits": logits, "none": None, "more": [(y,)]}))
    assert list(outputs) == ["logits", "none", "more[0].y"]
    assert _summary("logits", logits) == "logits: float32[8]  0 1 2 3 4 5 …"
    assert _summary("none", None) == "none: None"
    _write(tmp_path / "o.npz", outputs)
    with np.load(tmp_path / "o.npz") as found:
        assert found.files == ["logits", "more[0].y"]
        assert np.array_equal(found["logits"], logits)
        assert (found["more[0].y"].shape, int(found["more[0].y"])) == ((), 7)
    _write(tmp_path / "o.safetensors", outputs)
    assert np.array_equal(load_file(tmp_path / "o.safetensors")["logits"], logits)
    _write(tmp_path / "o.npy", {"output": logits})
    assert np.array_equal(np.load(tmp_path / "o.npy"), logits)
    assert "holds one array, and there are 2" in str(refusal(_write, tmp_path / "p.npy", outputs))
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["o.npy", "o.npz", "o.safetensors"], "no half files"
