"""The peers that run under torch: eager, torch.compile, AOTInductor, ExecuTorch; and what is built
beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..artifacts.contract import AxisSource, Contract, Fixed, TensorInput, TensorOutput
from ..artifacts.expr import Expr
from .bench_names import (
    AOTI,
    COMPILE,
    COMPILE_AUTO,
    COMPILE_DYNAMIC,
    COMPILE_WARMED,
    EAGER,
    EXECUTORCH,
)
from .bench_runtimes import Runtime, Spec, contract_of, states_of

_RECOMPILES = 256  # beyond its limit, torch.compile runs eager without a word


def open_peer(spec: Spec) -> Runtime:
    """Load a peer in this process."""
    torch.set_num_threads(spec.threads)
    if spec.runtime == AOTI:
        package = torch._inductor.aoti_load_package(spec.built)
        return _built(spec, lambda tensors: package(*tensors))
    if spec.runtime == EXECUTORCH:
        from executorch.runtime import Runtime as Executorch

        method = Executorch.get().load_program(Path(spec.built or "")).load_method("forward")
        return _built(spec, method.execute)
    return _from_source(spec)


def _from_source(spec: Spec) -> Runtime:
    start = time.perf_counter()
    # Imported now, so that it is not counted.
    from ..exporter import signature, source  # noqa: F401
    from ..exporter.sessions import reset_of

    foreign = time.perf_counter() - start
    contract = contract_of(spec.bundle)
    loaded = _load(spec, contract)
    function = _function(spec, loaded.module)
    reset = reset_of(loaded.module, states_of(spec.bundle))

    def prepare(file: Path) -> Callable[[], Any]:
        args, kwargs = loaded.arguments(_tensors(file))
        reset()

        def call() -> Any:
            with torch.inference_mode():
                return function(*args, **kwargs)

        return call

    def save(result: Any, file: Path) -> None:
        values = pytree.tree_leaves(result)
        if len(values) != len(contract.outputs):
            raise ValueError(f"{len(values)} outputs, the bundle has {len(contract.outputs)}")
        _save({f"{index}": values[index] for index in _tensor_outputs(contract)}, file)

    shapes = tuple(
        tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in loaded.leaves
    )
    return Runtime(
        prepare,
        save,
        notes=lambda: _notes(spec),
        shapes=shapes,
        foreign=foreign,
        compiled=_graphs_compiled,
    )


def _built(spec: Spec, function: Callable[[list[torch.Tensor]], Any]) -> Runtime:
    """What was built beforehand, as a function of its tensors."""
    outputs = [f"{index}" for index in _tensor_outputs(contract_of(spec.bundle))]

    def prepare(file: Path) -> Callable[[], Any]:
        tensors = _tensors(file)

        def call() -> Any:
            with torch.inference_mode():
                return function(tensors)

        return call

    return Runtime(
        prepare, lambda result, file: _save(dict(zip(outputs, result, strict=True)), file)
    )


def _function(spec: Spec, module: torch.nn.Module) -> Callable[..., Any]:
    if spec.runtime == EAGER:
        return module
    if spec.runtime not in _DYNAMIC:
        raise ValueError(f"no such runtime: {spec.runtime}")
    torch._dynamo.config.recompile_limit = _RECOMPILES
    torch._dynamo.config.accumulated_recompile_limit = _RECOMPILES
    compiled: Callable[..., Any] = torch.compile(module, dynamic=_DYNAMIC[spec.runtime])
    return compiled


# What `torch.compile` is told of sizes.
_DYNAMIC = {COMPILE: False, COMPILE_WARMED: False, COMPILE_DYNAMIC: True, COMPILE_AUTO: None}


def _graphs_compiled() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _notes(spec: Spec) -> dict[str, Any]:
    if spec.runtime == EAGER:
        return {}
    from torch._dynamo.utils import counters

    breaks = sum(counters["graph_break"].values())
    return {"graphs compiled": _graphs_compiled(), **({"graph breaks": breaks} if breaks else {})}


def _tensor_outputs(contract: Contract) -> list[int]:
    return [i for i, output in enumerate(contract.outputs) if isinstance(output, TensorOutput)]


def _tensors(file: Path) -> list[torch.Tensor]:
    """The tensors of a file of inputs, by their index in the contract, in memory of their own."""
    from safetensors.torch import load_file

    found = load_file(file)
    return [found[name].clone() for name in sorted(filter(str.isdecimal, found), key=int)]


def _save(tensors: dict[str, torch.Tensor], file: Path) -> None:
    from safetensors.torch import save_file

    # Clones: a model may give the same memory twice, which a file cannot say.
    save_file(
        {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        },
        file,
    )


# --- the source -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loaded:
    """A source's model, the leaves of its example and the form of its arguments."""

    module: torch.nn.Module
    leaves: tuple[Any, ...]
    form: pytree.TreeSpec

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with these tensors, in order, and the example's plain values."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.form)
        return args, kwargs


def _load(spec: Spec, contract: Contract) -> _Loaded:
    """Load the source.

    Raises:
        ValueError: it is not called as the bundle is.
    """
    from ..exporter.signature import bind
    from ..exporter.source import load_source

    source = load_source(spec.against or "", inputs=spec.inputs)
    bound = bind(source.module, source.args, source.kwargs)
    taken = [path for path, _ in bound.leaves]
    wanted = [item.path for item in contract.inputs]
    if taken != wanted:
        raise ValueError(f"the source takes {', '.join(taken)}, the bundle {', '.join(wanted)}")
    for item, (path, leaf) in zip(contract.inputs, bound.leaves, strict=True):
        if isinstance(item, Fixed) and not item.admits(leaf):
            raise ValueError(f"{path} is {leaf!r} in the source, {item.value!r} in the bundle")
    form = pytree.tree_structure((bound.args, bound.kwargs))
    return _Loaded(source.module, tuple(leaf for _, leaf in bound.leaves), form)


# --- built beforehand -------------------------------------------------------------------------------


class _Flat(torch.nn.Module):
    """A model that takes its tensors one by one and gives them so: what is built from it needs
    neither the source nor the classes of its arguments and results."""

    def __init__(self, loaded: _Loaded, outputs: Sequence[int]) -> None:
        super().__init__()
        self.module = loaded.module
        self._loaded = loaded
        self._outputs = tuple(outputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._loaded.arguments(tensors)
        values = pytree.tree_leaves(self.module(*args, **kwargs))
        return tuple(values[index] for index in self._outputs)


def build(spec: Spec) -> dict[str, Any]:
    """Export the source with the contract's ranges and build what the runtime (one of `BUILT`) loads.

    Where torch refuses the ranges, it is left to find its own (`Dim.AUTO`); ``dims`` of the answer
    says so, and why.
    """
    torch.set_num_threads(spec.threads)
    if states := states_of(spec.bundle):
        raise ValueError(f"the model keeps state ({states[0]}), which cannot be begun anew there")
    contract = contract_of(spec.bundle)
    loaded = _load(spec, contract)
    model = _Flat(loaded, _tensor_outputs(contract)).eval()
    tensors = tuple(_tensors(Path(spec.trace or "")))
    try:
        _build(spec, model, tensors, _dynamic_axes(contract, auto=False))
        return {"dims": "the contract's ranges"}
    except Exception as refused:  # whatever torch raises about the ranges
        try:
            _build(spec, model, tensors, _dynamic_axes(contract, auto=True))
        except Exception as error:
            raise error from refused
        reason = f"{type(refused).__name__}: {refused}".strip().splitlines()[0]
        return {"dims": f"Dim.AUTO, for the contract's ranges were refused ({reason:.200})"}


def _build(
    spec: Spec, model: torch.nn.Module, tensors: tuple[torch.Tensor, ...], axes: Any
) -> None:
    with torch.no_grad():
        program = torch.export.export(model, tensors, dynamic_shapes={"tensors": axes})
        if spec.runtime == AOTI:
            torch._inductor.aoti_compile_and_package(program, package_path=spec.built)
        elif spec.runtime == EXECUTORCH:
            _build_executorch(spec, program)
        else:
            torch.onnx.export(program, f=spec.built, dynamo=True)


def _build_executorch(spec: Spec, program: torch.export.ExportedProgram) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    Path(spec.built or "").write_bytes(edge.to_executorch().buffer)


def _dynamic_axes(contract: Contract, auto: bool) -> tuple[dict[int, Any], ...]:
    """What torch.export is told of each tensor: its dynamic axes with their ranges."""
    dims = {
        dim.name: torch.export.Dim(dim.name, min=dim.lo, max=dim.hi)
        for dim in contract.dims
        if isinstance(dim.source, AxisSource) and dim.lo != dim.hi
    }

    def axis(size: Expr) -> Any:
        if isinstance(size, int):
            return None
        known = None if auto else _over(size, dims)
        return torch.export.Dim.AUTO if known is None else known

    return tuple(
        {number: axis(size) for number, size in enumerate(item.shape)}
        for item in contract.inputs
        if isinstance(item, TensorInput)
    )


def _over(size: Expr, dims: dict[str, Any]) -> Any:
    """A size over torch's dims: a dim, or one that is scaled and moved; None for anything else."""
    if isinstance(size, str):
        return dims.get(size)
    if isinstance(size, int):
        return size
    if len(size) != 3 or size[0] not in ("+", "-", "*"):
        return None
    left, right = _over(size[1], dims), _over(size[2], dims)
    if isinstance(left, int) and size[0] != "-":
        left, right = right, left
    if left is None or isinstance(left, int) or not isinstance(right, int):
        return None
    if size[0] == "*":
        return right * left
    return left + right if size[0] == "+" else left - right
