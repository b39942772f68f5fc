"""The allow-list: which ATen ops are lowered, and by which function.

A converter is a function ``(ctx, *, named arguments of the op's schema)``; the schema's ``self`` is
called ``x``. Arguments are bound by name and defaults filled in, as the schema says. An argument
that a converter does not take must have its default value, else the use is refused; so nothing is
ever dropped. Tensors arrive as `Tensor`, sizes and numbers as ints, floats or sympy expressions,
lists as tuples.

Half-precision floats come to a converter as float32, and its results are rounded, unless it says
that it ``takes_halves``: because it moves elements and does not compute, or rounds by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..context import Context, Unsupported
from ..tensor import DTYPES, HALVES, Complex, Tensor

Converter = Callable[..., Any]

CONVERTERS: dict[str, Converter] = {}
COMPLEX: dict[str, Converter] = {}  # those that are used where an operand or a result is complex
_PARAMETERS: dict[Converter, frozenset[str]] = {}
_TAKES_HALVES: set[Converter] = set()

# Where a result lies and how it is laid out is not the graph's business; its dtype is taken from
# the trace's own result, which every converter's result is held against.
_IMMATERIAL = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "dtype"}
)


# The nearest form of ops that have no converter.
_NEAREST = {
    "aten.as_strided.default": "slices, unfold or diagonal",
    "aten.bincount.default": "F.one_hot(x, n).sum(0), whose size is known",
    "aten.histc.default": "F.one_hot(torch.bucketize(x, edges), n).sum(0)",
    "aten._unique2.default": "torch.sort, which keeps the size",
    "aten.unique_consecutive.default": "x[1:] != x[:-1], which keeps the size",
    "aten.mode.default": "F.one_hot(x, n).sum(0).argmax()",
    "aten.nanmedian.default": "torch.median of what is no NaN",
    "aten._pdist_forward.default": "torch.cdist",
    "aten.put.default": "x.flatten().index_put((index,), source)",
    "aten.index_reduce.default": "scatter_reduce",
    "aten.special_erfcx.default": "torch.erfc",
}


def converter(*names: str, takes_halves: bool = False) -> Callable[[Converter], Converter]:
    """Register a converter for ops by name, such as ``aten.linear.default``."""

    def register(function: Converter) -> Converter:
        if takes_halves:
            _TAKES_HALVES.add(function)
        return _entered(CONVERTERS, names, function)

    return register


def complex_converter(*names: str) -> Callable[[Converter], Converter]:
    """The same for complex numbers: operands and results may be `Complex`."""
    return lambda function: _entered(COMPLEX, names, function)


def _entered(table: dict[str, Converter], names: Sequence[str], function: Converter) -> Converter:
    _PARAMETERS[function] = frozenset(list(inspect.signature(function).parameters)[1:])
    for name in names:
        if name in table:
            raise ValueError(f"{name} has two converters")
        table[name] = function
    return function


def on_parts(*names: str) -> None:
    """Let ops that treat both parts of a complex operand alike be lowered as twice the real op."""
    for name in names:
        real = CONVERTERS[name]

        def convert(ctx: Context, /, *, real: Converter = real, **operands: Any) -> Any:
            re, im = (real(ctx, **_part(operands, which)) for which in ("re", "im"))
            if isinstance(re, list):
                return [Complex(a, b) for a, b in zip(re, im, strict=True)]
            return Complex(re, im)

        _entered(COMPLEX, [name], convert)
        _PARAMETERS[convert] = _PARAMETERS[real]


def _part(value: Any, which: str) -> Any:
    if isinstance(value, Complex):
        return getattr(value, which)
    if isinstance(value, dict):
        return {name: _part(each, which) for name, each in value.items()}
    return tuple(_part(each, which) for each in value) if isinstance(value, tuple) else value


def is_complex(node: torch.fx.Node) -> bool:
    """Whether an operand or a result of a node is of complex numbers."""
    return any(dtype.is_complex for dtype in _dtypes(node))


def _dtypes(node: torch.fx.Node) -> list[torch.dtype]:
    """Those of the operands and results."""
    values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
    tensors = [
        value for each in values for value in (each if isinstance(each, list | tuple) else [each])
    ]
    return [value.dtype for value in tensors if isinstance(value, torch.Tensor)]


def bind(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a node by the names of the op's schema, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    bound: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            value = node.args[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            value = argument.default_value
        bound["x" if argument.name == "self" else argument.name] = value
    return bound


def convert_node(ctx: Context, node: torch.fx.Node, read: Callable[[Any], Any]) -> Any:
    """Lower one call. ``read`` turns an argument of the node into what a converter takes.

    Raises:
        Unsupported: no converter, or not for these arguments.
    """
    of_complex = is_complex(node)
    function = (COMPLEX if of_complex else CONVERTERS).get(str(node.target))
    if function is None:
        reason = "of complex numbers" if of_complex else ""
        raise Unsupported(reason, _NEAREST.get(str(node.target), ""))
    if torch.complex32 in _dtypes(node):
        raise Unsupported("of complex numbers of half precision", "torch.complex64")
    arguments = bind(node)
    defaults = {
        "x" if argument.name == "self" else argument.name: argument.default_value
        for argument in node.target._schema.arguments
    }
    taken = _PARAMETERS[function]
    for name, value in arguments.items():
        if name not in taken and name not in _IMMATERIAL and value != defaults[name]:
            raise Unsupported(f"with {name}={value}")
    ctx.node = node
    operands = {name: read(value) for name, value in arguments.items() if name in taken}
    if of_complex or function in _TAKES_HALVES:
        return function(ctx, **operands)
    return in_float32(ctx, node, lambda: function(ctx, **_widened(ctx, operands)))


def in_float32(ctx: Context, node: torch.fx.Node, compute: Callable[[], Any]) -> Any:
    """What ``compute`` gives for a node, rounded to the half-precision floats of the trace."""
    ctx.wide = True
    try:
        result = compute()
    finally:
        ctx.wide = False
    expected = node.meta["val"]
    if isinstance(result, list):
        return [_narrowed(ctx, a, b) for a, b in zip(result, expected, strict=True)]
    return _narrowed(ctx, result, expected)


def _widened(ctx: Context, value: Any) -> Any:
    if isinstance(value, Tensor):
        return ctx.cast(value, "float32") if value.dtype in HALVES else value
    if isinstance(value, tuple):
        return tuple(_widened(ctx, each) for each in value)
    if isinstance(value, dict):
        return {name: _widened(ctx, each) for name, each in value.items()}
    return value


def _narrowed(ctx: Context, result: Tensor | None, expected: Any) -> Tensor | None:
    dtype = None if result is None else DTYPES.get(expected.dtype)
    if result is None or dtype not in HALVES or result.dtype != "float32":
        return result
    return ctx.cast(result, dtype)
