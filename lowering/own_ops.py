"""Ops that others have registered with torch, lowered by functions that come with the model.

The function runs here, in the process that exports: the compiler's own process knows neither the op
nor the function. What goes over is its kernel, as TVM's JSON, and in the saved program the op
``tcexport::own(inputs, number, name)`` in its place.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ..artifacts.errors import Diagnostic, ExportError
from .locations import location_of_frames, user_location
from .tensor import DTYPES

if TYPE_CHECKING:
    from .symbols import Symbols

Lowering = Callable[..., Any]

_LIBRARY = torch.library.Library("tcexport", "FRAGMENT")
_LIBRARY.define("own(Tensor[] inputs, int number, str name) -> Tensor")
OWN = torch.ops.tcexport.own.default


class OwnKernel(msgspec.Struct, frozen=True):
    """What computes one use of such an op. ``op``: its name (``mylib::gelu``); ``node``: of the graph;
    ``function``: a PrimFunc as JSON, of the tensors among the op's arguments, the torch symbols
    ``sizes`` and the result."""

    op: str
    node: str
    function: str
    sizes: tuple[str, ...]


class _Misfit(Exception):
    """Why what a lowering gave cannot be the op's result."""


def name_of(op: torch._ops.OpOverload) -> str:
    """``mylib::gelu``, or ``mylib::gelu.out`` where it is not the default overload."""
    overload = op._schema.overload_name
    return f"{op._schema.name}.{overload}" if overload else str(op._schema.name)


def own_kernels(
    program: torch.export.ExportedProgram, lowerings: Mapping[str, Lowering]
) -> tuple[OwnKernel, ...]:
    """The kernels for the ops of a program that ``lowerings`` names.

    Raises:
        ExportError: TC520, a lowering failed, or its result is not what the op's fake says; each.
    """
    kernels: list[OwnKernel] = []
    errors: dict[Diagnostic, None] = {}
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and name_of(node.target) in lowerings:
            name = name_of(node.target)
            try:
                kernels.append(_kernel(node, name, lowerings[name]))
            except _Misfit as misfit:
                where = user_location(node.meta.get("stack_trace"))
                errors[Diagnostic("TC520", f"the lowering of {name} {misfit}", where)] = None
            except Exception as error:  # whatever the user's function raises
                frames = [
                    (f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)
                ]
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                message = f"the lowering of {name} failed: {said}"
                errors[Diagnostic("TC520", message, location_of_frames(frames))] = None
    if errors:
        raise ExportError(errors)
    return tuple(kernels)


@contextmanager
def put_in(program: torch.export.ExportedProgram, kernels: tuple[OwnKernel, ...]) -> Iterator[None]:
    """While active, the graph has `OWN` for every op that has a kernel."""
    number_of = {kernel.node: number for number, kernel in enumerate(kernels)}
    nodes = [node for node in program.graph.nodes if node.name in number_of]
    before = [(node.target, node.args, node.kwargs) for node in nodes]
    for node in nodes:
        number = number_of[node.name]
        node.target, node.args, node.kwargs = (
            OWN,
            (_tensors(node), number, kernels[number].op),
            {},
        )
    try:
        yield
    finally:
        for node, (target, args, kwargs) in zip(nodes, before, strict=True):
            node.target, node.args, node.kwargs = target, args, kwargs


def _tensors(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors among a node's arguments, in the order of the op's schema."""
    found: list[torch.fx.Node] = []

    def look(value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for each in value:
                look(each)
        elif isinstance(value, torch.fx.Node) and isinstance(value.meta["val"], torch.Tensor):
            found.append(value)

    positional, named = _arguments(node)
    look([*positional, *named.values()])
    return found


def _arguments(node: torch.fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """What a call of the op passes, its defaults filled in: by position, and by name alone."""
    assert isinstance(node.target, torch._ops.OpOverload)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for place, argument in enumerate(node.target._schema.arguments):
        if place < len(node.args):
            value = node.args[place]
        else:
            value = node.kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def _kernel(node: torch.fx.Node, name: str, lowering: Lowering) -> OwnKernel:
    import tvm
    from tvm import te, tirx

    from .symbols import Symbols, as_shape, as_size

    expected = node.meta["val"]
    if not isinstance(expected, torch.Tensor):
        raise _Misfit("cannot be used: the op gives more than one tensor")
    scope = Symbols()
    placeholders: list[Any] = []

    def given(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [given(each) for each in value]
        if not isinstance(value, torch.fx.Node):
            return value
        fake = value.meta["val"]
        if not isinstance(fake, torch.Tensor):
            return scope.size(as_size(fake))
        if fake.dtype not in DTYPES:
            raise _Misfit(f"cannot be used: an argument is of {fake.dtype}")
        shape = scope.shape(as_shape(fake.shape))
        placeholders.append(te.placeholder(shape, DTYPES[fake.dtype], f"x{len(placeholders)}"))
        return placeholders[-1]

    positional, named = _arguments(node)
    result = lowering(*given(positional), **{key: given(value) for key, value in named.items()})
    free: list[str] = []
    if isinstance(result, tirx.PrimFunc):
        function = _checked_function(result, placeholders, expected, scope)
    elif isinstance(result, te.Tensor):
        _require_fit(str(result.dtype), list(result.shape), expected, scope)
        bound = {size for each in (*placeholders, result) for size in each.shape}
        free = sorted(n for n, variable in scope.variables.items() if variable not in bound)
        function = te.create_prim_func(
            [*placeholders, *(scope.variables[n] for n in free), result], "int64"
        ).without_attr("global_symbol")
        if free or not placeholders:
            function = function.with_attr("op_pattern", 8)  # FuseOps leaves it alone
    else:
        raise _Misfit(f"gave a {type(result).__name__}, not a te.Tensor or a PrimFunc")
    return OwnKernel(name, node.name, str(tvm.ir.save_json(function)), tuple(free))


def _checked_function(
    function: Any, placeholders: list[Any], expected: torch.Tensor, scope: Symbols
) -> Any:
    """A PrimFunc of the tensors and the result, if that is what it is; sizes are read from it."""
    import tvm_ffi
    from tvm import tirx
    from tvm.tirx.buffer import BufferType

    buffers = list(function.params)
    only = all(isinstance(each.ty, BufferType) for each in buffers)
    if not only or len(buffers) != len(placeholders) + 1:
        raise _Misfit(f"takes other than {len(placeholders)} buffers and one for the result")
    sizes: dict[Any, Any] = {}
    for number, (buffer, tensor) in enumerate(zip(buffers, placeholders, strict=False)):
        same = buffer.dtype == tensor.dtype and len(buffer.shape) == len(tensor.shape)
        for size, known in zip(buffer.shape, tensor.shape, strict=False):
            if isinstance(size, tirx.Var):
                same = same and _equal(sizes.setdefault(size, known), known)
            else:
                same = same and _equal(size, known)
        if not same:
            taken, passed = (_text(each.dtype, list(each.shape)) for each in (buffer, tensor))
            raise _Misfit(f"takes {taken} where argument {number} is {passed}")
    result = buffers[-1]
    shape = [
        tvm_ffi.structural_mutate(
            size, ((tirx.Var, lambda variable, _: sizes.get(variable, variable)),)
        )
        for size in result.shape
    ]
    _require_fit(str(result.dtype), shape, expected, scope)
    for name, value in {"op_pattern": 8, "tcexport.scheduled": 1, "tirx.noalias": True}.items():
        function = function.with_attr(name, value)
    return function.without_attr("global_symbol")


def _require_fit(dtype: str, shape: list[Any], expected: torch.Tensor, scope: Symbols) -> None:
    from .symbols import as_shape

    sizes = scope.shape(as_shape(expected.shape))
    same = dtype == DTYPES.get(expected.dtype) and len(shape) == len(sizes)
    if not same or not all(_equal(a, b) for a, b in zip(shape, sizes, strict=True)):
        fake = str(expected.dtype).removeprefix("torch.")
        raise _Misfit(f"gives {_text(dtype, shape)}, the op's fake {_text(fake, sizes)}")


def _equal(one: Any, other: Any) -> bool:
    from tvm import tirx
    from tvm.sym import Analyzer

    a, b = (
        tirx.IntImm("int64", int(each))
        if isinstance(each, (int, tirx.IntImm))
        else each.astype("int64")
        for each in (one, other)
    )
    return bool(Analyzer().can_prove_equal(a, b))


def _text(dtype: str, shape: list[Any]) -> str:
    from tvm import tirx

    sizes = (int(size) if isinstance(size, tirx.IntImm) else size for size in shape)
    return f"{dtype}[{', '.join(map(str, sizes))}]"


def kernel_name(op: str) -> str:
    """What the function is called in a library."""
    return re.sub(r"\W+", "_", f"own_{op}")
