"""Elementary functions and reductions of float32 vectors, without libm.

Everything here is branch-free and works on any number of lanes, one included. NaN goes through:
``T.max(bound, x)`` with the constant first is ``x`` when ``x`` is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.tirx.script.builder import ir as T

from .prim_func import Expr, let, select, vector

_EXP_LOWEST = -87.33654  # exp of less is no normal float32
_EXP_HIGHEST = 88.37626  # 2**n of more does not fit a float32 exponent
_SMALLEST_NORMAL = 1.17549435e-38

# TVM does not say so itself, takes vectors apart for it, and then loses what is bound in their loop.
ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)


def _type(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _horner(x: Expr, coefficients: tuple[float, ...], lanes: int) -> Expr:
    """The polynomial whose coefficients are given from the highest power down."""
    value = vector(coefficients[0], lanes)
    for coefficient in coefficients[1:]:
        value = value * x + vector(coefficient, lanes)
    return value


def clamp(x: Expr, low: float, high: float, lanes: int) -> Expr:
    return T.max(vector(low, lanes), T.min(vector(high, lanes), x))


def exp(x: Expr, lanes: int, *, never_positive: bool = False) -> Expr:
    """e**x to 2 ulp; 0 below -87.34, inf above 88.37 (Cephes expf).

    ``never_positive`` saves the upper bound where the caller knows that ``x <= 0``.
    """
    x = let(x)
    bounded = T.max(vector(_EXP_LOWEST, lanes), x)
    if not never_positive:
        bounded = T.min(vector(_EXP_HIGHEST, lanes), bounded)
        # T.min keeps its second operand when either is NaN, which is what we want here too.
    bounded = let(bounded)
    n = let(T.floor(bounded * vector(1.44269504088896341, lanes) + vector(0.5, lanes)))
    # ln 2 in two parts, so that n * ln 2 is subtracted exactly.
    r = let(bounded - n * vector(0.693359375, lanes) + n * vector(2.12194440e-4, lanes))
    tail = _horner(
        r,
        (
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ),
        lanes,
    )
    mantissa = tail * (r * r) + r + vector(1.0, lanes)
    exponent = T.shift_left(
        T.Cast(_type("int32", lanes), n) + vector(127, lanes, "int32"), vector(23, lanes, "int32")
    )
    value = mantissa * T.reinterpret(_type("float32", lanes), exponent)
    value = select(x < vector(_EXP_LOWEST, lanes), vector(0.0, lanes), value)
    if not never_positive:
        value = select(x > vector(_EXP_HIGHEST, lanes), vector(float("inf"), lanes), value)
    return let(value)


def log(x: Expr, lanes: int) -> Expr:
    """The natural logarithm to 2 ulp; -inf at 0, NaN below (Cephes logf)."""
    x = let(x)
    tiny = x < vector(_SMALLEST_NORMAL, lanes)
    scaled = let(select(tiny, x * vector(2.0**23, lanes), x))
    bits = let(T.reinterpret(_type("int32", lanes), scaled))
    # The mantissa in [sqrt(1/2), sqrt(2)): the exponent is that of x * sqrt(2), rounded down.
    n = let(T.shift_right(bits - vector(0x3F3504F3, lanes, "int32"), vector(23, lanes, "int32")))
    m = T.reinterpret(_type("float32", lanes), bits - T.shift_left(n, vector(23, lanes, "int32")))
    m = let(m - vector(1.0, lanes))
    n = T.Cast(_type("float32", lanes), n)
    n = let(n - select(tiny, vector(23.0, lanes), vector(0.0, lanes)))
    tail = _horner(
        m,
        (
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ),
        lanes,
    )
    m2 = let(m * m)
    value = m + (tail * m * m2 - n * vector(2.12194440e-4, lanes) - vector(0.5, lanes) * m2)
    value = value + n * vector(0.693359375, lanes)
    value = select(x == vector(0.0, lanes), vector(float("-inf"), lanes), value)
    value = select(x < vector(0.0, lanes), vector(float("nan"), lanes), value)
    # inf and NaN go through: x + x is both.
    return let(select(x < vector(float("inf"), lanes), value, x + x))


def erf(x: Expr, lanes: int) -> Expr:
    """The error function, absolute error below 3e-7 (the rational minimax of Eigen and XLA)."""
    x = let(clamp(x, -4.0, 4.0, lanes))
    x2 = let(x * x)
    numerator = _horner(
        x2,
        (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ),
        lanes,
    )
    denominator = _horner(
        x2,
        (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
        lanes,
    )
    return let(x * numerator / denominator)


def tanh(x: Expr, lanes: int) -> Expr:
    """The hyperbolic tangent, absolute error below 3e-7 (the rational minimax of Eigen and XLA)."""
    x = let(clamp(x, -7.90531110763549805, 7.90531110763549805, lanes))
    x2 = let(x * x)
    numerator = _horner(
        x2,
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
        lanes,
    )
    denominator = _horner(
        x2,
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
        lanes,
    )
    return let(x * numerator / denominator)


def sigmoid(x: Expr, lanes: int) -> Expr:
    """1 / (1 + e**-x)."""
    one = vector(1.0, lanes)
    return let(one / (one + exp(vector(0.0, lanes) - x, lanes)))


def gelu(x: Expr, lanes: int) -> Expr:
    """x * Φ(x), through erf."""
    half = vector(0.5, lanes)
    return half * x * (vector(1.0, lanes) + erf(x * vector(0.70710678118654752, lanes), lanes))


def gelu_tanh(x: Expr, lanes: int) -> Expr:
    """The tanh approximation of GELU (torch's ``approximate="tanh"``).

    (1 + tanh u) / 2 is sigmoid 2u, which keeps its relative accuracy where the sum would cancel.
    """
    inner = x * vector(2 * 0.79788456080286536, lanes)
    inner = inner * (vector(1.0, lanes) + vector(0.044715, lanes) * (x * x))
    return x * sigmoid(inner, lanes)


def silu(x: Expr, lanes: int) -> Expr:
    return x * sigmoid(x, lanes)


def relu(x: Expr, lanes: int) -> Expr:
    return T.max(vector(0.0, lanes), x)


ACTIVATIONS: dict[str, Callable[[Expr, int], Expr]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}


def activate(name: str | None, x: Expr, lanes: int) -> Expr:
    """Apply the activation of that name, or none."""
    return x if name is None else ACTIVATIONS[name](let(x), lanes)


def add(a: Expr, b: Expr) -> Expr:
    return a + b


def maximum(a: Expr, b: Expr) -> Expr:
    return T.max(a, b)


def reduce_lanes(value: Expr, combine: Callable[[Expr, Expr], Expr], lanes: int) -> Expr:
    """Combine the elements of one vector, as a tree, to a scalar. ``lanes`` is a power of two."""
    value = let(value)
    while lanes > 1:
        lanes //= 2
        low, high = (
            tirx.Shuffle([value], [tirx.IntImm("int32", i) for i in range(first, first + lanes)])
            for first in (0, lanes)
        )
        value = let(combine(low, high))
    return value
