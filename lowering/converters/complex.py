"""Complex numbers, as pairs of real tensors.

TVM has no complex dtype. At the border a complex tensor has its parts in a last axis of two, as in
memory; within the graph it is two tensors, and every op is written in real arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from ..context import Context, Unsupported
from ..symbols import as_shape
from ..tensor import DTYPES, Complex, Tensor
from . import (  # noqa: F401  (`on_parts` uses theirs)
    choice,
    index,
    nonzero,
    reduce,
    scan,
    scatter,
    unary,
)
from .creation import filled
from .elementwise import pointwise
from .registry import complex_converter, on_parts
from .shape import concatenate, convert_pad

Value = Any  # Complex | Tensor | a Python or sympy number
Parts = tuple[Any, Any]


def apart(ctx: Context, pairs: Tensor) -> Complex:
    """``[..., 2]`` as the two parts of a complex tensor."""

    def part(number: int) -> Tensor:
        return ctx.compute(
            "part",
            [pairs],
            pairs.shape[:-1],
            pairs.dtype,
            lambda _, x, position: x[0](*position, tirx.IntImm("int64", number)),
        )

    return Complex(part(0), part(1))


def together(ctx: Context, value: Complex) -> Tensor:
    """The two parts side by side in a last axis, as a complex number is in memory."""
    parts = [ctx.reshape(part, (*value.shape, 1)) for part in (value.re, value.im)]
    return concatenate(ctx, parts, value.rank, value.re.dtype)


def dtype_of_parts(ctx: Context) -> str:
    """The real dtype of a complex result."""
    return DTYPES[ctx.expected().dtype]


def parts_of(value: Value) -> Parts:
    """Real and imaginary part; None for that of a real value."""
    if isinstance(value, Complex):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    return value, None


def zero_like(ctx: Context, like: Tensor, dtype: str) -> Tensor:
    return pointwise(ctx, "zero", lambda x: tirx.const(0, dtype), like, dtype=dtype)


def complex_of(ctx: Context, value: Value, dtype: str) -> Complex:
    """A tensor, real or complex, as a complex one with parts of ``dtype``."""
    if isinstance(value, Complex):
        return Complex(ctx.cast(value.re, dtype), ctx.cast(value.im, dtype))
    return Complex(ctx.cast(value, dtype), zero_like(ctx, value, dtype))


def pair(
    ctx: Context,
    name: str,
    elements: tuple[Callable[..., Any], Callable[..., Any]],
    *operands: Any,
    dtype: str,
) -> Complex:
    """The two parts of a result, each from the parts of the operands."""
    return Complex(*(pointwise(ctx, name, element, *operands, dtype=dtype) for element in elements))


on_parts(
    "aten._unsafe_index_put.default",
    "aten._unsafe_view.default",
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.cumsum.default",
    "aten.detach.default",
    "aten.diagonal.default",
    "aten.expand.default",
    "aten.flatten.using_ints",
    "aten.flip.default",
    "aten.gather.default",
    "aten.index.Tensor",
    "aten.index_put.default",
    "aten.index_select.default",
    "aten.lift_fresh_copy.default",
    "aten.masked_scatter.default",
    "aten.masked_select.default",
    "aten.mean.default",
    "aten.mean.dim",
    "aten.narrow.default",
    "aten.neg.default",
    "aten.permute.default",
    "aten.repeat.default",
    "aten.reshape.default",
    "aten.roll.default",
    "aten.scatter.src",
    "aten.scatter_add.default",
    "aten.select.int",
    "aten.slice.Tensor",
    "aten.slice_scatter.default",
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.sum.default",
    "aten.sum.dim_IntList",
    "aten.t.default",
    "aten.transpose.int",
    "aten.tril.default",
    "aten.triu.default",
    "aten.unbind.int",
    "aten.unfold.default",
    "aten.unsqueeze.default",
    "aten.view.default",
)


@complex_converter("aten.copy.default")
def convert_copy(ctx: Context, x: Value, src: Value) -> Complex:
    if not isinstance(x, Complex):
        raise Unsupported("into real ones", "src.real")
    whole = complex_of(ctx, src, x.re.dtype)
    return Complex(ctx.stretch(whole.re, x.shape), ctx.stretch(whole.im, x.shape))


@complex_converter("aten.view_as_real.default")
def convert_view_as_real(ctx: Context, x: Complex) -> Tensor:
    return together(ctx, x)


@complex_converter("aten.view_as_complex.default")
def convert_view_as_complex(ctx: Context, x: Tensor) -> Complex:
    return apart(ctx, x)


@complex_converter("aten.real.default")
def convert_real(ctx: Context, x: Complex) -> Tensor:
    return x.re


@complex_converter("aten.imag.default")
def convert_imag(ctx: Context, x: Complex) -> Tensor:
    return x.im


@complex_converter("aten.complex.default")
def convert_complex(ctx: Context, real: Tensor, imag: Tensor) -> Complex:
    dtype = dtype_of_parts(ctx)
    return pair(ctx, "complex", (lambda a, b: a, lambda a, b: b), real, imag, dtype=dtype)


@complex_converter("aten.polar.default")
def convert_polar(ctx: Context, abs: Tensor, angle: Tensor) -> Complex:
    elements = (lambda r, a: r * tirx.cos(a), lambda r, a: r * tirx.sin(a))
    return pair(ctx, "polar", elements, abs, angle, dtype=dtype_of_parts(ctx))


@complex_converter(
    "aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default"
)
def convert_conj(ctx: Context, x: Complex) -> Complex:
    return Complex(x.re, pointwise(ctx, "negate", lambda v: -v, x.im, dtype=x.im.dtype))


@complex_converter("aten.resolve_conj.default", "aten.resolve_neg.default")
def convert_resolve(ctx: Context, x: Complex) -> Complex:
    return x


@complex_converter("aten.full.default", "aten.full_like.default", "aten.scalar_tensor.default")
def convert_complex_full(
    ctx: Context, fill_value: Any = None, s: Any = None, size: Any = None, x: Any = None
) -> Complex:
    re, im = parts_of(s if fill_value is None else fill_value)
    return Complex(filled(ctx, re), filled(ctx, im or 0))


@complex_converter("aten.cat.default", "aten.stack.default")
def convert_join(ctx: Context, tensors: Sequence[Value], dim: int) -> Complex:
    dtype = dtype_of_parts(ctx)
    # torch passes over tensors of shape (0,), whatever the rank of the others.
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)] or tensors
    whole = [complex_of(ctx, tensor, dtype) for tensor in tensors]
    rank = len(as_shape(ctx.expected().shape))
    axis = dim % rank
    if whole[0].rank < rank:
        wide = [(*value.shape[:axis], 1, *value.shape[axis:]) for value in whole]
        whole = [
            Complex(ctx.reshape(value.re, shape), ctx.reshape(value.im, shape))
            for value, shape in zip(whole, wide, strict=True)
        ]
    return Complex(
        concatenate(ctx, [value.re for value in whole], axis, dtype),
        concatenate(ctx, [value.im for value in whole], axis, dtype),
    )


@complex_converter("aten.constant_pad_nd.default", "aten.pad.default")
def convert_complex_pad(
    ctx: Context, x: Complex, pad: Sequence[Any], value: Any, mode: str = "constant"
) -> Complex:
    re, im = parts_of(value)
    return Complex(
        convert_pad(ctx, x.re, pad, re, mode), convert_pad(ctx, x.im, pad, im or 0, mode)
    )
