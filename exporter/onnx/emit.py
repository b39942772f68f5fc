"""An ONNX copy of the model that is exported, beside its bundle: made by torch.onnx, dims by name.

The model is traced for it once more: what torch.onnx can translate are torch's own ops, not those that
we keep whole. So nothing is said of the copy by the bundle, and it appears only after ONNX Runtime gave
eager's numbers with it wherever the bundle was compared.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config as shape_config
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.utils import _pytree as pytree

from ...artifacts.container import publish
from ...artifacts.contract import Contract, Fixed, SizeOutput, TensorOutput
from ...artifacts.errors import Diagnostic, ExportError, Location, UsageError
from ...artifacts.expr import dims_of, render
from ...lowering.draws import GENERATOR
from ...lowering.locations import user_location
from ...lowering.states import states
from ..breaks import eager_failure
from ..eager import quietly, without_fast_path, without_logs
from ..examples import resized
from ..source import Source
from ..stages import Stages
from ..state import preserved
from ..trace import LOGS, Trace
from ..variants import Arm
from ..verify import Checked
from .read import require_package
from .reference import OnnxRuntime

_INLINE = 1 << 30  # bytes of weights that stay in the file itself; protobuf ends at 2 GB
_SYMBOL = re.compile(r"\b[su]\d+\b")
_WITHOUT = ("an export without --emit-onnx",)


class EmittedModel(OnnxRuntime):
    """The copy as ONNX Runtime runs it."""

    name = "its ONNX copy"


@dataclass(frozen=True)
class Draft:
    """The files of a copy that nobody has seen yet, in a folder of their own, and who runs them.

    ``files``: in the order in which they get their names: the one that names the other is the last.
    """

    files: tuple[Path, ...]
    reference: EmittedModel

    def require_compared(self, checked: Sequence[Checked], contract: Contract) -> None:
        """
        Raises:
            ExportError: TC133, ONNX Runtime did not run it everywhere, or at fewer than two sizes
                where the contract holds two.
        """
        own = [each for each in checked if each.against == self.reference.name]
        failed = [each for each in own if each.skipped]
        sizes = {tuple(sorted(each.sizes.items())) for each in own if not each.skipped}
        wanted = 2 if any(dim.hi != dim.lo for dim in contract.dims) else 1
        if failed:
            message = "ONNX Runtime does not run the ONNX copy wherever the model runs"
        elif len(sizes) < wanted:
            message = f"the ONNX copy could be compared at {len(sizes)} of {wanted} sizes only"
        else:
            return
        notes = dict.fromkeys(f"{_at(each.sizes)}: {each.skipped}" for each in failed)
        raise ExportError(Diagnostic("TC133", message, notes=tuple(notes), tries=_WITHOUT))

    @contextmanager
    def published(self, folder: Path) -> Iterator[Path]:
        """Give the files their names; where what follows fails, those that are new go again.

        Raises:
            UsageError: TC012.
        """
        new: list[Path] = []
        try:
            for file in self.files:
                place = folder / file.name
                if not place.exists():
                    new.append(place)
                publish(file, place)
            yield folder / self.files[-1].name
        except BaseException:
            for place in reversed(new):
                with suppress(OSError):
                    place.unlink(missing_ok=True)
            raise


def copy_of(bundle: Path) -> Path:
    """Where the copy of a bundle is put."""
    return bundle.with_name(f"{bundle.stem}.onnx")


def require_emittable(source: Source, bundle: Path) -> None:
    """
    Raises:
        UsageError: TC011, what the copy is made or compared with is not installed; TC012, it would
            have the bundle's own name.
        ExportError: TC135, the source is an ONNX file already.
    """
    require_package("onnx", "onnxscript", "onnxruntime")
    place = copy_of(bundle)
    if place == bundle:
        raise UsageError(Diagnostic("TC012", f"cannot write {place}: it is the bundle's own name"))
    if source.file and source.file.endswith(".onnx"):
        raise _refused(f"{source.file} is an ONNX file already")


@contextmanager
def emitted(source: Source, arms: Sequence[Arm], bundle: Path, stages: Stages) -> Iterator[Draft]:
    """The draft of a copy for ``bundle``; what was not published is gone afterwards.

    Raises:
        ExportError: TC135, torch.onnx cannot write the model, or not with these dims.
        UsageError: TC012.
    """
    traced, contract = arms[0].traced, arms[0].derived.contract
    if len(arms) > 1:
        raise _refused("an arm of a branch each is traced for --cover, and a copy holds one trace")
    _require_plain(traced, contract)
    place = copy_of(bundle)
    folder = place.with_name(f".{place.name}.{secrets.token_hex(6)}.unverified")
    try:
        try:
            with stages("write the ONNX copy"):
                folder.mkdir()
                program = _program(source.module, traced, contract)
                model = _model(program)
                inputs = _named_inputs(model, traced)
                outputs = _named_outputs(model, program, contract)
                files = _saved(model, folder / place.name)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(Diagnostic("TC012", f"cannot write {place}: {reason}")) from None
        yield Draft(files, EmittedModel(files[-1], inputs, outputs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_plain(traced: Trace, contract: Contract) -> None:
    """Refuse what a graph of ONNX has no place for."""
    names = [state.name for state in states(traced.program)]
    if GENERATOR in names:
        raise _refused("it draws random numbers, and what ONNX Runtime draws are others")
    if names:
        raise _refused(f"it keeps state from call to call: {', '.join(names)}")
    dtypes = {path: str(leaf.dtype) for path, leaf in traced.bound.tensors.items()}
    for output in contract.outputs:
        if isinstance(output, TensorOutput):
            dtypes[output.path] = output.dtype
        elif isinstance(output, Fixed) and output.value is not None:
            raise _refused(
                f"the output {output.path} is always {output.value!r}, and ONNX gives tensors alone"
            )
    complex_ones = [path for path, dtype in dtypes.items() if "complex" in dtype]
    if complex_ones:
        raise _refused(f"ONNX has no complex numbers: {', '.join(complex_ones)}")


def _program(module: torch.nn.Module, traced: Trace, contract: Contract) -> ExportedProgram:
    """The model with torch's own ops, traced as the bundle's trace was, in the contract's ranges."""
    spans = {dim.name: (dim.lo, dim.hi) for dim in contract.dims}
    leaves = [
        leaf if axes is None else resized(leaf, axes, traced.example_sizes, traced.sizes)
        for (_, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True)
    ]
    _, spec = pytree.tree_flatten((traced.bound.args, traced.bound.kwargs))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    shapes = ShapesCollection()
    for leaf, axes in zip(leaves, traced.shapes, strict=True):
        if axes is not None and any(dims_of(axis) for axis in axes):
            shapes[leaf] = [
                Dim.STATIC if not dims_of(axis) else _hint(*spans.get(str(axis), (0, None)))
                for axis in axes
            ]
    dynamic = shapes.dynamic_shapes(module, args, kwargs) if len(shapes) else None
    try:
        with (
            torch.no_grad(),
            preserved(module),
            quietly(),
            without_logs(*LOGS),
            without_fast_path(),  # the fused op has no shape expressions
            shape_config.patch(backed_size_oblivious=True, use_duck_shape=False),
        ):
            return torch.export.export(
                module, args, kwargs, dynamic_shapes=dynamic, strict=traced.strict
            )
    except Exception as error:  # whatever torch meets
        raise _refused(_reason(error)) from error
    finally:
        torch._dynamo.reset()


def _hint(lo: int, hi: int | None) -> Any:
    return Dim.AUTO(min=lo, max=hi)


def _model(program: ExportedProgram) -> Any:
    """What torch.onnx makes of a program, without the lines and paths of the one who made it."""
    try:
        with torch.no_grad(), quietly(), without_logs(*LOGS, "torch.onnx"):
            made = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:  # whatever torch.onnx meets
        reason = _reason(error)
        raise _refused(reason, _line_of(program, reason)) from error
    assert made is not None  # it is None only where the old exporter writes to a file
    model = made.model
    model.metadata_props.clear()
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    return model


def _named_inputs(model: Any, traced: Trace) -> list[str]:
    """Call the inputs as calls do (``batch.ids``), and every size by the user's dims.

    Raises:
        ExportError: TC135, torch.onnx has fixed an axis that is dynamic.
    """
    import onnx_ir

    tensors = [
        (path, axes or ())
        for (path, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True)
        if isinstance(leaf, torch.Tensor)
    ]
    inputs = list(model.graph.inputs)
    if len(inputs) != len(tensors):
        raise _refused(
            f"torch.onnx gives it {len(inputs)} inputs, and the model has {len(tensors)}"
        )
    names: dict[str, str] = {}
    for each, (path, axes) in zip(inputs, tensors, strict=True):
        for axis, (size, expr) in enumerate(zip(each.shape, axes, strict=True)):
            if not dims_of(expr):
                continue
            if isinstance(size, int):
                raise _refused(
                    f"axis {axis} of {path} is {render(expr)}, and torch fixes it at {size}"
                )
            names.setdefault(str(size.value), render(expr))

    def called(symbol: re.Match[str]) -> str:
        name = names.get(symbol[0], symbol[0])
        return name if name.isidentifier() or symbol[0] == symbol.string else f"({name})"

    for value in _values(model):
        if value.shape is None:
            continue
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int) and size.value is not None:
                value.shape[axis] = onnx_ir.SymbolicDim(_SYMBOL.sub(called, str(size.value)))
    for each, (_, axes) in zip(inputs, tensors, strict=True):
        for axis, expr in enumerate(axes):
            if dims_of(expr):
                each.shape[axis] = onnx_ir.SymbolicDim(render(expr))
    _rename(model, dict(zip(inputs, (path for path, _ in tensors), strict=True)))
    return [each.name for each in inputs]


def _named_outputs(model: Any, program: ExportedProgram, contract: Contract) -> list[str]:
    """Call the outputs as the contract does; the names of those that are tensors.

    Raises:
        ExportError: TC135, torch.onnx gives others.
    """
    specs = [
        spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
    ]
    outputs = list(model.graph.outputs)
    shown = [
        output
        for output, spec in zip(contract.outputs, specs, strict=True)
        if not isinstance(spec.arg, ConstantArgument)
    ]
    if len(outputs) != len(shown):
        raise _refused(
            f"torch.onnx gives it {len(outputs)} outputs, and the model has {len(shown)}"
        )
    pairs = list(zip(outputs, shown, strict=True))
    _rename(
        model,
        {
            value: output.path
            for value, output in pairs
            if isinstance(output, (TensorOutput, SizeOutput)) and not value.is_graph_input()
        },
    )
    return [value.name for value, output in pairs if isinstance(output, TensorOutput)]


def _rename(model: Any, wanted: dict[Any, str]) -> None:
    """Give values their names; whatever else has one of these gets another."""
    taken = {value.name for value in _values(model)} | set(wanted.values())
    for value in list(_values(model)):
        if value.name in wanted.values() and value not in wanted:
            number = 0
            while (name := f"{value.name}_{number}") in taken:
                number += 1
            taken.add(name)
            value.name = name
    for value, name in wanted.items():
        value.name = name


def _values(model: Any) -> Iterator[Any]:
    """The values of the graph and of the graphs in it."""
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph.all_nodes():
        yield from node.outputs


def _saved(model: Any, path: Path) -> tuple[Path, ...]:
    """Write a model; large weights go into a file beside it, named by what is in it."""
    import onnx_ir

    tensors = [value.const_value for value in model.graph.initializers.values()]
    if sum(tensor.nbytes for tensor in tensors) <= _INLINE:
        onnx_ir.save(model, path)
        return (path,)
    digest = hashlib.sha256()
    for name, value in model.graph.initializers.items():
        digest.update(f"{name} {value.const_value.dtype} {value.const_value.shape}\0".encode())
        digest.update(value.const_value.tobytes())
    data = path.with_name(f"{path.stem}-{digest.hexdigest()[:16]}.onnx.data")
    onnx_ir.save(model, path, external_data=data.name)
    return data, path


def _line_of(program: ExportedProgram, reason: str) -> Location | None:
    """The line of the op that a reason names: torch.onnx looks at what is decomposed."""
    named = re.search(r"op='(\w+)\.(\w+)'", reason)
    if named is None:
        return None
    with suppress(Exception), quietly():
        program = program.run_decompositions()
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            op = node.target
            if isinstance(op, torch._ops.OpOverload) and op._schema.name == "::".join(
                named.groups()
            ):
                return user_location(node.meta.get("stack_trace"))
    return None


def _reason(error: BaseException) -> str:
    """The first line of the innermost cause: torch.onnx wraps what it meets in long reports."""
    while error.__cause__ is not None:
        error = error.__cause__
    return eager_failure(error)[0]


def _at(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the example"


def _refused(reason: str, location: Location | None = None) -> ExportError:
    return ExportError(
        Diagnostic(
            "TC135",
            "the model has no ONNX copy",
            location=location,
            notes=(reason,),
            tries=_WITHOUT,
        )
    )
