"""The peers that run under torch: eager, torch.compile, AOTInductor; and what is built beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..artifacts.contract import AxisSource, Contract, Fixed, TensorInput, TensorOutput
from ..artifacts.expr import Expr
from .bench_runtimes import AOTI, COMPILE, COMPILE_DYNAMIC, EAGER, Runtime, Spec, contract_of

_RECOMPILES = 256  # beyond its limit, torch.compile runs eager without a word


def open_peer(spec: Spec) -> Runtime:
    """Load a peer in this process: the source's model, or what was built from it."""
    torch.set_num_threads(spec.threads)
    start = time.perf_counter()
    from ..exporter.signature import bind
    from ..exporter.source import load_source

    foreign = time.perf_counter() - start
    contract = contract_of(spec.bundle)
    source = load_source(spec.against or "", inputs=spec.inputs)
    bound = bind(source.module, source.args, source.kwargs)
    _check_same(contract, bound.leaves)
    form = pytree.tree_structure((bound.args, bound.kwargs))
    leaves = [leaf for _, leaf in bound.leaves]
    function = _function(spec, source.module)

    def prepare(file: Path) -> Callable[[], Any]:
        args, kwargs = pytree.tree_unflatten(_leaves_from(file, leaves), form)

        def call() -> Any:
            with torch.inference_mode():
                return function(*args, **kwargs)

        return call

    def save(result: Any, file: Path) -> None:
        from safetensors.torch import save_file

        values = pytree.tree_leaves(result)
        if len(values) != len(contract.outputs):
            raise ValueError(f"{len(values)} outputs, the bundle has {len(contract.outputs)}")
        tensors = {
            f"{index}": value.clone(memory_format=torch.contiguous_format)
            for index, (output, value) in enumerate(zip(contract.outputs, values, strict=True))
            if isinstance(output, TensorOutput)
        }
        save_file(tensors, file)

    shapes = tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
    return Runtime(prepare, save, notes=lambda: _notes(spec), shapes=shapes, foreign=foreign)


def _function(spec: Spec, module: torch.nn.Module) -> Callable[..., Any]:
    if spec.runtime == EAGER:
        return module
    if spec.runtime in (COMPILE, COMPILE_DYNAMIC):
        torch._dynamo.config.recompile_limit = _RECOMPILES
        torch._dynamo.config.accumulated_recompile_limit = _RECOMPILES
        compiled: Callable[..., Any] = torch.compile(
            module, dynamic=spec.runtime == COMPILE_DYNAMIC
        )
        return compiled
    if spec.runtime == AOTI:
        package: Callable[..., Any] = torch._inductor.aoti_load_package(spec.built)
        return package
    raise ValueError(f"no such runtime: {spec.runtime}")


def _notes(spec: Spec) -> dict[str, Any]:
    if spec.runtime not in (COMPILE, COMPILE_DYNAMIC):
        return {}
    from torch._dynamo.utils import counters

    breaks = sum(counters["graph_break"].values())
    graphs = int(counters["stats"]["unique_graphs"])
    return {"graphs compiled": graphs, **({"graph breaks": breaks} if breaks else {})}


def _check_same(contract: Contract, leaves: Sequence[tuple[str, Any]]) -> None:
    """Raises ValueError unless the source is called as the bundle is."""
    taken = [path for path, _ in leaves]
    wanted = [item.path for item in contract.inputs]
    if taken != wanted:
        raise ValueError(f"the source takes {', '.join(taken)}, the bundle {', '.join(wanted)}")
    for item, (path, leaf) in zip(contract.inputs, leaves, strict=True):
        if isinstance(item, Fixed) and not item.admits(leaf):
            raise ValueError(f"{path} is {leaf!r} in the source, {item.value!r} in the bundle")


def _leaves_from(file: Path, leaves: Sequence[Any]) -> list[Any]:
    """The leaves of a call: the tensors in a file, and the example's plain values."""
    from safetensors.torch import load_file

    given = load_file(file)
    return [
        given[f"{index}"].clone() if isinstance(leaf, torch.Tensor) else leaf
        for index, leaf in enumerate(leaves)
    ]


# --- built beforehand -------------------------------------------------------------------------------


def build(spec: Spec) -> dict[str, Any]:
    """Export the source with the contract's ranges and build what AOTInductor or ONNX Runtime loads.

    Where torch refuses the ranges, it is left to find its own (`Dim.AUTO`); ``dims`` of the answer
    says so, and why.
    """
    torch.set_num_threads(spec.threads)
    try:
        _build(spec, auto=False)
        return {"dims": "the contract's ranges"}
    except Exception as refused:  # whatever torch raises about the ranges
        try:
            _build(spec, auto=True)
        except Exception as error:
            raise error from refused
        reason = f"{type(refused).__name__}: {refused}".strip().splitlines()[0]
        return {"dims": f"Dim.AUTO, for the contract's ranges were refused ({reason:.200})"}


def _build(spec: Spec, auto: bool) -> None:
    from ..exporter.signature import bind
    from ..exporter.source import load_source

    contract = contract_of(spec.bundle)
    source = load_source(spec.against or "", inputs=spec.inputs)
    bound = bind(source.module, source.args, source.kwargs)
    _check_same(contract, bound.leaves)
    form = pytree.tree_structure((bound.args, bound.kwargs))
    leaves = _leaves_from(Path(spec.trace or ""), [leaf for _, leaf in bound.leaves])
    args, kwargs = pytree.tree_unflatten(leaves, form)
    by_position, by_name = pytree.tree_unflatten(_dynamic_axes(contract, auto), form)
    names = [parameter.name for parameter in contract.parameters]
    with torch.no_grad():
        program = torch.export.export(
            source.module,
            args,
            kwargs,
            dynamic_shapes={**dict(zip(names, by_position, strict=False)), **by_name},
        )
        if spec.runtime == AOTI:
            torch._inductor.aoti_compile_and_package(program, package_path=spec.built)
        else:
            torch.onnx.export(program, f=spec.built, dynamo=True)


def _dynamic_axes(contract: Contract, auto: bool) -> list[Any]:
    """What torch.export is told of each leaf: its dynamic axes with their ranges."""
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

    return [
        {number: axis(size) for number, size in enumerate(item.shape)}
        if isinstance(item, TensorInput)
        else None
        for item in contract.inputs
    ]


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
        left, right = right, left  # torch's dims stand on the left, or nowhere
    if left is None or isinstance(left, int) or not isinstance(right, int):
        return None
    if size[0] == "*":
        return right * left
    return left + right if size[0] == "+" else left - right
