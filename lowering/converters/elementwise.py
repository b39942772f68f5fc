"""Ops that compute one element at a time: how they are emitted, and what several are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import tirx

from ..broadcasting import broadcast, broadcast_index
from ..context import Context, Unsupported
from ..dtypes import convert
from ..symbols import Scalar, wrapped
from ..tensor import DTYPES, HALVES, TORCH_DTYPES, Tensor

Operand = Any  # Tensor | Scalar
Element = Callable[..., Any]


def pointwise(
    ctx: Context,
    name: str,
    element: Element,
    *operands: Tensor | Scalar,
    dtype: str,
    result: str | None = None,
) -> Tensor:
    """Emit ``element`` over the broadcast operands, each converted to ``dtype`` first.

    ``result`` is the dtype that ``element`` gives, ``dtype`` unless said otherwise. Half-precision
    floats are computed in float32.
    """
    result = result or dtype
    wide = "float32" if dtype in HALVES else dtype
    return elementwise(ctx, name, element, operands, [wide] * len(operands), result)


def elementwise(
    ctx: Context,
    name: str,
    element: Element,
    operands: Sequence[Operand],
    dtypes: Sequence[str],
    result: str,
) -> Tensor:
    """Emit ``element`` over the broadcast operands, converted to a dtype each; what it gives is
    converted to ``result``. Numbers and constants of one element become part of the kernel."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    shape = broadcast(*(tensor.shape for tensor in tensors))
    if any(tensor.last is not None and tensor.rank == len(shape) for tensor in tensors):
        moved = [_with_channels_last(ctx, operand, len(shape)) for operand in operands]
        return ctx.as_image(elementwise(ctx, name, element, moved, dtypes, result))
    inputs = [tensor for tensor in tensors if as_number(tensor) is None]

    def value(scope: Any, tensors: tuple[Any, ...], position: tuple[Any, ...]) -> Any:
        remaining = iter(tensors)
        elements = []
        for operand, dtype in zip(operands, dtypes, strict=True):
            number = as_number(operand)
            if number is not None:
                elements.append(scope.number(number, dtype))
            else:
                assert isinstance(operand, Tensor)
                read = next(remaining)(*broadcast_index(operand.shape, position))
                elements.append(convert(read, dtype))
        return convert(element(*elements), result)

    return ctx.compute(name, inputs, shape, result, value)


def _with_channels_last(ctx: Context, operand: Operand, rank: int) -> Operand:
    if not isinstance(operand, Tensor) or as_number(operand) is not None:
        return operand
    wide = (1,) * (rank - operand.rank) + operand.shape
    return ctx.with_channels_last(ctx.reshape(operand, wide))


def as_number(operand: Operand) -> Any:
    """The Python number of a scalar operand or of a constant with one element, else None."""
    if not isinstance(operand, Tensor):
        return operand
    if operand.constant is not None and operand.constant.value.numel() == 1:
        return operand.constant.value.item()
    return None


def rounded(operand: Operand, dtype: str) -> Operand:
    """A number as torch takes it into an op of half-precision floats that is not continuous, where
    the last digit decides."""
    number = as_number(operand)
    if dtype not in HALVES or not isinstance(number, (int, float)):
        return operand
    return torch.tensor(number, dtype=TORCH_DTYPES[dtype]).item()


def dtype_of_result(ctx: Context) -> str:
    """The dtype that a converter is to give: the trace's, or float32 for a narrower float."""
    dtype = ctx.expected().dtype
    if dtype not in DTYPES:
        raise Unsupported(f"with dtype {dtype}")
    name = DTYPES[dtype]
    return "float32" if ctx.wide and name in HALVES else name


def is_float(dtype: str) -> bool:
    return "float" in dtype


# Elements that more than one op is made of.


def constant(value: float, like: Any) -> Any:
    dtype = str(like.ty.dtype)
    return tirx.const(wrapped(value, dtype), dtype)


def opaque(value: Any) -> Any:
    """A factor, or a dividend. TVM's simplifier takes 0 * x and 0 / x for 0, also of floats, where x
    may be NaN, infinite or 0; it does not look into a function. The compilers do, and know NaN."""
    if not isinstance(value, tirx.FloatImm) or float(value.value) != 0:
        return value
    dtype = str(value.ty.dtype)
    zero = tirx.call_intrin(dtype, "tirx.fabs", tirx.const(0, dtype))
    return constant(-1, value) * zero if math.copysign(1, float(value.value)) < 0 else zero


def divided(a: Any, b: Any) -> Any:
    """a / b, also where one is a constant zero: TVM refuses to divide by it. Integers as in C."""
    if not is_float(str(a.ty.dtype)):
        return tirx.truncdiv(a, b)
    return opaque(a) / opaque(b)


# `schedule_rest` turns tirx.max and tirx.min into forms that propagate NaN, and these functions of
# float32 into polynomials. TVM's own expansions of them lose all digits near 0, hence libm's for
# double.


def sigmoid(x: Any) -> Any:
    if str(x.ty.dtype) == "float32":
        return tirx.sigmoid(x)
    return constant(1, x) / (constant(1, x) + tirx.exp(-x))


def tanh(x: Any) -> Any:
    return tirx.tanh(x) if str(x.ty.dtype) == "float32" else libm("tanh", x)


def erf(x: Any) -> Any:
    return tirx.erf(x) if str(x.ty.dtype) == "float32" else libm("erf", x)


def libm(name: str, *operands: Any) -> Any:
    dtype = str(operands[0].ty.dtype)
    suffix = "f" if dtype == "float32" else ""
    return tirx.call_pure_extern(dtype, name + suffix, *operands)


def gelu(x: Any) -> Any:
    return constant(0.5, x) * x * (constant(1, x) + erf(x * constant(math.sqrt(0.5), x)))


def gelu_tanh(x: Any) -> Any:
    inner = constant(math.sqrt(2 / math.pi), x) * (x + constant(0.044715, x) * x * x * x)
    return constant(0.5, x) * x * (constant(1, x) + tanh(inner))


def silu(x: Any) -> Any:
    return x / (constant(1, x) + tirx.exp(-x))


def relu(x: Any) -> Any:
    return tirx.Select(x < constant(0, x), constant(0, x), x)  # NaN is not less


def _is_number(value: Any) -> Any:
    return tirx.Not(tirx.isnan(value))


def equal(a: Any, b: Any) -> Any:
    """a == b. TVM's simplifier takes x == x for true, NaN or not."""
    if not is_float(str(a.ty.dtype)):
        return tirx.EQ(a, b)
    return tirx.all(tirx.EQ(a, b), _is_number(a), _is_number(b))


def negation(condition: Any) -> Any:
    """Not. TVM's simplifier makes a <= b of Not(a > b), which is false where one of them is NaN; it
    does not look behind the cast."""
    return tirx.EQ(condition.astype("int8"), tirx.const(0, "int8"))


def differ(a: Any, b: Any) -> Any:
    """a != b. LLVM's code for tirx.NE of floats is an *ordered* comparison: false for NaN."""
    dtype = str(a.ty.dtype)
    if dtype == "bool":
        return tirx.NE(a.astype("int8"), b.astype("int8"))
    if not is_float(dtype):
        return tirx.NE(a, b)
    return tirx.any(a < b, a > b, tirx.isnan(a), tirx.isnan(b))
