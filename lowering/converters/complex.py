"""Complex numbers, as pairs of real tensors.

TVM has no complex dtype. At the border a complex tensor has its parts in a last axis of two, as in
memory; within the graph it is two tensors, and every op is written in real arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tvm import tirx

from ..context import Context, Unsupported
from ..symbols import Scalar, as_shape
from ..tensor import DTYPES, PARTS, Complex, Tensor
from . import index, nonzero, reduce, scan  # noqa: F401  (`on_parts` uses their converters)
from . import linear as products
from .creation import filled
from .elementwise import constant, differ, equal, libm, negation, pointwise
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


def _parts(value: Value) -> Parts:
    """Real and imaginary part; None for that of a real value."""
    if isinstance(value, Complex):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    return value, None


def _zero(ctx: Context, like: Tensor, dtype: str) -> Tensor:
    return pointwise(ctx, "zero", lambda x: tirx.const(0, dtype), like, dtype=dtype)


def complex_of(ctx: Context, value: Value, dtype: str) -> Complex:
    """A tensor, real or complex, as a complex one with parts of ``dtype``."""
    if isinstance(value, Complex):
        return Complex(ctx.cast(value.re, dtype), ctx.cast(value.im, dtype))
    return Complex(ctx.cast(value, dtype), _zero(ctx, value, dtype))


def _pair(
    ctx: Context,
    name: str,
    elements: tuple[Callable[..., Any], Callable[..., Any]],
    *operands: Any,
    dtype: str,
) -> Complex:
    """The two parts of a result, each from the parts of the operands."""
    return Complex(*(pointwise(ctx, name, element, *operands, dtype=dtype) for element in elements))


on_parts(
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
    "aten.index_select.default",
    "aten.lift_fresh_copy.default",
    "aten.masked_select.default",
    "aten.mean.default",
    "aten.mean.dim",
    "aten.narrow.default",
    "aten.neg.default",
    "aten.permute.default",
    "aten.repeat.default",
    "aten.reshape.default",
    "aten.roll.default",
    "aten.select.int",
    "aten.slice.Tensor",
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


@complex_converter("aten._to_copy.default", "aten.to.dtype", "prims.convert_element_type.default")
def convert_to_copy(ctx: Context, x: Value) -> Value:
    dtype = ctx.expected().dtype
    assert ctx.node is not None
    if ctx.node.meta["val"].dtype in PARTS:
        return complex_of(ctx, x, DTYPES[dtype])
    if dtype is torch.bool:
        return _alike(ctx, x, 0, lambda a, b, c, d: tirx.any(differ(a, c), differ(b, d)))
    return ctx.cast(x.re, DTYPES[dtype])  # eager discards the imaginary part, too


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
    return _pair(ctx, "complex", (lambda a, b: a, lambda a, b: b), real, imag, dtype=dtype)


@complex_converter("aten.polar.default")
def convert_polar(ctx: Context, abs: Tensor, angle: Tensor) -> Complex:
    elements = (lambda r, a: r * tirx.cos(a), lambda r, a: r * tirx.sin(a))
    return _pair(ctx, "polar", elements, abs, angle, dtype=dtype_of_parts(ctx))


@complex_converter(
    "aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default"
)
def convert_conj(ctx: Context, x: Complex) -> Complex:
    return Complex(x.re, pointwise(ctx, "negate", lambda v: -v, x.im, dtype=x.im.dtype))


@complex_converter("aten.resolve_conj.default", "aten.resolve_neg.default")
def convert_resolve(ctx: Context, x: Complex) -> Complex:
    return x


@complex_converter("aten.add.Tensor", "aten.add.Scalar")
def convert_add(ctx: Context, x: Value, other: Value, alpha: Scalar) -> Complex:
    return _sum(ctx, x, other, alpha, 1)


@complex_converter("aten.sub.Tensor", "aten.sub.Scalar")
def convert_sub(ctx: Context, x: Value, other: Value, alpha: Scalar) -> Complex:
    return _sum(ctx, x, other, alpha, -1)


@complex_converter("aten.rsub.Scalar", "aten.rsub.Tensor")
def convert_rsub(ctx: Context, x: Value, other: Value, alpha: Scalar) -> Complex:
    if alpha != 1:
        raise Unsupported(f"with alpha={alpha}")
    negative = (
        Complex(
            *(
                pointwise(ctx, "negate", lambda v: -v, part, dtype=part.dtype)
                for part in (x.re, x.im)
            )
        )
        if isinstance(x, Complex)
        else pointwise(ctx, "negate", lambda v: -v, x, dtype=dtype_of_parts(ctx))
    )
    return _sum(ctx, negative, other, 1, 1)


def _sum(ctx: Context, x: Value, other: Value, alpha: Scalar, sign: int) -> Complex:
    dtype = dtype_of_parts(ctx)
    if not isinstance(alpha, (int, float)):
        raise Unsupported(f"with alpha={alpha}")
    factor = sign * alpha
    (a, b), (c, d) = _parts(x), _parts(other)
    # Both results need the common shape, also where a part is missing.
    b, d = 0.0 if b is None else b, 0.0 if d is None else d
    shaped = [each for each in (a, c) if isinstance(each, Tensor)]

    def element(p: Any, q: Any, *_: Any) -> Any:
        return p + q * tirx.const(factor, str(q.ty.dtype))

    return Complex(
        pointwise(ctx, "add", element, a, c, dtype=dtype),
        pointwise(ctx, "add", element, b, d, *shaped, dtype=dtype),
    )


@complex_converter("aten.mul.Tensor", "aten.mul.Scalar")
def convert_mul(ctx: Context, x: Value, other: Value) -> Complex:
    return times(ctx, x, other, dtype_of_parts(ctx))


def times(ctx: Context, x: Value, other: Value, dtype: str) -> Complex:
    (a, b), (c, d) = _parts(x), _parts(other)
    if b is None:
        (a, b), (c, d) = (c, d), (a, b)
    if d is None:
        elements: Any = (lambda p, q, r: p * r, lambda p, q, r: q * r)
        return _pair(ctx, "scale", elements, a, b, c, dtype=dtype)
    elements = (lambda p, q, r, s: p * r - q * s, lambda p, q, r, s: p * s + q * r)
    return _pair(ctx, "multiply", elements, a, b, c, d, dtype=dtype)


@complex_converter("aten.div.Tensor", "aten.div.Scalar")
def convert_div(ctx: Context, x: Value, other: Value) -> Complex:
    return _quotient(ctx, x, other, dtype_of_parts(ctx))


def _quotient(ctx: Context, x: Value, other: Value, dtype: str) -> Complex:
    """Smith's division, as in c10: nothing overflows before the result does."""
    (a, b), (c, d) = _parts(x), _parts(other)
    if d is None:
        elements: Any = (lambda p, q, r: p / r, lambda p, q, r: q / r)
        b = _zero(ctx, a, dtype) if b is None else b
        return _pair(ctx, "divide", elements, a, b, c, dtype=dtype)
    b = 0.0 if b is None else b

    def element(p: Any, q: Any, r: Any, s: Any, imaginary: bool) -> Any:
        size_r, size_s, zero = tirx.abs(r), tirx.abs(s), constant(0, r)
        by_r = s / r
        of_r = constant(1, r) / (r + s * by_r)
        by_s = r / s
        of_s = constant(1, r) / (r * by_s + s)
        if imaginary:
            first, second = (q - p * by_r) * of_r, (q * by_s - p) * of_s
            nothing = q / size_s
        else:
            first, second = (p + q * by_r) * of_r, (p * by_s + q) * of_s
            nothing = p / size_r
        value = tirx.Select(size_r >= size_s, first, second)
        return tirx.Select(tirx.all(tirx.EQ(size_r, zero), tirx.EQ(size_s, zero)), nothing, value)

    elements = (
        lambda p, q, r, s: element(p, q, r, s, False),
        lambda p, q, r, s: element(p, q, r, s, True),
    )
    return _pair(ctx, "divide", elements, a, b, c, d, dtype=dtype)


@complex_converter("aten.reciprocal.default")
def convert_reciprocal(ctx: Context, x: Complex) -> Complex:
    return _quotient(ctx, 1.0, x, dtype_of_parts(ctx))


@complex_converter("aten.square.default")
def convert_square(ctx: Context, x: Complex) -> Complex:
    return times(ctx, x, x, dtype_of_parts(ctx))


@complex_converter("aten.abs.default")
def convert_abs(ctx: Context, x: Complex) -> Tensor:
    return _size(ctx, x)


def _size(ctx: Context, x: Complex) -> Tensor:
    return pointwise(ctx, "hypot", lambda a, b: libm("hypot", a, b), x.re, x.im, dtype=x.re.dtype)


@complex_converter("aten.angle.default")
def convert_angle(ctx: Context, x: Complex) -> Tensor:
    return pointwise(ctx, "angle", lambda a, b: libm("atan2", b, a), x.re, x.im, dtype=x.re.dtype)


@complex_converter("aten.sgn.default")
def convert_sgn(ctx: Context, x: Complex) -> Complex:
    def element(value: Any, size: Any) -> Any:
        zero = constant(0, value)
        return tirx.Select(tirx.EQ(size, zero), zero, value / size)

    size, dtype = _size(ctx, x), x.re.dtype
    return Complex(
        *(pointwise(ctx, "sgn", element, part, size, dtype=dtype) for part in (x.re, x.im))
    )


# Elementary functions: the parts of f(a + ib).

_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (
        lambda a, b: tirx.exp(a) * tirx.cos(b),
        lambda a, b: tirx.Select(tirx.EQ(b, constant(0, b)), b, tirx.exp(a) * tirx.sin(b)),
    ),
    "log": (
        lambda a, b: tirx.log(libm("hypot", a, b)),
        lambda a, b: libm("atan2", b, a),
    ),
    "sin": (
        lambda a, b: tirx.sin(a) * libm("cosh", b),
        lambda a, b: tirx.cos(a) * libm("sinh", b),
    ),
    "cos": (
        lambda a, b: tirx.cos(a) * libm("cosh", b),
        lambda a, b: -(tirx.sin(a) * libm("sinh", b)),
    ),
    "sinh": (
        lambda a, b: libm("sinh", a) * tirx.cos(b),
        lambda a, b: libm("cosh", a) * tirx.sin(b),
    ),
    "cosh": (
        lambda a, b: libm("cosh", a) * tirx.cos(b),
        lambda a, b: libm("sinh", a) * tirx.sin(b),
    ),
}


def _register_function(name: str, elements: Any) -> None:
    @complex_converter(f"aten.{name}.default")
    def convert_function(ctx: Context, x: Complex) -> Complex:
        return _pair(ctx, name, elements, x.re, x.im, dtype=x.re.dtype)


for _name, _elements in _FUNCTIONS.items():
    _register_function(_name, _elements)


@complex_converter("aten.sqrt.default")
def convert_sqrt(ctx: Context, x: Complex) -> Complex:
    return _root(ctx, x)


@complex_converter("aten.rsqrt.default")
def convert_rsqrt(ctx: Context, x: Complex) -> Complex:
    return _quotient(ctx, 1.0, _root(ctx, x), x.re.dtype)


def _root(ctx: Context, x: Complex) -> Complex:
    """The root with a real part that is not negative, without cancellation."""
    half = pointwise(
        ctx,
        "half_root",
        lambda a, size: tirx.sqrt((tirx.abs(a) + size) * constant(0.5, a)),
        x.re,
        _size(ctx, x),
        dtype=x.re.dtype,
    )

    def other(b: Any, t: Any) -> Any:
        zero = constant(0, t)
        return tirx.Select(tirx.EQ(t, zero), zero, b / (t + t))

    def re(a: Any, b: Any, t: Any) -> Any:
        return tirx.Select(a < constant(0, a), tirx.abs(other(b, t)), t)

    def im(a: Any, b: Any, t: Any) -> Any:
        return tirx.Select(a < constant(0, a), libm("copysign", t, b), other(b, t))

    return _pair(ctx, "sqrt", (re, im), x.re, x.im, half, dtype=x.re.dtype)


@complex_converter("aten.pow.Tensor_Scalar")
def convert_pow(ctx: Context, x: Complex, exponent: Scalar) -> Complex:
    dtype = dtype_of_parts(ctx)
    if not isinstance(exponent, (int, float)):
        raise Unsupported(f"with exponent={exponent}", "a real constant")
    if exponent == 0.5:
        return _root(ctx, x)
    if isinstance(exponent, int) and 2 <= exponent <= 4:
        value = x
        for _ in range(exponent - 1):
            value = times(ctx, value, x, dtype)
        return value
    if exponent == -1:
        return _quotient(ctx, 1.0, x, dtype)

    def element(a: Any, b: Any, f: Callable[[Any], Any]) -> Any:
        size = libm("hypot", a, b)
        turn = libm("atan2", b, a) * constant(exponent, a)
        value = libm("pow", size, constant(exponent, a)) * f(turn)
        if exponent > 0:
            value = tirx.Select(tirx.EQ(size, constant(0, a)), constant(0, a), value)
        return value

    if exponent <= 0:
        raise Unsupported(f"with exponent={exponent}", "a positive constant, or 1 / x ** n")
    elements = (lambda a, b: element(a, b, tirx.cos), lambda a, b: element(a, b, tirx.sin))
    return _pair(ctx, "pow", elements, x.re, x.im, dtype=dtype)


# Comparisons.


@complex_converter("aten.eq.Tensor", "aten.eq.Scalar")
def convert_eq(ctx: Context, x: Value, other: Value) -> Tensor:
    return _alike(ctx, x, other, lambda a, b, c, d: tirx.all(equal(a, c), equal(b, d)))


@complex_converter("aten.ne.Tensor", "aten.ne.Scalar")
def convert_ne(ctx: Context, x: Value, other: Value) -> Tensor:
    return _alike(ctx, x, other, lambda a, b, c, d: tirx.any(differ(a, c), differ(b, d)))


def _alike(ctx: Context, x: Value, other: Value, element: Callable[..., Any]) -> Tensor:
    operands = []
    for value in (x, other):
        re, im = _parts(value)
        operands += [re, 0.0 if im is None else im]
    double = any(isinstance(o, Tensor) and o.dtype in ("float64", "int64") for o in operands)
    dtype = "float64" if double else "float32"
    return pointwise(ctx, "compare", element, *operands, dtype=dtype, result="bool")


@complex_converter("aten.isnan.default")
def convert_isnan(ctx: Context, x: Complex) -> Tensor:
    return pointwise(
        ctx,
        "isnan",
        lambda a, b: tirx.any(tirx.isnan(a), tirx.isnan(b)),
        x.re,
        x.im,
        dtype=x.re.dtype,
        result="bool",
    )


@dataclass(frozen=True)
class _Number:
    re: Any
    im: Any


def _number(value: Any) -> _Number:
    re, im = _parts(value)
    return _Number(re, im or 0)


@complex_converter(
    "aten.where.self", "aten.where.Scalar", "aten.where.ScalarSelf", "aten.where.ScalarOther"
)
def convert_where(ctx: Context, condition: Tensor, x: Value, other: Value) -> Complex:
    dtype = dtype_of_parts(ctx)
    one, two = (
        complex_of(ctx, value, dtype) if isinstance(value, (Tensor, Complex)) else _number(value)
        for value in (x, other)
    )
    return Complex(
        *(
            pointwise(
                ctx,
                "where",
                lambda c, a, b: tirx.Select(negation(tirx.EQ(c, constant(0, c))), a, b),
                ctx.cast(condition, dtype),
                a,
                b,
                dtype=dtype,
            )
            for a, b in ((one.re, two.re), (one.im, two.im))
        )
    )


@complex_converter("aten.masked_fill.Scalar")
def convert_masked_fill(ctx: Context, x: Complex, mask: Tensor, value: Any) -> Complex:
    filled = _parts(value)

    def part(tensor: Tensor, number: Any) -> Tensor:
        def element(a: Any, m: Any) -> Any:
            return tirx.Select(m > constant(0.5, m), constant(number or 0, a), a)

        return pointwise(ctx, "masked_fill", element, tensor, mask, dtype=tensor.dtype)

    return Complex(part(x.re, filled[0]), part(x.im, filled[1]))


# Making and joining.


@complex_converter("aten.full.default", "aten.full_like.default", "aten.scalar_tensor.default")
def convert_complex_full(
    ctx: Context, fill_value: Any = None, s: Any = None, size: Any = None, x: Any = None
) -> Complex:
    re, im = _parts(s if fill_value is None else fill_value)
    return Complex(filled(ctx, re), filled(ctx, im or 0))


@complex_converter("aten.cat.default", "aten.stack.default")
def convert_join(ctx: Context, tensors: Sequence[Value], dim: int) -> Complex:
    dtype = dtype_of_parts(ctx)
    whole = [complex_of(ctx, tensor, dtype) for tensor in tensors if tensor.shape != (0,)]
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
    re, im = _parts(value)
    return Complex(
        convert_pad(ctx, x.re, pad, re, mode), convert_pad(ctx, x.im, pad, im or 0, mode)
    )


# Products.


@complex_converter("aten.mm.default", "aten.bmm.default")
def convert_mm(ctx: Context, x: Value, mat2: Value) -> Complex:
    return _product(ctx, x, mat2)


@complex_converter("aten.matmul.default")
def convert_matmul(ctx: Context, x: Value, other: Value) -> Complex:
    return _product(ctx, x, other)


@complex_converter("aten.dot.default")
def convert_dot(ctx: Context, x: Value, tensor: Value) -> Complex:
    return _product(ctx, x, tensor)


@complex_converter("aten.mv.default")
def convert_mv(ctx: Context, x: Value, vec: Value) -> Complex:
    return _product(ctx, x, vec)


@complex_converter("aten.addmm.default")
def convert_addmm(
    ctx: Context, x: Value, mat1: Value, mat2: Value, beta: Any, alpha: Any
) -> Complex:
    return _added(ctx, x, _product(ctx, mat1, mat2), beta, alpha)


@complex_converter("aten.baddbmm.default")
def convert_baddbmm(
    ctx: Context, x: Value, batch1: Value, batch2: Value, beta: Any, alpha: Any
) -> Complex:
    return _added(ctx, x, _product(ctx, batch1, batch2), beta, alpha)


def _added(ctx: Context, x: Value, result: Complex, beta: Any, alpha: Any) -> Complex:
    dtype = dtype_of_parts(ctx)
    scaled = result if alpha == 1 else times(ctx, result, alpha, dtype)
    if beta == 0:
        return scaled
    bias = x if beta == 1 else times(ctx, x, beta, dtype)
    return _sum(ctx, scaled, bias, 1, 1)


@complex_converter("aten.linear.default")
def convert_linear(ctx: Context, input: Complex, weight: Complex, bias: Value) -> Complex:
    def product(a: Tensor, b: Tensor) -> Tensor:
        return products.linear(ctx, a, b, None)

    result = _of_parts(ctx, input, weight, product)
    return result if bias is None else _sum(ctx, result, bias, 1, 1)


def _product(ctx: Context, x: Value, other: Value) -> Complex:
    dtype = dtype_of_parts(ctx)
    left, right = complex_of(ctx, x, dtype), complex_of(ctx, other, dtype)
    return _of_parts(ctx, left, right, lambda a, b: products.convert_matmul(ctx, a, b))


def _of_parts(
    ctx: Context, x: Complex, other: Complex, product: Callable[[Tensor, Tensor], Tensor]
) -> Complex:
    dtype = x.re.dtype
    re = product(x.re, other.re), product(x.im, other.im)
    im = product(x.re, other.im), product(x.im, other.re)
    return Complex(
        pointwise(ctx, "subtract", lambda a, b: a - b, *re, dtype=dtype),
        pointwise(ctx, "add", lambda a, b: a + b, *im, dtype=dtype),
    )
