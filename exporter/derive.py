"""Trace → contract: the ranges that can be promised, and everything a call is held against."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sympy
import torch
from torch.export.graph_signature import (
    ConstantArgument,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from ..artifacts.contract import (
    MAX_SIZE,
    PLAIN_TYPES,
    AxisSource,
    Contract,
    DictNode,
    Dim,
    Fixed,
    Guard,
    IndexGuard,
    Leaf,
    ListNode,
    NamedTupleNode,
    Node,
    Origin,
    SizeOutput,
    TensorInput,
    TensorOutput,
    TupleNode,
    ValueSource,
    child_path,
)
from ..artifacts.errors import Diagnostic, ExportError, Location
from ..artifacts.expr import Expr, ExprError, dims_of, from_data, line_of, render
from ..artifacts.logs import log
from ..lowering.asserted import Asserted
from ..lowering.locations import user_location
from .assumptions import Assumptions, extract
from .conditions import asserted_guards, data_assertions, size_conditions
from .indices import index_guards
from .ones import Retrace, admit_small_sizes
from .ranges import Fit, Limits, Request, fit
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, to_expr
from .words import Words


@dataclass(frozen=True)
class Derived:
    """A contract, what torch's symbols read in its dims, and how the ranges were found."""

    contract: Contract
    symbols: dict[str, Expr]
    fit: Fit
    notes: tuple[Diagnostic, ...]
    words: Words


def derive(
    traced: Trace, requests: Mapping[str, Request], retrace: Retrace, *, narrow: bool
) -> Derived:
    """The contract of a trace.

    Args:
        requests: what was asked for each dynamic dim.
        retrace: traces the model again with some dims fixed.
        narrow: take the provable part of a range that was given, in place of refusing.

    Raises:
        ExportError: TC201, TC202, TC210, TC211, the ranges asked for cannot be served. A TC210 has no
            `tries`: what works is for the caller to try.
    """
    assumptions = extract(traced, requests)
    admitted = admit_small_sizes(
        traced, assumptions, requests, retrace
    )  # before the graph has checks
    size_guards, value_guards, computed_guards = index_guards(traced, assumptions.symbols)
    computed_guards += data_assertions(traced, len(computed_guards))
    found = (
        *admitted.guards,
        *size_guards,
        *size_conditions(traced, assumptions.symbols),
    )
    by_expr = {guard.expr: guard for guard in reversed(found)}  # of equal ones, the first
    guards = tuple(reversed(by_expr.values()))
    fitted = fit(requests, traced.sizes, guards)
    _tell(guards, value_guards, requests, fitted)
    notes = _judge(fitted, requests, admitted.untried, narrow=narrow)
    contract = Contract(
        dims=(*_dims(traced, requests, fitted), *_value_dims(assumptions)),
        parameters=traced.bound.parameters,
        inputs=_inputs(traced),
        guards=fitted.guards,
        index_guards=_needed(value_guards),
        outputs=_outputs(traced, assumptions),
        result=_result_structure(traced),
        computed_guards=computed_guards,
    )
    symbols = {str(symbol): expr for symbol, expr in assumptions.symbols.items()}
    return Derived(contract, symbols, fitted, notes, assumptions.words)


def _tell(
    guards: Sequence[Guard],
    value_guards: Sequence[IndexGuard],
    requests: Mapping[str, Request],
    fitted: Fit,
) -> None:
    """What was found, for TCEXPORT_LOGS=guards,dynamic."""
    found, ranges = log("guards"), log("dynamic")
    if found is not None:
        for guard in guards:
            kept = "checked at each call" if guard in fitted.guards else "held by the ranges"
            found.info("%s  from: %s  (%s)", render(guard.expr), guard.origin, kept)
        for each in value_guards:
            found.info(
                "%s <= values <= %s  from: %s", render(each.lo), render(each.hi), each.origin
            )
    if ranges is not None:
        for name, span in fitted.spans.items():
            limits = fitted.limits[name]
            needs = [render(each.expr) for each in (limits.lo, limits.hi, limits.step) if each]
            why = f", limited by {' and '.join(dict.fromkeys(needs))}" if needs else ""
            ranges.info("%s: asked %s, found %s%s", name, requests[name].span, span, why)


# --- promises -------------------------------------------------------------------------------------


def _judge(
    fitted: Fit, requests: Mapping[str, Request], untried: frozenset[Guard], *, narrow: bool
) -> tuple[Diagnostic, ...]:
    """Refuse broken promises; say what became narrower where that was asked for."""

    def told(diagnostic: Diagnostic, guard: Guard) -> Diagnostic:
        if guard not in untried:
            return diagnostic
        notes = (*diagnostic.notes, _UNTRIED)
        return msgspec.structs.replace(diagnostic, notes=notes)

    refused: list[Diagnostic] = []
    notes: list[Diagnostic] = []
    for guard in fitted.guards:
        names = dims_of(guard.expr)
        if not names or not names <= requests.keys():
            continue
        pair = _equal_dims(guard)
        if pair is not None:
            refused.append(_must_be_equal(pair, guard))
        elif any(requests[name].given for name in names) and not narrow:
            refused.append(told(_cannot_serve(guard, requests, fitted), guard))
        else:
            notes.append(told(_checked_at_call(guard), guard))
    for name, request in requests.items():
        span, limits = fitted.spans[name], fitted.limits[name]
        if span == request.span or (span.hi is not None and span.count() == request.span.count()):
            continue  # 1..10:4 and 1..9:4 are the same sizes; without an end, counts say nothing
        if span.count() == 1 and not narrow:
            refused.append(_fixed_by_trace(name, span.lo, limits))
            continue
        needed = [guard for guard in (limits.lo, limits.hi, limits.step) if guard is not None]
        # A promise is never cut without a word.
        needed = needed or [e.guard for e in fitted.broken if name in dims_of(e.guard.expr)]
        if not request.given:
            notes += [_excluded_untried(name, each) for each in needed if each in untried]
            continue
        for guard in dict.fromkeys(needed):
            if narrow:
                message = f"{name}={request.span} was narrowed to {span}: {render(guard.expr)}"
                location = guard.origin.location
                note = Diagnostic("TC210", message, location=location, severity="note")
                notes.append(told(note, guard))
            else:
                refused.append(told(_cannot_serve(guard, requests, fitted), guard))
    if refused:
        distinct = {(each.code, each.message): each for each in refused}
        raise ExportError(distinct.values())
    return tuple(notes)


_UNTRIED = (
    "torch excludes this size because of a memory layout, which the model may not mean: so many dims "
    "have such sizes that it was not traced again to find out"
)


def _excluded_untried(name: str, guard: Guard) -> Diagnostic:
    return Diagnostic(
        "TC210",
        f"not all sizes of {name} are served: {render(guard.expr)}",
        location=guard.origin.location,
        notes=(_UNTRIED,),
        tries=("make fewer dims dynamic",),
        severity="note",
    )


def _equal_dims(guard: Guard) -> tuple[str, str] | None:
    expr = guard.expr
    if expr[0] == "==" and isinstance(expr[1], str) and isinstance(expr[2], str):
        return expr[1], expr[2]
    return None


def _must_be_equal(pair: tuple[str, str], guard: Guard) -> Diagnostic:
    first, second = sorted(pair)
    return Diagnostic(
        "TC202",
        f"{first} and {second} must be equal",
        location=guard.origin.location,
        tries=(f"give both axes one name, {first}, in axes or --axes",),
    )


def _fixed_by_trace(name: str, size: int, limits: Limits) -> Diagnostic:
    guards = [guard for guard in (limits.hi, limits.lo, limits.step) if guard is not None]
    where = [guard.origin.location for guard in guards if guard.origin.location is not None]
    needs = " and ".join(dict.fromkeys(render(guard.expr) for guard in guards))
    return Diagnostic(
        "TC201",
        f"{name} can't be dynamic: the trace fixed it at {size}",
        location=where[0] if where else None,
        notes=(f"the trace needs {needs}",) if needs else (),
        tries=(f"leave {name} out of --dynamic", "change the line that needs this size"),
    )


def _cannot_serve(guard: Guard, requests: Mapping[str, Request], fitted: Fit) -> Diagnostic:
    names = sorted(dims_of(guard.expr))
    asked = ", ".join(f"{name}={requests[name].span}" for name in names if requests[name].given)
    points = [each.point for each in fitted.broken if each.guard == guard and each.point]
    notes: tuple[str, ...] = ()
    if points:
        point = points[0]
        at = ", ".join(f"{name}={point[name]}" for name in sorted(point))
        notes = (f"it fails at {at}",)
    return Diagnostic(
        "TC210",
        f"{asked} can't be served: the trace needs {render(guard.expr)}",
        location=guard.origin.location,
        notes=notes,
    )


def _checked_at_call(guard: Guard) -> Diagnostic:
    return Diagnostic(
        "TC210",
        f"not all sizes in the ranges are served together: {render(guard.expr)} is checked at "
        "every call",
        location=guard.origin.location,
        severity="note",
    )


def _needed(guards: tuple[IndexGuard, ...]) -> tuple[IndexGuard, ...]:
    """Of guards on one input with constant bounds, those that another does not imply."""

    def implied(guard: IndexGuard, other: IndexGuard) -> bool:
        bounds = (guard.lo, guard.hi, other.lo, other.hi)
        return (
            guard is not other
            and guard.input == other.input
            and other.parts in ((), guard.parts)
            and all(isinstance(bound, int) for bound in bounds)
            and other.lo >= guard.lo
            and other.hi <= guard.hi
        )

    return tuple(guard for guard in guards if not any(implied(guard, each) for each in guards))


# --- dims -----------------------------------------------------------------------------------------


def _dims(traced: Trace, requests: Mapping[str, Request], fitted: Fit) -> list[Dim]:
    dims = []
    for name, request in requests.items():
        span, limits = fitted.spans[name], fitted.limits[name]
        asked = Origin(f"--dynamic {name}={request.span}")
        lo_from = asked if request.given else Origin("sizes start at 1 where no range is given")
        hi_from = asked if request.given else Origin("no limit")
        step_from = None
        if span.step != 1:
            step_from = limits.step.origin if limits.step is not None else asked
        dims.append(
            Dim(
                name,
                _axis_source(name, traced),
                span.lo,
                span.hi,
                limits.lo.origin if limits.lo is not None else lo_from,
                limits.hi.origin if limits.hi is not None else hi_from,
                span.step,
                step_from,
            )
        )
    return dims


def _axis_source(name: str, traced: Trace) -> AxisSource:
    """The axis that a dim is read from: one that it names alone, else a line over it."""
    found = [
        (index, axis, expr)
        for index, axes in enumerate(traced.shapes)
        for axis, expr in enumerate(axes or ())
        if name in dims_of(expr)
    ]
    for index, axis, expr in found:
        if expr == name:
            return AxisSource(index, axis)
    for index, axis, expr in found:
        line = line_of(expr, name)
        if line is not None and line[0] >= 1:
            return AxisSource(index, axis, *line)
    raise ExportError(
        Diagnostic(
            "TC007",
            f"the size of {name} can't be read from any axis",
            notes=(f"{name} stands in: " + ", ".join(render(expr) for _, _, expr in found),),
            tries=(f"name one axis {name}, or a line over it such as 2*{name} or {name}+1",),
        )
    )


def _value_dims(assumptions: Assumptions) -> list[Dim]:
    none = Origin("the value of the input")
    return [
        Dim(name, ValueSource(index), -MAX_SIZE, None, none, none)
        for name, index in assumptions.values.items()
    ]


# --- inputs and outputs ---------------------------------------------------------------------------


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _inputs(traced: Trace) -> tuple[TensorInput | Fixed, ...]:
    inputs: list[TensorInput | Fixed] = []
    for (path, leaf), axes in zip(traced.bound.leaves, traced.shapes, strict=True):
        if axes is None:
            inputs.append(Fixed.of(path, leaf))
        else:
            inputs.append(TensorInput(path, dtype_name(leaf.dtype), axes))
    return tuple(inputs)


def _outputs(
    traced: Trace, assumptions: Assumptions
) -> tuple[TensorOutput | SizeOutput | Fixed, ...]:
    program = traced.program
    nodes = {node.name: node for node in program.graph.nodes}
    paths = _result_paths(_result_structure(traced))
    outputs: list[TensorOutput | SizeOutput | Fixed] = []
    results = 0
    specs = [
        spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
    ]
    for spec, path in zip(specs, paths, strict=True):
        argument = spec.arg
        if isinstance(argument, TensorArgument):
            value = nodes[argument.name].meta["val"]
            shape = tuple(_size(size, assumptions) for size in value.shape)
            outputs.append(TensorOutput(path, dtype_name(value.dtype), shape, results))
            results += 1
        elif isinstance(argument, SymIntArgument):
            size = nodes[argument.name].meta["val"]
            expr = _size(size, assumptions)
            if expr is None:
                raise ExportError(_computed_number(path, nodes[argument.name]))
            outputs.append(SizeOutput(path, expr))
        elif isinstance(argument, ConstantArgument) and type(argument.value) in PLAIN_TYPES:
            outputs.append(Fixed.of(path, argument.value))
        else:
            raise ExportError(
                Diagnostic("TC211", f"the output {path} is a {type(argument).__name__}")
            )
    return tuple(outputs)


def _computed_number(path: str, node: torch.fx.Node) -> Diagnostic:
    where = user_location(node.meta.get("stack_trace"))
    message = f"the output {path} is a number computed from data"
    return Diagnostic("TC211", message, location=where, tries=("return it as a tensor",))


def _size(size: Any, assumptions: Assumptions) -> Expr | None:
    """A size over the dims; None where it depends on data."""
    expression = symbol_of(size)
    try:
        return to_expr(expression, assumptions.symbols)
    except Untranslatable as error:
        if expression.free_symbols <= assumptions.symbols.keys():
            words = assumptions.words
            message = f"the model gives back a size of {words.of(expression)}"
            raise ExportError(Diagnostic("TC211", message, notes=(words.why(error),))) from None
        return None


def _result_structure(traced: Trace) -> Any:
    spec = traced.program.call_spec.out_spec
    assert spec is not None
    return _structure(spec, iter(range(spec.num_leaves)), "the output")


def _structure(spec: pytree.TreeSpec, indices: Any, path: str) -> Node:
    if spec.is_leaf():
        return Leaf(next(indices))
    kind, context = spec.type, spec.context
    if kind is namedtuple:  # torch keeps the class beside it
        kind = context
    children = spec.children()
    items = tuple(_structure(child, indices, path) for child in children)
    if kind is tuple:
        return TupleNode(items)
    if kind is list:
        return ListNode(items)
    if pytree.is_namedtuple_class(kind):
        return NamedTupleNode(kind.__name__, tuple(kind._fields), items)
    if isinstance(kind, type) and issubclass(kind, dict):
        # dict, OrderedDict and the ModelOutput of transformers: all come back as a dict.
        keys = tuple(context[1] if kind is defaultdict else context)
        if len(keys) == len(items) and all(type(key) in (str, int) for key in keys):
            return DictNode(keys, items)
    raise ExportError(
        Diagnostic(
            "TC005",
            f"{path} holds a {getattr(kind, '__name__', kind)}, which cannot be restored "
            "without its class",
            tries=("return tensors in tuples, lists, dicts or named tuples",),
        )
    )


def _result_paths(node: Node) -> list[str]:
    paths: dict[int, str] = {}

    def walk(node: Node, path: str) -> None:
        if isinstance(node, Leaf):
            paths[node.index] = path or "result"
        elif isinstance(node, DictNode):
            for key, item in zip(node.keys, node.items, strict=True):
                walk(item, child_path(path, key).removeprefix("."))
        elif isinstance(node, NamedTupleNode):
            for field, item in zip(node.fields, node.items, strict=True):
                walk(item, f"{path}.{field}".removeprefix("."))
        elif isinstance(node, (TupleNode, ListNode)):
            for index, item in enumerate(node.items):
                walk(item, f"{path}[{index}]")

    walk(node, "")
    return [paths[index] for index in sorted(paths)]


# --- where the lines are --------------------------------------------------------------------------


def relocated(value: Any, display: Callable[[str], str]) -> Any:
    """A contract (or anything in it) with the file of every location as ``display`` gives it."""
    if isinstance(value, Location):
        return msgspec.structs.replace(value, file=display(value.file))
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return type(value)(**{name: relocated(part, display) for name, part in fields.items()})
    if isinstance(value, tuple):
        return tuple(relocated(part, display) for part in value)
    return value


def with_asserted(derived: Derived, traced: Trace, asserted: Sequence[Asserted]) -> Derived:
    """The contract with what the kernels assert of their data."""
    computed = derived.contract.computed_guards
    computed += asserted_guards(traced, asserted, len(computed))
    contract = msgspec.structs.replace(derived.contract, computed_guards=computed)
    return replace(derived, contract=contract)


def contiguous_only(contract: Contract) -> Contract:
    """The contract with every tensor input contiguous: for a model that asks for layouts."""
    inputs = tuple(
        msgspec.structs.replace(item, layout="contiguous")
        if isinstance(item, TensorInput)
        else item
        for item in contract.inputs
    )
    return msgspec.structs.replace(contract, inputs=inputs)


def used_symbols(names: tuple[str, ...], derived: Derived) -> tuple[Expr, ...]:
    """What torch's symbols, named by the lowering, are over the dims.

    Raises:
        ExportError: TC211, a symbol that no input gives.
    """
    missing = [name for name in names if name not in derived.symbols]
    if missing:
        raise ExportError([_ungiven(name, derived.words) for name in missing])
    return tuple(derived.symbols[name] for name in names)


def over_dims(sums: tuple[Any, ...] | None, derived: Derived) -> tuple[Expr, ...] | None:
    """Sums of sizes over torch's symbols, from the lowering, over the dims; None where one of them is
    no expression that a bundle can hold."""
    if sums is None:
        return None

    def over(size: Any) -> Expr:
        if isinstance(size, (list, tuple)):
            return fold(size[0], *[over(operand) for operand in size[1:]])
        return derived.symbols[size] if isinstance(size, str) else size

    try:
        names = frozenset(dim.name for dim in derived.contract.dims)
        return tuple(dict.fromkeys(from_data(over(size), names) for size in sums))
    except (KeyError, ExprError):  # a symbol that no input gives, or too large
        return None


def _ungiven(name: str, words: Words) -> Diagnostic:
    where = next((line for _, line in words.lines(sympy.Symbol(name))), None)
    message = f"the graph needs {words.said(name)}, which no input gives"
    return Diagnostic("TC211", message, location=where)
