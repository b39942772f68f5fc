"""What kernels require beside the range of their indices.

Torch raises where ``x.amax(1)`` or ``x[:, 0]`` finds an axis without elements, and checks it in the
kernel: no guard says so. A position that hangs on sizes counts from the end where it is negative, and
the trace knows one of both cases.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.export.exported_program import _get_shape_env
from torch.utils._sympy.functions import (
    CleanDiv,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    IntTrueDiv,
    Mod,
    OpaqueUnaryFn_sqrt,
    PythonMod,
    ToFloat,
)

from ..artifacts.contract import Guard, Origin
from ..artifacts.errors import Diagnostic, ExportError
from ..artifacts.expr import Expr, dims_of, evaluate, render, walk
from ..lowering.locations import user_location
from .computed import tries_for
from .kernel_sizes import required, sizes_of
from .trace import Trace, symbol_of
from .translate import Untranslatable, fold, to_expr
from .words import Words

aten = torch.ops.aten

# Of no element there is no largest one. The place of the axis among the arguments.
_NEEDS_ELEMENTS = {
    aten.amax: 1, aten.amin: 1, aten.argmax: 1, aten.argmin: 1, aten.max: 1, aten.min: 1,
    aten.median: 1, aten.nanmedian: 1, aten.mode: 1, aten.aminmax: 1,
}  # fmt: skip


def size_conditions(traced: Trace, symbols: Mapping[sympy.Symbol, Expr]) -> tuple[Guard, ...]:
    """Guards on sizes that kernels need: elements where an extreme value or one position is looked
    for, and positions on the side of zero that they had in the trace.

    Args:
        symbols: torch's symbols in the user's dims, or as numbers that the graph computes are called.

    Raises:
        ExportError: TC211, one that never holds or hangs on data.
    """
    guards: dict[Expr, Guard] = {}

    def expr(size: Any) -> Expr:
        return to_expr(symbol_of(size), symbols)

    env = _get_shape_env(traced.program.graph_module)
    for divisor, where in traced.divisors.items():
        base = _base(divisor if env is None else env.replace(divisor))
        try:
            condition: Expr = fold(">=", to_expr(base, symbols), 1)
        except Untranslatable as error:
            why = Words(traced, symbols, env).why(error)
            message = f"the model divides by what can't be checked before a call: {why}"
            tries = tries_for(error.expression)
            raise ExportError(Diagnostic("TC211", message, location=where, tries=tries)) from None
        if dims_of(condition):
            guards.setdefault(condition, Guard(condition, Origin("a division", where)))
    for node in traced.program.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        try:
            if packet is aten.select:
                needed = _position(node, expr, traced.sizes)
            elif packet is aten.slice:
                needed = _ends(node, expr, traced.sizes)
            elif packet in (aten.topk, aten.kthvalue):
                needed = [(">=", expr(_size_along(node)), expr(_number(node.args[1])))]
            elif packet in _SCATTERS:
                needed = _scattered(node, expr)
            elif packet is aten.squeeze:
                needed = [("!=", expr(size), 1) for size in _kept_axes(node)]
            else:
                needed = [(">=", expr(size), 1) for size in _searched_sizes(node)]
            needed += [(">=", to_expr(divisor, symbols), 1) for divisor in _divisors(node)]
            needed += [("!=", expr(divisor), 0) for divisor in _whole_divisors(node)]
            needed += [fold(*condition) for condition in required(node, expr)]
            needed += _not_negative(node, symbols)
        except Untranslatable as error:
            why = Words(traced, symbols).why(error)
            raise ExportError(_unknown(node, why, tries_for(error.expression))) from None
        for condition in needed:
            if dims_of(condition):
                origin = Origin(f"{node.target}", user_location(node.meta.get("stack_trace")))
                guards.setdefault(condition, Guard(condition, origin))
            elif not evaluate(condition, {}):
                raise ExportError(_unknown(node, f"{render(condition)} never holds"))
    return tuple(guards.values())


def _position(node: torch.fx.Node, expr: Any, sizes: Mapping[str, int]) -> list[Expr]:
    """``x[:, index]``: the axis has such an element."""
    source, dim, index = node.args[:3]
    length, position = expr(source.meta["val"].shape[dim]), expr(_number(index))
    if isinstance(position, int):
        return [(">=", length, position + 1 if position >= 0 else -position)]
    return [
        *_same_side(position, sizes),
        ("<", position, length),
        (">=", position, fold("-", 0, length)),
    ]


def _ends(node: torch.fx.Node, expr: Any, sizes: Mapping[str, int]) -> list[Expr]:
    """``x[:, start:stop]``: ends that hang on sizes are on the side of zero they had in the trace."""
    given = [*node.args[2:4], node.kwargs.get("start"), node.kwargs.get("end")]
    symbolic = [_number(end) for end in given if isinstance(_number(end), torch.SymInt)]
    return [condition for end in symbolic for condition in _same_side(expr(end), sizes)]


def _same_side(position: Expr, sizes: Mapping[str, int]) -> list[Expr]:
    if not dims_of(position) or not dims_of(position) <= sizes.keys():
        return []
    negative = evaluate(position, sizes) < 0
    if negative and isinstance(position, tuple) and position[:2] == ("*", -1):
        return [(">", fold("*", *position[2:]), 0)]
    return [("<" if negative else ">=", position, 0)]


def _size_along(node: torch.fx.Node) -> Any:
    """The size of the axis along which ``topk`` and ``kthvalue`` look; they need that many."""
    source = node.args[0].meta["val"]
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", -1)
    return source.shape[dim] if source.dim() else 1


_SCATTERS = (aten.scatter, aten.scatter_add, aten.scatter_reduce)


def _scattered(node: torch.fx.Node, expr: Any) -> list[Expr]:
    """``x.scatter(dim, index, source)``: the index is no larger than the source, nor than ``x`` along
    the other axes."""
    target, dim, index = node.args[:3]
    shape = index.meta["val"].shape
    bounds = [
        (axis, target.meta["val"].shape[axis])
        for axis in range(len(shape))
        if axis != dim % len(shape)
    ]
    if len(node.args) > 3 and isinstance(node.args[3], torch.fx.Node):
        source = node.args[3].meta["val"]
        if isinstance(source, torch.Tensor) and source.dim() == len(shape):
            bounds += enumerate(source.shape)
    return [("<=", expr(shape[axis]), expr(size)) for axis, size in bounds]


def _kept_axes(node: torch.fx.Node) -> list[Any]:
    """``x.squeeze(1)``: the axes that could be removed and were not."""
    source = node.args[0].meta["val"]
    dims = node.args[1] if len(node.args) > 1 else list(range(source.dim()))
    dims = dims if isinstance(dims, (list, tuple)) else [dims]
    return [source.shape[dim] for dim in dims if isinstance(source.shape[dim], torch.SymInt)]


def _divisors(node: torch.fx.Node) -> list[Any]:
    """What this node divides by, in numbers made of sizes: eager raises where it is zero."""
    found: list[Any] = []
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        expression = value.node.expr
        found += [each.args[1] for each in expression.atoms(*_DIVISIONS)]
        if node.target in (operator.floordiv, operator.mod, operator.truediv):
            found.append(symbol_of(_number(node.args[1])))
        found += [each.args[0] for each in expression.atoms(FloatPow) if each.args[1].is_negative]
    elif node.target in (aten.view.default, aten.reshape.default) and -1 in node.args[1]:
        found += [symbol_of(_number(size)) for size in node.args[1]]
    return [base for each in found if not (base := _base(each)).is_number]


def _not_negative(node: torch.fx.Node, symbols: Mapping[sympy.Symbol, Expr]) -> list[Expr]:
    """The sizes of a result that could come out negative: eager makes no such tensor."""
    found = []
    for size in sizes_of(node):
        try:
            expr = to_expr(symbol_of(size), symbols)
        except Untranslatable:
            continue  # found out as the code runs
        if any(isinstance(part, tuple) and part[0] == "-" for part in walk(expr)):
            found.append(fold(">=", expr, 0))
    return found


def _whole_divisors(node: torch.fx.Node) -> list[Any]:
    """What a tensor of integers is divided by, where it is a number made of sizes or values."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in (aten.div, aten.floor_divide, aten.remainder, aten.fmod):
        return []
    divisor, result = _number(node.args[1]), node.meta["val"]
    if result.is_floating_point() or not isinstance(divisor, torch.SymInt):
        return []
    sizes = {symbol_of(size) for size in result.shape}
    return [] if symbol_of(divisor) in sizes else [divisor]  # where that is 0, nothing is divided


_DIVISIONS = (FloorDiv, CleanDiv, Mod, PythonMod, IntTrueDiv, FloatTrueDiv)


def _base(number: Any) -> Any:
    """What is zero exactly where a positive number made of it is: ``n`` of ``sqrt(float(n))``."""
    while True:
        if isinstance(number, (ToFloat, OpaqueUnaryFn_sqrt)):
            (number,) = number.args
        elif isinstance(number, FloatPow) and number.args[1].is_positive:
            number = number.args[0]
        elif number.is_Mul and len(number.args) == 2 and number.args[0].is_positive:
            if not number.args[0].is_number:
                return number
            number = number.args[1]
        else:
            return number


def _number(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, torch.fx.Node) else value


def _searched_sizes(node: torch.fx.Node) -> list[Any]:
    packet = getattr(node.target, "overloadpacket", None)
    if packet is aten.scaled_dot_product_attention:  # kernels differ in what no keys give
        return [node.args[1].meta["val"].shape[-2]]
    if packet not in _NEEDS_ELEMENTS or getattr(node.target, "_overloadname", "") == "other":
        return []
    source = node.args[0].meta["val"]
    place = _NEEDS_ELEMENTS[packet]
    dim = node.args[place] if len(node.args) > place else node.kwargs.get("dim")
    if source.dim() == 0:
        return []
    if dim is None or dim == []:
        return list(source.shape)
    return [source.shape[each] for each in (dim if isinstance(dim, (list, tuple)) else [dim])]


def _unknown(node: torch.fx.Node, why: str, tries: tuple[str, ...] = ()) -> Diagnostic:
    return Diagnostic(
        "TC211",
        f"what {node.target} needs can't be checked before a call",
        location=user_location(node.meta.get("stack_trace")),
        notes=(why,),
        tries=tries,
    )
