"""Real bundles for the runtime's tests: Relax modules compiled here, contracts made by hand."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tcexport.artifacts.container import write_bundle
from tcexport.artifacts.contract import (
    AxisSource,
    Contract,
    Dim,
    Fixed,
    Leaf,
    Origin,
    Parameter,
    TensorInput,
    TupleNode,
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

TVM_VERSION, FFI_VERSION = "0.27.0.post1", "0.1.14.post1"
LINE = Origin("the model's own", Location("model.py", 14, "self.position[:seq]"))
GIVEN = Origin("given with --dynamic")
LIBRARY = "targets/cpu/model.so"
RUNTIME = "runtime/linux-x86_64/libtvm_runtime.so"


def dim(name: str, input: int, axis: int, lo: int, hi: int | None, **more: Any) -> Dim:
    scale, offset = more.pop("scale", 1), more.pop("offset", 0)
    return Dim(name, AxisSource(input, axis, scale, offset), lo, hi, GIVEN, LINE, **more)


def contract_of(
    inputs: Mapping[str, TensorInput | Fixed],
    outputs: Sequence[Any],
    dims: Sequence[Dim] = (),
    **more: Any,
) -> Contract:
    """Inputs by parameter name, each a leaf; outputs in a tuple, or alone when there is one."""
    parameters = tuple(
        Parameter(name, "either", Leaf(index), isinstance(item, Fixed))
        for index, (name, item) in enumerate(inputs.items())
    )
    leaves = tuple(Leaf(index) for index in range(len(outputs)))
    result = leaves[0] if len(leaves) == 1 else TupleNode(leaves)
    base = Contract(tuple(dims), parameters, tuple(inputs.values()), (), (), tuple(outputs), result)
    return msgspec.structs.replace(base, **more)


def compiled(
    build: Callable[[Any], None], level: str = "x86-64-v3", *, parallel: bool = False
) -> bytes:
    """A library with a Relax function ``main``.

    Args:
        build: fills a relax.BlockBuilder.
        level: an LLVM CPU name.
        parallel: run the outermost loop of every kernel on TVM's threads.
    """
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    build(builder)
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": level}
    )
    module = builder.get()
    if parallel:
        module = _in_parallel(relax.transform.LegalizeOps()(module))
    executable = tvm.compile(module, target=target)
    with tempfile.TemporaryDirectory() as folder:
        executable.export_library(f"{folder}/model.so")
        return Path(folder, "model.so").read_bytes()


def _in_parallel(module: Any) -> Any:
    from tvm import s_tir, tirx

    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            schedule = s_tir.Schedule(function)
            for block in schedule.get_child_blocks(schedule.get_sblock("root")):
                schedule.parallel(schedule.get_loops(block)[0])
            module[variable] = schedule.mod["main"].with_attr("global_symbol", variable.name_hint)
    return module


def pack(
    path: Path,
    contract: Contract,
    libraries: Mapping[str, bytes],
    weights: Mapping[str, np.ndarray | Weight] | None = None,
    *,
    sizes: tuple[Any, ...] = (),
    results: int = 1,
    also: Sequence[tuple[str, Path | bytes]] = (),
    **more: Any,
) -> Path:
    """Write a bundle whose entry takes all tensor inputs in order.

    Args:
        libraries: compiled code by CPU level.
        also: further members.
        more: fields of the manifest to replace.
    """
    weights = weights or {}
    members: list[tuple[str, Path | bytes]] = [
        (f"targets/cpu-{level}/model.so", code) for level, code in libraries.items()
    ]
    members += [(RUNTIME, runtime_library()), ("runtime/LICENSE", b"Apache-2.0\n"), *also]
    inputs = tuple(
        index for index, item in enumerate(contract.inputs) if isinstance(item, TensorInput)
    )
    targets = tuple(
        Target(f"cpu-{level}", "linux", "x86_64", level, "2.17", f"targets/cpu-{level}/model.so")
        for level in libraries
    )
    manifest = Manifest(
        1,
        path.stem,
        contract,
        Entry("main", inputs, sizes, tuple(weights), results),
        targets,
        (RuntimeLibrary("linux", "x86_64", TVM_VERSION, FFI_VERSION, RUNTIME, "runtime/LICENSE"),),
        Provenance("0.1.0", "model.py", "", {}, {}, "cc"),
        (),
    )
    with tempfile.TemporaryDirectory() as folder:
        if weights:
            write_weights(Path(folder, "w"), weights)
            members.append((WEIGHTS_NAME, Path(folder, "w")))
        write_bundle(path, msgspec.structs.replace(manifest, **more), members)
    return path


@functools.cache
def runtime_library() -> bytes:
    import importlib.util

    spec = importlib.util.find_spec("tvm")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "lib" / "libtvm_runtime.so").read_bytes()


# --- models ---------------------------------------------------------------------------------------


def add_weight(builder: Any) -> None:
    """``main(x[n, 4], w[4]) = x + w``."""
    from tvm import relax, tirx

    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    w = relax.Var("w", relax.TensorType((4,), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, w))
        builder.emit_func_output(out)


def gather_rows(builder: Any) -> None:
    """``main(ids[b, s] int64, table[512, 8]) = take(table, ids), s``: rows of a table, and ids back."""
    from tvm import relax, tirx

    b, s = tirx.Var("b", "int64"), tirx.Var("s", "int64")
    ids = relax.Var("ids", relax.TensorType((b, s), "int64"))
    table = relax.Var("table", relax.TensorType((512, 8), "float32"))
    with builder.function("main", [ids, table]):
        with builder.dataflow():
            rows = builder.emit(relax.op.take(table, ids, axis=0))
            out = builder.emit_output(relax.Tuple([rows, ids, table]))
        builder.emit_func_output(out)


def multiply_and_sizes(builder: Any) -> None:
    """``main(x[n, k], y[k, m], sizes[k2]) = x @ y``, in parallel loops."""
    from tvm import relax, tirx

    n, k, m, k2 = (tirx.Var(name, "int64") for name in ("n", "k", "m", "k2"))
    x = relax.Var("x", relax.TensorType((n, k), "float32"))
    y = relax.Var("y", relax.TensorType((k, m), "float32"))
    sizes = relax.Var("sizes", relax.ShapeType([k2]))
    with builder.function("main", [x, y, sizes]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.full((k2,), relax.const(1.0, "float32"), "float32"))
            product = builder.emit_output(relax.op.matmul(x, y))
        builder.emit_func_output(relax.Tuple([product, out]))
