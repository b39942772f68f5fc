"""The runtimes that are timed, each as it stands in a process of its own: the bundle, and its peers.

What can be called without torch is here; `bench_peers` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts.container import open_bundle
from ..artifacts.contract import Contract, Fixed, TensorInput, TensorOutput
from ..artifacts.weights import Weight, read_weights, write_weights
from .bench_names import BUNDLE, BUNDLE_GENERAL, BUNDLE_TORCH, ONNXRUNTIME
from .served import served


@dataclass(frozen=True)
class Spec:
    """What a process is told at its start.

    Attributes:
        runtime: one of `RUNTIMES`.
        bundle: the .tcpkg file; its contract says how the model is called.
        against: the source, None for the bundle alone; ``inputs`` are its ``--input`` options.
        threads: worker threads of one call.
        built: the file that is built, or loaded, by the runtimes in `BUILT`.
        trace: inputs (safetensors) to build it with; None where it is to be loaded.
        folder: where the user is, for the source's own files.
        variant: the one of the bundle's variants that serves alone; "" for the bundle as it is.
    """

    runtime: str
    bundle: str
    against: str | None
    inputs: tuple[str, ...]
    threads: int
    built: str | None
    trace: str | None
    folder: str
    variant: str = ""


@dataclass(frozen=True)
class Runtime:
    """A loaded runtime.

    Attributes:
        prepare: a file of inputs, named by their index in the contract → a call without arguments.
        save: the result of such a call, into a file, named by their index in the contract.
        check: a file of inputs → the bundle's check of a call alone; None in other runtimes.
        notes: what is worth saying at the end.
        shapes: of the source's example, None for what is no tensor; empty where it is not loaded.
        foreign: seconds of its start that this program spent on itself, to be left out.
        compiled: how many graphs it has compiled so far.
    """

    prepare: Callable[[Path], Callable[[], Any]]
    save: Callable[[Any, Path], None]
    check: Callable[[Path], Callable[[], Any] | None] | None = None
    notes: Callable[[], dict[str, Any]] = dict
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    foreign: float = 0.0
    compiled: Callable[[], int] = int


def open_runtime(spec: Spec) -> Runtime:
    """Load the runtime of ``spec`` in this process."""
    if spec.runtime in (BUNDLE, BUNDLE_TORCH, BUNDLE_GENERAL):
        return _bundle(spec)
    if spec.runtime == ONNXRUNTIME:
        return _onnxruntime(spec)
    from .bench_peers import open_peer

    return open_peer(spec)


def contract_of(bundle: str) -> Contract:
    """The contract in a bundle's manifest."""
    with open_bundle(bundle) as opened:
        return opened.manifest.contract


def states_of(bundle: str) -> list[str]:
    """The buffers that the model of a bundle changes from call to call."""
    with open_bundle(bundle) as opened:
        return [state.name for state in opened.manifest.states]


def _read(file: Path) -> dict[str, Weight]:
    """Tensors as a caller has them: arrays of their own, aligned as numpy aligns them."""
    found = read_weights(memoryview(file.read_bytes()))
    return {name: Weight(weight.data.copy(), weight.dtype) for name, weight in found.items()}


def _bundle(spec: Spec) -> Runtime:
    from ..runtime import load
    from ..runtime.guards import compile_dispatch
    from ..runtime.structure import bind, call_of, is_plain, leaves_of
    from ..runtime.tensors import WITHOUT_NUMPY, as_numpy_bits, from_bits
    from ..runtime.variants import routes_of

    # The peers run on the CPU.
    model = load(spec.bundle, device="cpu", num_threads=spec.threads, variant=spec.variant or None)
    contract = model.contract

    def arguments(file: Path) -> tuple[list[Any], dict[str, Any]]:
        given = _read(file)
        values = [
            item.value if isinstance(item, Fixed) else from_weight(given[f"{index}"])
            for index, item in enumerate(contract.inputs)
        ]
        return call_of(contract, values)

    def from_weight(weight: Weight) -> Any:
        if spec.runtime == BUNDLE_TORCH:
            import torch

            return torch.from_dlpack(from_bits(weight.data, weight.dtype)).clone()
        if weight.dtype in WITHOUT_NUMPY:
            return from_bits(weight.data, weight.dtype)
        return weight.data

    def prepare(file: Path) -> Callable[[], Any]:
        args, kwargs = arguments(file)
        call = served(model)  # on a state as at export
        return lambda: call(*args, **kwargs)

    def save(result: Any, file: Path) -> None:
        leaves = leaves_of(contract.result, result)
        tensors: dict[str, np.ndarray | Weight] = {}
        for index, output in enumerate(contract.outputs):
            if isinstance(output, TensorOutput):
                value = leaves[index]
                if output.dtype in WITHOUT_NUMPY:
                    value = Weight(as_numpy_bits(value, output.dtype), output.dtype)
                elif spec.runtime == BUNDLE_TORCH:
                    value = value.numpy()
                tensors[f"{index}"] = value
        write_weights(file, tensors)

    checks = compile_dispatch(contract, routes_of(model.manifest, model.target))
    plain = is_plain(contract.parameters)

    def check(file: Path) -> Callable[[], Any] | None:
        args, kwargs = arguments(file)
        if plain and not kwargs:
            call = lambda: checks.numpy(args)  # noqa: E731
        else:
            call = lambda: checks.numpy(bind(contract, args, kwargs))  # noqa: E731
        try:
            return call if call() is not None else None
        except Exception:  # an input of another library than numpy: the check is another one
            return None

    def notes() -> dict[str, Any]:
        served = [name for name, calls in model.metrics.variants.items() if calls]
        return {"target": model.target.name, **({"variants": "; ".join(served)} if served else {})}

    return Runtime(prepare, save, check, notes)


def _onnxruntime(spec: Spec) -> Runtime:
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = spec.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(spec.built, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    contract = contract_of(spec.bundle)
    taken = [f"{i}" for i, item in enumerate(contract.inputs) if isinstance(item, TensorInput)]
    made = [f"{i}" for i, item in enumerate(contract.outputs) if isinstance(item, TensorOutput)]
    if len(names) != len(taken):
        raise ValueError(f"the ONNX program takes {names}, the model {len(taken)} tensors")

    def prepare(file: Path) -> Callable[[], Any]:
        given = _read(file)
        feed = {name: given[index].data for name, index in zip(names, taken, strict=True)}
        return lambda: session.run(None, feed)

    def save(result: Any, file: Path) -> None:
        outputs = zip(made, result, strict=True)
        write_weights(file, {name: np.asarray(value) for name, value in outputs})

    return Runtime(prepare, save)
