"""Source → trace: torch.export with the user's dims dynamic, one graph or a refusal.

The trace runs on clones of the example inputs, with every named dynamic axis symbolic and none
assumed equal to another, to 0 or to 1. What the graph then takes for granted stands in torch's shape
environment; `assumptions` reads it from there, directly after the trace.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx.experimental._config as shape_config
import torch.fx.experimental.symbolic_shapes as symbolic_shapes
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx.experimental.symbolic_shapes import RuntimeAssert
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT

from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, dims_of
from ..artifacts.prove import bounds
from ..lowering.aliases import write_beside_copies
from ..lowering.decompose import decompose
from ..lowering.locations import user_location
from ..lowering.own_ops import name_of
from ..lowering.tracing import whole_ops
from .breaks import eager_failure, explain_failure, explain_pass
from .computed import OF_A_TENSOR, lost_assertions, nodes_of
from .divisors import Divisors, recording_divisors
from .eager import quietly, run_eager, without_fast_path, without_logs
from .examples import AxisExprs, resized
from .families import FAMILIES
from .keywords import named_by_callers
from .lines import location_of_assertion, recording_lines
from .prepared_calls import without_prepared_calls
from .ranges import Request
from .reach import names_in, reach
from .signature import Bound

# Functions that a trace leaves out: they give nothing to compute with, and are reported.
IGNORED = {
    print,
    warnings.warn,
    *(
        getattr(place, name)
        for place in (logging, logging.Logger)
        for name in ("debug", "info", "warning", "error", "exception", "critical", "log")
    ),
}


# Who of torch's logs during a trace.
LOGS = ("torch._dynamo", "torch.export", "torch._subclasses.fake_tensor")

# The attribute of a module that says: its forward is run with sizes that are symbols, and that is all.
RUN_TO_TRACE = "run_to_trace"


@dataclass(frozen=True)
class Trace:
    """One functional graph, of ops that are lowered whole, and how its symbols read in the user's
    words.

    ``shapes``: for each leaf of the call (see `Bound.leaves`) the size of every axis, an int or an
    expression over the user's dims; None for a leaf that is no tensor. ``placeholders``: the name of
    the graph's input for each leaf. ``sizes``: the sizes of the dims in the trace, and
    ``example_sizes`` in the user's example. ``divisors``: what the model's Python divides by, also
    where nothing of it is left in the graph. ``zeros``: sizes may be 0 in it, where the ranges hold 0.
    """

    program: ExportedProgram
    bound: Bound
    shapes: tuple[AxisExprs | None, ...]
    placeholders: tuple[str, ...]
    sizes: dict[str, int]
    example_sizes: dict[str, int]
    strict: bool
    divisors: Divisors = field(default_factory=dict)
    zeros: bool = True


def trace(
    module: torch.nn.Module,
    bound: Bound,
    shapes: Sequence[AxisExprs | None],
    sizes: Mapping[str, int],
    requests: Mapping[str, Request],
    *,
    decomposed: bool = True,
    zeros: bool = True,
    own_ops: Collection[str] = (),
) -> Trace:
    """Trace ``module`` with the dims of ``requests`` dynamic.

    A dim whose example size is 0 or 1 is traced at a larger size, so that the example does not fix
    it; the example inputs are repeated along the axis.

    Args:
        bound: the example call.
        shapes: the size of each axis of each tensor leaf, in the user's dims or as an int.
        sizes: the size of every dim in the example.
        requests: the range asked for each dynamic dim.
        decomposed: take the graph apart to what is lowered; a model that is known to write where
            torch cannot follow would crash there.
        own_ops: the ops that are not torch's and come with a lowering.

    Raises:
        ExportError: the model cannot be traced as one graph, or writes to state or inputs, or draws
            random numbers.
    """
    traced_sizes = _traceable_sizes(sizes, requests)
    leaves = [
        resized(leaf, axes, sizes, traced_sizes) if axes is not None else leaf
        for (_, leaf), axes in zip(bound.leaves, shapes, strict=True)
    ]
    if traced_sizes != dict(sizes):
        _require_larger(module, bound, leaves, sizes, traced_sizes)
    flat, spec = pytree.tree_flatten((bound.args, bound.kwargs))
    if len(flat) != len(leaves):
        raise ExportError(
            Diagnostic("TC190", "torch sees another number of arguments than were given")
        )
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    collection = ShapesCollection()
    for leaf, axes in zip(leaves, shapes, strict=True):
        if axes is not None and any(dims_of(axis) for axis in axes):
            collection[leaf] = [_dim_hint(axis, requests) for axis in axes]
    dynamic = collection.dynamic_shapes(module, args, kwargs) if len(collection) else None
    zeros = zeros and may_be_zero(shapes, requests)
    copies = True
    with recording_divisors() as divisors, _sizes_of_zero(zeros):
        program, strict = _export(module, args, kwargs, dynamic)
        if write_beside_copies(program.graph_module) is not None:
            copies = False
            program, strict = _export(module, args, kwargs, dynamic, copies=False)
    _require_followed(module, program)
    placeholders = _placeholders(program, leaves)
    paths = dict(zip(placeholders, (path for path, _ in bound.leaves), strict=True))
    if decomposed:
        with _tracing(copies=copies):
            program = _decomposed(program, paths, own_ops)
    return Trace(
        program,
        bound,
        tuple(shapes),
        placeholders,
        dict(traced_sizes),
        dict(sizes),
        strict,
        divisors,
        zeros,
    )


def _require_followed(module: torch.nn.Module, program: ExportedProgram) -> None:
    """Every constant of the graph must have a value: what the trace lost sight of has none.

    Raises:
        ExportError: TC113, or TC108 where nothing names ``.data``, at the lines that use such a tensor.
    """
    lost = {name for name, each in program.constants.items() if isinstance(each, FakeTensor)}
    if not lost:
        return
    specs = program.graph_signature.input_specs
    names = {spec.arg.name for spec in specs if spec.target in lost}
    nodes = [node for node in program.graph.nodes if node.name in names]
    reads_data = any("data" in names_in(code) for code in reach(module).functions)
    family = FAMILIES["loose" if reads_data else "array"]
    found = {
        location: Diagnostic(family.code, family.message, location, tries=family.tries)
        for node in nodes
        for location in (user_location(user.meta.get("stack_trace")) for user in node.users)
    }
    raise ExportError(found.values())


def _require_torchs_ops(program: ExportedProgram, own_ops: Collection[str]) -> None:
    """Refuse ops that someone else has registered, and that come without a lowering: nothing outside
    of this process knows them.

    Raises:
        ExportError: TC120, each of them once.
    """
    family = FAMILIES["foreign"]
    found: dict[tuple[str, Location | None], Diagnostic] = {}
    for node in nodes_of(program):
        op = node.target
        if isinstance(op, torch._ops.OpOverload) and op.namespace not in _TORCHS:
            if name_of(op) in own_ops:
                continue
            what = str(op).removesuffix(".default")
            location = user_location(node.meta.get("stack_trace"))
            found.setdefault(
                (what, location),
                Diagnostic(
                    family.code, family.message.format(what=what), location, tries=family.tries
                ),
            )
    if found:
        raise ExportError(found.values())


_TORCHS = ("aten", "prim", "prims", "_c10d_functional", "tcexport")


def _decomposed(
    program: ExportedProgram, paths: Mapping[str, str], own_ops: Collection[str]
) -> ExportedProgram:
    try:
        program = decompose(program, paths)
        _require_torchs_ops(program, own_ops)
        return program
    except ExportError:
        raise
    except Exception as error:  # torch's own passes find only now what the trace let through
        raise ExportError(explain_pass(error, program)) from error


def _traceable_sizes(sizes: Mapping[str, int], requests: Mapping[str, Request]) -> dict[str, int]:
    """Sizes for the trace: those of the example, but never 0 or 1 where another is served."""
    chosen = dict(sizes)
    taken = set(sizes.values())
    for name, request in requests.items():
        if sizes[name] > 1:
            continue
        span = request.span
        for size in range(span.lo, span.lo + 64 * span.step, span.step):
            fits = span.hi is None or size <= span.hi
            if fits and size > 1 and size not in taken:
                chosen[name] = size
                taken.add(size)
                break
    return chosen


def _require_larger(
    module: torch.nn.Module,
    bound: Bound,
    leaves: Sequence[Any],
    sizes: Mapping[str, int],
    larger: Mapping[str, int],
) -> None:
    """The model must run where its example was made larger.

    Raises:
        ExportError: TC201, it runs at the example's own size only.
    """
    try:
        run_eager(module, bound, leaves)
    except Exception as error:  # whatever the user's model raises
        message, where = eager_failure(error)
        changed = {name: size for name, size in larger.items() if size != sizes[name]}
        names = " and ".join(changed)
        at = ", ".join(f"{name}={size}" for name, size in changed.items())
        raise ExportError(
            Diagnostic(
                "TC201",
                f"{names} can't be dynamic: the model itself fails with {at}",
                location=where,
                notes=(message,),
                tries=(f"leave {names} out of --dynamic",),
            )
        ) from error


def _dim_hint(axis: Expr, requests: Mapping[str, Request]) -> Any:
    """What torch is told of an axis: its bounds where the axis is a dim itself."""
    if not dims_of(axis):
        return None
    if not isinstance(axis, str):
        return Dim.AUTO(min=0)
    span = requests[axis].span
    return Dim.AUTO(min=span.lo, max=span.hi)


def may_be_zero(shapes: Sequence[AxisExprs | None], requests: Mapping[str, Request]) -> bool:
    """Whether the ranges asked for hold a call with a dynamic axis of size 0."""
    spans = {name: request.span for name, request in requests.items()}
    sizes = [axis for axes in shapes for axis in axes or () if dims_of(axis)]
    return any(bounds(size, spans)[0] <= 0 for size in sizes)


@contextlib.contextmanager
def _sizes_of_zero(possible: bool) -> Iterator[None]:
    """While active, and ``possible``, no size is known to be positive.

    Torch's symbols are positive whatever their range says, so that of ``max(n, 1)`` and ``n == 0``
    nothing would be left: neither in the graph, nor as a guard.
    """
    original = symbolic_shapes.make_symbol

    def make_symbol(prefix: SymT, idx: int, **assumptions: Any) -> sympy.Symbol:
        if prefix is SymT.SIZE and assumptions.get("positive"):
            assumptions = {"nonnegative": True, **assumptions, "positive": None}
        return original(prefix, idx, **assumptions)

    if possible:
        symbolic_shapes.make_symbol = make_symbol
    try:
        yield
    finally:
        symbolic_shapes.make_symbol = original


@contextlib.contextmanager
def _tracing(*, copies: bool = True) -> Iterator[None]:
    """Torch's switches during a trace, all put back afterwards. ``copies``: see `whole_ops`."""
    with (
        torch.no_grad(),
        without_fast_path(),  # the fused op has no shape expressions
        # No size is assumed to be 0, 1 or equal to another because the example's is.
        shape_config.patch(backed_size_oblivious=True, use_duck_shape=False),
        # The cache compares strides when it answers, which leaves guards like seq != 1 that
        # nothing in the model asked for.
        torch._dynamo.config.patch(
            fake_tensor_cache_enabled=False, ignore_logging_functions=IGNORED
        ),
        recording_lines(),
        named_by_callers(),
        whole_ops(copies=copies),
        without_prepared_calls(),
        # What the model prints was printed when it was run; torch prints graphs of failures.
        quietly(),
        without_logs(*LOGS),
    ):
        yield


def _export(
    module: torch.nn.Module, args: Any, kwargs: Any, dynamic: Any, *, copies: bool = True
) -> tuple[ExportedProgram, bool]:
    """Strict, which follows the user's Python line by line; where Dynamo itself fails (and not the
    model), the other way. A module that is `RUN_TO_TRACE` holds no Python of the user's to follow."""
    if getattr(module, RUN_TO_TRACE, False):
        try:
            with _tracing(copies=copies):
                return _torch_export(module, args, kwargs, dynamic, strict=False), False
        except Exception as error:
            raise ExportError(explain_failure(error)[0]) from error
    try:
        with _tracing(copies=copies):
            program = _torch_export(module, args, kwargs, dynamic, strict=True)
        lost = lost_assertions(program)
        if not lost and not _holds_autocast(program):
            return program, True
        refusal, first = (_lost_assertion(lost[0]) if lost else None), None
    except Exception as error:  # the kinds of failure are told apart in `breaks`
        refusal, is_the_models = explain_failure(error)
        if is_the_models:
            raise ExportError(refusal) from error
        first = error
    finally:
        torch._dynamo.reset()
    try:
        with _tracing(copies=copies):
            other = _torch_export(module, args, kwargs, dynamic, strict=False)
        if lost := lost_assertions(other):
            refusal = _lost_assertion(lost[0])
            raise ExportError(refusal)
        return other, False
    except Exception:  # the strict trace's answer has the better lines
        if refusal is None:
            return program, True
        raise ExportError(refusal) from first


def _lost_assertion(lost: RuntimeAssert) -> Diagnostic:
    return Diagnostic(
        "TC211",
        "torch.export loses a torch._check of a number that the model computes",
        location_of_assertion(lost),
        tries=OF_A_TENSOR,
    )


def _holds_autocast(program: ExportedProgram) -> bool:
    """Whether a part runs under autocast, whose results a strict trace of torch 2.13 has in the
    dtype that they had without. (Where a region turns autocast off, nothing is cast.)"""
    return any(
        node.target is torch.ops.higher_order.wrap_with_autocast and node.args[2]
        for node in nodes_of(program)
    )


def _torch_export(
    module: torch.nn.Module, args: Any, kwargs: Any, dynamic: Any, *, strict: bool
) -> ExportedProgram:
    return torch.export.export(
        module,
        args,
        kwargs,
        dynamic_shapes=dynamic,
        strict=strict,
        prefer_deferred_runtime_asserts_over_guards=False,
    )


def _placeholders(program: ExportedProgram, leaves: Sequence[Any]) -> tuple[str, ...]:
    """The graph's input for each leaf, checked by type, dtype and rank."""
    specs = [
        spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT
    ]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    if len(specs) != len(leaves):
        raise ExportError(
            Diagnostic(
                "TC190", f"torch traced {len(specs)} inputs where the call has {len(leaves)}"
            )
        )
    for spec, leaf in zip(specs, leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            value = nodes[spec.arg.name].meta["val"]
            fits = value.dtype == leaf.dtype and value.dim() == leaf.dim()
        else:
            fits = isinstance(spec.arg, ConstantArgument) and spec.arg.value == leaf
        if not fits:
            raise ExportError(
                Diagnostic("TC190", f"torch traced the inputs in another order: {spec.arg.name}")
            )
    return tuple(spec.arg.name for spec in specs)


def symbol_of(size: Any) -> Any:
    """The sympy expression of a size in torch's metadata."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
