"""Two sound bundles without machine code, that attacks and the fuzzer start from."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tcexport.artifacts.container import write_bundle
from tcexport.artifacts.contract import (
    AbsentNode,
    AxisSource,
    ComputedGuard,
    Contract,
    DictNode,
    Dim,
    Fixed,
    Guard,
    IndexGuard,
    Leaf,
    ListNode,
    NamedTupleNode,
    Origin,
    Parameter,
    Part,
    SizeOutput,
    TensorInput,
    TensorOutput,
    TupleNode,
    ValueSource,
)
from tcexport.artifacts.errors import Location
from tcexport.artifacts.manifest import (
    WEIGHTS_NAME,
    Entry,
    Manifest,
    Provenance,
    RuntimeLibrary,
    Target,
)
from tcexport.artifacts.weights import Weight, write_weights

CORPUS = Path(__file__).parent / "corpus"
_LINE = Origin("the model's own", Location("model.py", 14, "x[:, :seq]"))
_CODE, _RUNTIME, _LICENSE = "targets/cpu/model.so", "runtime/libtvm_runtime.so", "runtime/LICENSE"
_PROVENANCE = Provenance("0.1.0", "model.py", "", {"narrow": "false"}, {"torch": "2.13.0"}, "cc")


def small() -> Manifest:
    """``x[n] + w``."""
    contract = Contract(
        dims=(Dim("n", AxisSource(0, 0), 1, 64, _LINE, _LINE),),
        parameters=(Parameter("x", "either", Leaf(0)),),
        inputs=(TensorInput("x", "float32", ("n",)),),
        guards=(),
        index_guards=(),
        outputs=(TensorOutput("out", "float32", ("n",), 0),),
        result=Leaf(0),
    )
    return _manifest("Small", contract, Entry("main", (0,), (), ("w",), 1))


def rich() -> Manifest:
    """Something of every kind that a contract can hold."""
    contract = Contract(
        dims=(
            Dim("n", AxisSource(0, 0), 0, 64, _LINE, _LINE),
            Dim("m", AxisSource(0, 1, 2, 1), 1, None, _LINE, _LINE, 4, _LINE),
            Dim("k", ValueSource(2), -3, 3, _LINE, _LINE),
        ),
        parameters=(
            Parameter("x", "positional", Leaf(0)),
            Parameter("batch", "either", DictNode(("ids", 3), (Leaf(1), Leaf(2)))),
            Parameter("more", "keyword", TupleNode((Leaf(3), ListNode((Leaf(4),)))), True),
            Parameter("rest", "keyword", AbsentNode(), True),
        ),
        inputs=(
            TensorInput("x", "float32", ("n", ("+", ("*", 2, "m"), 1)), "contiguous"),
            TensorInput("batch.ids", "int64", ("n",)),
            TensorInput("batch[3]", "int64", ()),
            Fixed.of("more[0]", 3),
            Fixed.of("more[1][0]", -0.0),
        ),
        guards=(
            Guard(("or", ("!=", "n", 1), ("<=", ("//", "m", 2), 8)), _LINE),
            Guard(("==", ("%", ("max", "n", "m"), 4), ("min", 0, "k")), _LINE),
        ),
        index_guards=(IndexGuard(1, ("-", 0, 100), 99, _LINE, (Part(0, 0, "n"),)),),
        outputs=(
            TensorOutput("out.y", "bfloat16", (None, "m"), 0),
            SizeOutput("out.size", ("*", "n", "m")),
            Fixed.of("out.text", "done"),
        ),
        result=NamedTupleNode("Out", ("y", "size", "text"), (Leaf(0), Leaf(1), Leaf(2))),
        computed_guards=(
            ComputedGuard("index of take", "n", True, _LINE),
            ComputedGuard("no divisor is 0", None, False, _LINE, True),
        ),
    )
    entry = Entry("main", (0, 1, 2), ("n", ("+", "m", 1)), ("w", "half"), 1)
    return _manifest("Rich", contract, entry)


def _manifest(model: str, contract: Contract, entry: Entry) -> Manifest:
    return Manifest(
        format_version=1,
        model=model,
        contract=contract,
        entry=entry,
        targets=(Target("cpu", "linux", "x86_64", "x86-64-v3", "2.17", _CODE),),
        runtimes=(
            RuntimeLibrary("linux", "x86_64", "0.27.0.post1", "0.1.14.post1", _RUNTIME, _LICENSE),
        ),
        provenance=_PROVENANCE,
        members=(),
    )


def write_corpus(folder: Path) -> None:
    for manifest in (small(), rich()):
        with tempfile.TemporaryDirectory() as place:
            weights = Path(place) / "w"
            arrays = {
                "w": np.arange(5, dtype=np.float32),
                "half": Weight(np.arange(6, dtype=np.uint16).reshape(2, 3), "bfloat16"),
            }
            write_weights(weights, {name: arrays[name] for name in manifest.entry.weights})
            members: list[tuple[str, Path | bytes]] = [
                (_CODE, b"\x7fELF model"),
                (_RUNTIME, b"\x7fELF runtime"),
                (_LICENSE, b"Apache-2.0\n"),
                (WEIGHTS_NAME, weights),
            ]
            write_bundle(folder / f"{manifest.model.lower()}.tcpkg", manifest, members)


if __name__ == "__main__":
    write_corpus(CORPUS)
