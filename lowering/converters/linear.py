"""Matrix products."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..broadcasting import broadcast, broadcast_index
from ..context import Context, Unsupported
from ..kernels import gemm
from ..kernels.matmul import batched_matmul
from ..symbols import Scalar, Shape, Symbols, product
from ..tensor import HALVES, Constant, Tensor
from . import elementwise, on_gpu, on_tensor_cores
from .elementwise import pointwise
from .registry import converter

_PACKED = HALVES | {"float32"}

ACTIVATIONS = {
    "relu": elementwise.relu,
    "gelu": elementwise.gelu,
    "gelu_tanh": elementwise.gelu_tanh,
    "silu": elementwise.silu,
}


def linear(
    ctx: Context,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """act(x Wᵀ + bias) + residual, with the weight ``[n, k]`` packed at export where it can be."""
    shape = (*x.shape[:-1], weight.shape[0])
    if weight.constant is not None and x.dtype == weight.dtype and x.dtype in _PACKED:
        return _packed(ctx, x, weight.constant, bias, activation, residual)
    if _reads_codes(ctx, x, weight):
        assert weight.codes is not None
        codes, scale = weight.codes.constant, weight.codes.scale
        return _packed(ctx, x, codes, bias, activation, residual, scale)
    wide = weight if x.rank <= 2 else ctx.reshape(weight, (1,) * (x.rank - 2) + weight.shape)
    left = x if x.rank > 1 else ctx.reshape(x, (1, *x.shape))
    result = matrix_product(ctx, left, wide, transpose_b=True)
    result = ctx.reshape(result, shape)
    if bias is not None:
        result = pointwise(ctx, "add", lambda a, b: a + b, result, bias, dtype=x.dtype)
    if activation is not None:
        result = pointwise(ctx, activation, ACTIVATIONS[activation], result, dtype=x.dtype)
    if residual is not None:
        result = pointwise(ctx, "add", lambda a, b: a + b, result, residual, dtype=x.dtype)
    return result


def _reads_codes(ctx: Context, x: Tensor, weight: Tensor) -> bool:
    return (
        weight.codes is not None
        and not ctx.on_gpu
        and x.dtype == weight.dtype
        and x.dtype in _PACKED
    )


def _packed(
    ctx: Context,
    x: Tensor,
    weight: Constant,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    scale: Tensor | float | None = None,
) -> Tensor:
    """The product with a weight ``[n, k]``, or with codes of it that have a scale."""
    n, k = weight.value.shape
    shape = (*x.shape[:-1], n)
    if n == 0:  # of which no kernel has a tile
        return ctx.zeros(shape, x.dtype)
    flat = (product(x.shape[:-1]), n)
    packed = ctx.derived(weight, f"packed{gemm.PANEL}", gemm.PACKING)
    dtype = x.dtype
    if ctx.on_gpu and dtype in HALVES:
        rows = ctx.reshape(x, (flat[0], k))
        made = on_tensor_cores.gemm(ctx, rows, packed, n, bias, activation, residual)
        return ctx.reshape(made, shape)
    if ctx.on_gpu:
        result = on_gpu.gemm(ctx, ctx.reshape(x, (flat[0], k)), packed, n)
        result = _finished(ctx, result, bias, activation, residual, dtype, flat)
        return ctx.reshape(result, shape)
    inputs = [ctx.reshape(ctx.cast(x, "float32"), (flat[0], k)), packed]
    if scale is not None:
        inputs.append(scale_of_each(ctx, scale, n))
    if bias is not None:
        inputs.append(bias)
    if residual is not None:
        inputs.append(ctx.reshape(residual, flat))
    function = gemm.gemm(
        n,
        k,
        bias=bias is not None,
        activation=activation,
        residual=residual is not None,
        target=ctx.cpu,
        dtype=dtype,
        weight_dtype=packed.dtype,
        scale=scale is not None,
    )
    return ctx.reshape(ctx.call(f"gemm_{n}x{k}", function, inputs, flat, dtype), shape)


def scale_of_each(ctx: Context, scale: Tensor | float, count: int) -> Tensor:
    """The scale of codes for each of ``count`` rows."""
    if isinstance(scale, Tensor):
        return scale
    element = lambda scope, *_: scope.number(scale, "float32")  # noqa: E731
    return ctx.compute("filled", [], (count,), "float32", element)


def _finished(
    ctx: Context,
    result: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    dtype: str,
    shape: Shape,
) -> Tensor:
    """act(result + bias) + residual, each step rounded to ``dtype`` as in eager mode."""
    if bias is not None:
        wide = ctx.cast(bias, "float32")
        result = pointwise(ctx, "add", lambda a, b: a + b, result, wide, dtype="float32")
    result = ctx.cast(result, dtype)
    if activation is not None:
        function = ACTIVATIONS[activation]
        wide = ctx.cast(result, "float32")
        result = ctx.cast(pointwise(ctx, activation, function, wide, dtype="float32"), dtype)
    if residual is not None:
        terms = [ctx.cast(t, "float32") for t in (result, ctx.reshape(residual, shape))]
        total = pointwise(ctx, "add", lambda a, b: a + b, *terms, dtype="float32")
        result = ctx.cast(total, dtype)
    return result


def matrix_product(ctx: Context, a: Tensor, b: Tensor, *, transpose_b: bool = False) -> Tensor:
    """``a @ b`` (or ``a @ bᵀ``) of tensors with two axes or more; the outer ones broadcast.

    Integers are exact, in the dtype of the operands, as in eager mode.
    """
    if a.dtype != b.dtype:
        raise Unsupported(f"of {a.dtype} and {b.dtype}")
    if a.dtype in HALVES and ctx.on_gpu:
        outer = broadcast(a.shape[:-2], b.shape[:-2])
        # One matrix for some of the batch is copied, for all of it is not.
        a, b = (
            each if _is_batch(each, outer) else ctx.stretch(each, (*outer, *each.shape[-2:]))
            for each in (a, b)
        )
        return on_tensor_cores.batched_matmul(ctx, a, b, outer, transpose_b=transpose_b)
    rows, inner = a.shape[-2:]
    columns = b.shape[-2] if transpose_b else b.shape[-1]
    outer = broadcast(a.shape[:-2], b.shape[:-2])
    shape: Shape = (*outer, rows, columns)
    batch = _is_batch(a, outer) and _is_batch(b, outer)
    if a.dtype in _PACKED and batch and not ctx.on_gpu:
        return _batched(ctx, a, b, shape, transpose_b)
    if a.dtype in HALVES:
        left, right = ctx.cast(a, "float32"), ctx.cast(b, "float32")
        return ctx.cast(matrix_product(ctx, left, right, transpose_b=transpose_b), a.dtype)

    def build(scope: Symbols, left: te.Tensor, right: te.Tensor) -> te.Tensor:
        over = te.reduce_axis((tirx.IntImm("int64", 0), scope.size(inner)), name="k")

        def element(*position: Any) -> Any:
            *where, row, column = position
            at_left = broadcast_index(a.shape[:-2], where)
            at_right = broadcast_index(b.shape[:-2], where)
            right_index = [column, over.var] if transpose_b else [over.var, column]
            return te.sum(
                left(*at_left, row, over.var) * right(*at_right, *right_index), axis=[over]
            )

        return te.compute(scope.shape(shape), element, name="matmul")

    return ctx.kernel("matmul", build, [a, b], shape, a.dtype)


def _is_batch(operand: Tensor, outer: Shape) -> bool:
    """Whether the operand has a matrix for each of the batch, or one for all of it."""
    return operand.shape[:-2] == outer or product(operand.shape[:-2]) == 1


def _batched(ctx: Context, a: Tensor, b: Tensor, shape: Shape, transpose_b: bool) -> Tensor:
    outer = product(shape[:-2])

    def stacked(operand: Tensor) -> Tensor:
        return ctx.reshape(operand, (product(operand.shape[:-2]), *operand.shape[-2:]))

    left, right = stacked(ctx.cast(a, "float32")), stacked(b)
    sizes = {"b": outer, "m": shape[-2], "k": a.shape[-1], "n": shape[-1]}
    function = batched_matmul(
        **{name: size if isinstance(size, int) else None for name, size in sizes.items()},
        transpose_b=transpose_b,
        target=ctx.cpu,
        broadcast_a=left.shape[0] == 1 and outer != 1,
        broadcast_b=right.shape[0] == 1 and outer != 1,
        dtype=b.dtype,
    )
    flat = (outer, *shape[-2:])
    made = ctx.call("batched_matmul", function, [left, right], flat, b.dtype)
    return ctx.reshape(made, shape)


def product_of(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``; a constant matrix on the right is packed, int8 codes of one, too."""
    constant = _matrix(ctx, a, b)
    if constant is not None:
        return _packed(ctx, a, _turned(constant), None, None, None)
    return matrix_product(ctx, a, b)


def _matrix(ctx: Context, a: Tensor, b: Tensor) -> Constant | None:
    """What is stored of the right side of a product, where there is a kernel that reads it."""
    if b.rank != 2 or a.dtype != b.dtype or a.dtype not in _PACKED:
        return None
    if b.codes is not None and b.codes.scale is None and not ctx.on_gpu:
        return b.codes.constant
    return b.constant


def _turned(weight: Constant) -> Constant:
    return weight.stepped(f"{weight.name}:t", weight.value.t(), "transpose", (1, 0))


@converter("aten.linear.default", takes_halves=True)
def convert_linear(ctx: Context, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(ctx, input, weight, bias)


@converter("aten.mm.default", takes_halves=True)
def convert_mm(ctx: Context, x: Tensor, mat2: Tensor) -> Tensor:
    return product_of(ctx, x, mat2)


@converter("aten.bmm.default", takes_halves=True)
def convert_bmm(ctx: Context, x: Tensor, mat2: Tensor) -> Tensor:
    return product_of(ctx, x, mat2)


@converter("aten.matmul.default", takes_halves=True)
def convert_matmul(ctx: Context, x: Tensor, other: Tensor) -> Tensor:
    left = x if x.rank > 1 else ctx.reshape(x, (1, *x.shape))
    right = other if other.rank > 1 else ctx.reshape(other, (*other.shape, 1))
    result = product_of(ctx, left, right)
    shape = list(result.shape)
    if other.rank == 1:
        del shape[-1]
    if x.rank == 1:
        del shape[-2 if other.rank > 1 else -1]
    return ctx.reshape(result, tuple(shape))


@converter("aten.dot.default", takes_halves=True)
def convert_dot(ctx: Context, x: Tensor, tensor: Tensor) -> Tensor:
    return convert_matmul(ctx, x, tensor)


@converter("aten.mv.default", takes_halves=True)
def convert_mv(ctx: Context, x: Tensor, vec: Tensor) -> Tensor:
    return convert_matmul(ctx, x, vec)


@converter("aten.addmm.default", takes_halves=True)
def convert_addmm(
    ctx: Context, x: Tensor, mat1: Tensor, mat2: Tensor, beta: Scalar, alpha: Scalar
) -> Tensor:
    weight = _matrix(ctx, mat1, mat2)
    row = x.dtype == mat1.dtype and x.shape == (mat2.shape[1],)
    if alpha == beta == 1 and row and weight is not None:
        return _packed(ctx, mat1, _turned(weight), x, None, None)
    return _sum_with(ctx, x, product_of(ctx, mat1, mat2), beta, alpha)


@converter("aten.addmv.default", takes_halves=True)
def convert_addmv(
    ctx: Context, x: Tensor, mat: Tensor, vec: Tensor, beta: Scalar, alpha: Scalar
) -> Tensor:
    return _sum_with(ctx, x, convert_matmul(ctx, mat, vec), beta, alpha)


@converter("aten.baddbmm.default", takes_halves=True)
def convert_baddbmm(
    ctx: Context, x: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar, alpha: Scalar
) -> Tensor:
    return _sum_with(ctx, x, product_of(ctx, batch1, batch2), beta, alpha)


def _sum_with(ctx: Context, x: Tensor, result: Tensor, beta: Scalar, alpha: Scalar) -> Tensor:
    """``beta * x + alpha * result``; for beta 0 torch does not read ``x``, NaN or not."""
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
        raise Unsupported("with alpha or beta that are not constants")
    dtype = result.dtype
    if beta == 0:
        return pointwise(ctx, "scale", lambda a, b: a * b, result, alpha, dtype=dtype)
    if alpha == beta == 1:
        return pointwise(ctx, "add", lambda a, b: a + b, x, result, dtype=dtype)

    def element(a: Any, b: Any) -> Any:
        return elementwise.constant(beta, a) * a + elementwise.constant(alpha, b) * b

    return pointwise(ctx, "add", element, x, result, dtype=dtype)


_EXACT_STEPS = 1 << 10  # products of two int8 whose sum float32 holds exactly: 2**24 / 2**14


@converter("aten._int_mm.default")
def convert_int_mm(ctx: Context, x: Tensor, mat2: Tensor) -> Tensor:
    """int8 by int8 to int32, exact: in floats, of so many products that none is rounded."""
    if mat2.constant is None or mat2.dtype != "int8" or x.dtype != "int8":
        return matrix_product(ctx, ctx.cast(x, "int32"), ctx.cast(mat2, "int32"))
    k, n = mat2.constant.value.shape
    total: Tensor | None = None
    for first in range(0, k, _EXACT_STEPS):
        steps = min(_EXACT_STEPS, k - first)
        name = f"{mat2.constant.name}:rows{first}"
        value = mat2.constant.value[first : first + steps]
        rows = mat2.constant.stepped(name, value, "rows", first, steps)
        packed = ctx.derived(_turned(rows), f"packed{gemm.PANEL}", gemm.PACKING)
        left = _columns(ctx, x, first, steps)
        function = gemm.gemm(
            n,
            steps,
            bias=False,
            activation=None,
            residual=False,
            target=ctx.cpu,
            weight_dtype="int8",
        )
        shape = (x.shape[0], n)
        part = ctx.cast(ctx.call(f"int_mm_{n}x{steps}", function, [left, packed], shape), "int32")
        if total is None:
            total = part
        else:
            total = pointwise(ctx, "add", lambda a, b: a + b, total, part, dtype="int32")
    if total is None:
        return matrix_product(ctx, ctx.cast(x, "int32"), ctx.cast(mat2, "int32"))
    return total


def _columns(ctx: Context, x: Tensor, first: int, count: int) -> Tensor:
    """Some columns of a matrix, as float32."""
    return ctx.compute(
        "columns",
        [x],
        (x.shape[0], count),
        "float32",
        lambda _, t, p: t[0](p[0], p[1] + tirx.IntImm("int64", first)).astype("float32"),
    )
