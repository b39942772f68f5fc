import math

import pytest
import torch
from torch.nn import functional as F

X = torch.tensor([[-math.inf, -3.5, -1.0, -0.5, -0.0], [0.0, 1e-5, 0.5, 2.5, math.nan]])


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 2


UNARY = [
    torch.abs,
    torch.neg,
    torch.exp,
    torch.expm1,
    torch.sigmoid,
    torch.tanh,
    torch.erf,
    torch.sin,
    torch.cos,
    torch.tan,
    torch.atan,
    torch.sinh,
    torch.asinh,
    torch.floor,
    torch.ceil,
    torch.round,
    torch.trunc,
    torch.sign,
    torch.relu,
    torch.square,
    torch.reciprocal,
    torch.isnan,
    torch.isinf,
    torch.isfinite,
    F.gelu,
    lambda x: F.gelu(x.clamp(-9), approximate="tanh"),  # eager: NaN for -inf
    F.silu,
    F.leaky_relu,
    F.elu,
    F.selu,
    F.softplus,
    F.hardswish,
    F.hardsigmoid,
    F.relu6,
    F.mish,
    lambda x: x.clamp(-1, 1),
    lambda x: x.clamp(min=0.25),
    lambda x: x.clamp_max(0.25),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x.abs() ** 0.5,
    lambda x: x.abs() ** 1.7,
    lambda x: 2.0**x,
    lambda x: torch.log(x.abs()),
    lambda x: torch.log2(x.abs()),
    lambda x: torch.log10(x.abs()),
    lambda x: torch.log1p(x.abs()),
    lambda x: torch.rsqrt(x.abs()),
    lambda x: torch.sqrt(x.abs()),
    lambda x: x.nan_to_num(1.0, 2.0, 3.0),
    torch.erfinv,
    lambda x: torch.erfinv(x.sin()),
]


def test_functions_of_one_float(agree) -> None:
    agree(UNARY, (X,), (floats(1, 1),), (floats(3, 7),), (floats(1, 33),))


def test_functions_of_doubles(agree) -> None:
    functions = [torch.tanh, torch.erf, torch.exp, torch.sigmoid, F.gelu, F.silu, torch.log1p]
    inputs = [(torch.rand(2, 5, dtype=torch.float64),), (torch.rand(1, 1, dtype=torch.float64),)]
    agree(functions, *inputs, tolerance=1e-12)


BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.atan2,
    torch.fmod,
    torch.remainder,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    lambda x, y: torch.add(x, y, alpha=2.5),
    lambda x, y: torch.sub(x, y, alpha=2),
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: x // y,
    lambda x, y: x.abs() ** y,
    lambda x, y: torch.where(x > y, x, 0.0),
    lambda x, y: torch.where(x > y, -math.inf, y),
    lambda x, y: x.masked_fill(y > 0, -math.inf),
    lambda x, y: (x > 0) & (y > 0),
    lambda x, y: (x > 0) | ~(y > 0),
    lambda x, y: torch.logical_xor(x > 0, y > 0),
    lambda x, y: (x > 0) == (y > 0),
    lambda x, y: torch.clamp(x, y, y + 1),
    lambda x, y: torch.lerp(x, y, 0.25),
    torch.fmax,
    torch.fmin,
    torch.copysign,
    torch.hypot,
    lambda x, y: torch.signbit(x * y),
    lambda x, y: torch.round(x, decimals=1),
    lambda x, y: torch.special.erfc(x),
    lambda x, y: torch.lgamma(x.abs() + 0.5),
    lambda x, y: torch.nextafter(x, y),
]


def test_functions_of_two_floats_with_nan(agree) -> None:
    other = X.flip(0).clone()
    agree(BINARY, (X, other), (floats(1, 1), floats(1, 1)), (floats(5, 3), floats(5, 3)))


def test_operands_are_broadcast(agree) -> None:
    functions = [torch.add, torch.sub, torch.lt, torch.maximum, lambda x, y: x[:, None] * y]
    agree(
        functions,
        (floats(4, 6), floats(6)),
        (floats(1, 1), floats(1)),
        (floats(3, 5), floats(5)),
    )


INTEGERS = [
    lambda i: i + 2,
    lambda i: i * 2.5,
    lambda i: i / 2,
    lambda i: i // 3,
    lambda i: i // -3,
    lambda i: i % 3,
    lambda i: i % -3,
    lambda i: torch.div(i, 3, rounding_mode="trunc"),
    lambda i: torch.fmod(i, 3),
    lambda i: i**2,
    lambda i: i**5,
    lambda i: -i,
    lambda i: abs(i),
    lambda i: ~i,
    lambda i: i & 6,
    lambda i: i ^ 3,
    lambda i: i | 8,
    lambda i: i.clamp(-2, 2),
    lambda i: i > 1,
    lambda i: i == 2.5,
    lambda i: i + True,
    lambda i: torch.sqrt(i.abs()),
    lambda i: torch.exp(i),
    lambda i: 1.0 - i,
    lambda i: i.sign(),
    lambda i: (i > 0).sign(),
    lambda i: i.bool(),
    lambda i: i.float() / 3,
    lambda i: i.to(torch.float64) * 0.1,
    lambda i: i.to(torch.int32) + i,
    lambda i: i.to(torch.int8) * 3,
    lambda i: i.to(torch.uint8) + 1,
    lambda i: (i > 0) + (i > 1),
    lambda i: (i > 0) * 1.5,
    lambda i: (i > 0).to(torch.int64) - 1,
    lambda i: torch.where(i > 0, 1, 0),
    lambda i: torch.where(i > 0, i, 0.5),
    lambda i: i.float().to(torch.int64),
    lambda i: (i.float() * 0.7).to(torch.int32),
]


def test_integers_keep_torchs_dtypes_and_rounding(agree) -> None:
    example = torch.arange(-6, 6).reshape(3, 4)
    agree(INTEGERS, (example,), (torch.tensor([[-7]]),), (torch.arange(-10, 5).reshape(5, 3),))


WHOLE = [
    lambda i, j: i // j,
    lambda i, j: i % j,
    lambda i, j: torch.fmod(i, j),
    lambda i, j: torch.div(i, j, rounding_mode="trunc"),
    lambda i, j: i / j,
    lambda i, j: i.to(torch.int8) // j.to(torch.int8),
    lambda i, j: i**j,
    lambda i, j: 3 ** j.abs(),
    lambda i, j: i.to(torch.int32) ** j.abs(),
    lambda i, j: i << (j.abs() % 5),
    lambda i, j: i >> (j.abs() % 5),
    lambda i, j: i.to(torch.int32) << 3,
    lambda i, j: i.to(torch.int32) >> j.abs().to(torch.int32),
    lambda i, j: i @ j.T,
    lambda i, j: torch.minimum(i, j),
    lambda i, j: i.amin(0),
    lambda i, j: torch.isin(i, j[0]),
    torch.gcd,
    lambda i, j: torch.lcm(i, j // 2),
    lambda i, j: torch.gcd(i.to(torch.int8), i.to(torch.uint8)),
]


def test_integers_by_integers(agree) -> None:
    def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        divisor = torch.randint(1, 7, shape) * (torch.randint(0, 2, shape) * 2 - 1)
        return torch.randint(-20, 20, shape), divisor

    agree(WHOLE, pair(3, 4), pair(1, 1), pair(9, 2))


def test_the_least_integer_by_minus_one_does_not_end_the_process(agree) -> None:
    i, j = torch.tensor([5, 6]), torch.tensor([2, 3])
    compiled = agree([lambda i, j: i // j, lambda i, j: i % j], (i, j))
    least = torch.iinfo(torch.int64).min  # eager: SIGFPE
    quotient, remainder = compiled((torch.tensor([least, 7]), torch.tensor([-1, -1])))
    assert quotient.tolist() == [least, -7] and remainder.tolist() == [0, 0]


def test_division_of_integers_by_zero_fails(agree) -> None:
    i, j = torch.tensor([5, 6]), torch.tensor([2, 3])
    compiled = agree([lambda i, j: i // j], (i, j))
    with pytest.raises(Exception, match="tcexport check 0: no divisor is 0"):
        compiled((i, torch.tensor([1, 0])))


def test_numbers_do_not_change_a_tensors_dtype(agree) -> None:
    functions = [
        lambda x: x.double() * 0.1,
        lambda x: x * 3,
        lambda x: 2 - x,
        lambda x: x + torch.tensor(1.5, dtype=torch.float64),
        lambda x: x.int() + torch.tensor(2),
        lambda x: x.shape[0] * x,
        lambda x: x / x.shape[1] ** 0.5,
        lambda x: x * math.sqrt(x.shape[1]),
        lambda x: x + x.shape[0] / 3,
    ]
    agree(functions, (floats(3, 4),), (floats(1, 1),), (floats(7, 2),))


WRAPPED = [
    lambda i: i + 200,
    lambda i: 300 - i,
    lambda i: i * -129,
    lambda i: i.clamp(-100, 100),
    lambda i: torch.where(i > 3, i, -1),
    lambda i: i.masked_fill(i > 3, -1),
    lambda i: i == -1,
    lambda i: i < 300,
    lambda i: i & 300,
    lambda i: torch.maximum(i, torch.tensor(300)),
]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_a_number_that_the_dtype_does_not_hold_wraps_as_in_eager(agree, dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 3, 4], [44, 100, 127, 255]]).to(dtype)
    agree(WRAPPED, (values,), (values[:1, :1],))


def test_zero_times_what_is_no_number_is_none(agree) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.0, -0.0])
    functions = (
        *(lambda x: x * 0, lambda x: -0.0 * x, lambda x: torch.zeros_like(x) * x),
        *(lambda x: 0 / x, lambda x: x / 0.0, lambda x: torch.zeros_like(x) / x),
        *(lambda x: torch.div(0.0, x, rounding_mode="trunc"), lambda x: 0.0 // x, lambda x: x // 0),
        *(lambda x: torch.add(x, x, alpha=0), lambda x: torch.addcmul(x, x, x, value=0)),
        *(lambda x: x.half() * 0, lambda x: x.bfloat16() * 0, lambda x: 0 / x.double()),
    )
    agree(functions, (x,))


def test_a_number_among_bools_is_whether_it_is_not_zero(agree) -> None:
    x = torch.tensor([True, False, True])
    agree([lambda x: x.masked_fill(x, 10), lambda x: torch.full_like(x, 2), lambda x: x | 2], (x,))
