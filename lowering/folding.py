"""Constant expressions: what an op of constants gives is computed at export, where it stays small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from .context import Context, constant_tensor, constant_value
from .own_ops import OWN
from .symbols import as_shape
from .tensor import DTYPES, PARTS, Complex, Constant, Tensor
from .variants import Variant

_SMALL = 1 << 16  # bytes that a constant expression may grow to beyond its operands

aten = torch.ops.aten
_SAME_ORDER = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.alias.default),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
        *(aten.clone.default, aten.detach.default),
    }
)


class _NotConstant(Exception):
    """An operand is known in the call only."""


def fold(
    ctx: Context, variant: Variant, node: torch.fx.Node, read: Callable[[Any], Any]
) -> Tensor | Complex | None:
    """The value of an op all of whose operands are constants, computed by torch itself; None where one
    is not, or where the value is left to the call.

    Args:
        read: what an argument of a node stands for.
    """
    operands: list[Constant] = []

    def value_of(argument: Any) -> Any:
        if isinstance(argument, Tensor):
            if argument.constant is None:
                raise _NotConstant
            operands.append(argument.constant)
            return argument.constant.value
        if isinstance(argument, Complex):
            return torch.complex(value_of(argument.re), value_of(argument.im))
        if isinstance(argument, tuple):
            return tuple(value_of(item) for item in argument)
        if isinstance(argument, sympy.Basic):
            raise _NotConstant
        return argument

    expected = node.meta["val"]
    if not isinstance(expected, torch.Tensor) or expected.dtype not in (DTYPES | PARTS):
        return None
    if node.target is OWN:  # which nobody can compute here
        return None
    if node in ctx.coded and expected.dtype is not torch.int8:
        return None
    if not all(isinstance(size, int) for size in as_shape(expected.shape)):
        return None
    try:
        arguments = [value_of(read(argument)) for argument in node.args]
        keywords = {name: value_of(read(argument)) for name, argument in node.kwargs.items()}
    except _NotConstant:
        return None
    if not operands:
        return None
    size = expected.numel() * expected.element_size()
    operand_bytes = sum(each.value.numel() * each.value.element_size() for each in operands)
    if size > max(_SMALL, operand_bytes):
        return None
    if not variant.folds(node.name) and any(each.sources != set() for each in operands):
        # The general code computes it in each call, and its weights can be exchanged.
        return None
    with torch.no_grad():
        value = node.target(*arguments, **keywords)
    value = value.clone(memory_format=torch.contiguous_format)
    if value.is_complex():
        return constant_value(Constant(f"{operands[0].name}:{node.name}", value))
    made = _with_recipe(ctx, node, operands, value)
    return constant_tensor(ctx.weights.computed(made, variant.function))


def _with_recipe(
    ctx: Context, node: torch.fx.Node, operands: list[Constant], value: torch.Tensor
) -> Constant:
    """A folded value, with its recipe where the op only moves elements or casts floats."""
    name = f"{operands[0].name}:{node.name}"
    step = _step_of(node, operands[0].value, value) if len(operands) == 1 else None
    if step is not None:
        return operands[0].stepped(name, value, *step)
    if any(each.sources is None for each in operands):
        return Constant(name, value)
    sources = frozenset(source for each in operands for source in each.sources or ())
    made = Constant(name, value, None, sources)
    ctx.weights.freeze(made, f"goes into {node.target}, which is computed at export")
    return made


def _step_of(
    node: torch.fx.Node, operand: torch.Tensor, value: torch.Tensor
) -> tuple[Any, ...] | None:
    """The step of `recipes` that an op of one constant is; None where there is none."""
    if node.target in _SAME_ORDER:
        return ("reshape", tuple(value.shape))
    if node.target is aten.t.default and operand.dim() == 2:
        return ("transpose", (1, 0))
    if node.target is aten.permute.default:
        rank = operand.dim()
        return ("transpose", tuple(int(axis) % rank for axis in node.args[1]))
    floats = value.dtype.is_floating_point and operand.dtype.is_floating_point
    if node.target is aten._to_copy.default and floats and value.dtype in DTYPES:
        return ("cast", DTYPES[value.dtype])
    return None
