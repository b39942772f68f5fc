"""Functions of each element alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from ..dtypes import DTYPES, dtype_name
from ..numbers import Numbers, as_tensor, cast, elementwise
from ..operands import number, require
from ..registry import Function, operator

_PLAIN: dict[str, Function] = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "HardSwish": F.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,  # both to the nearest even
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softsign": F.softsign,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}


def _plain(function: Function) -> Function:
    def apply(x: Any) -> torch.Tensor:
        result: torch.Tensor = function(as_tensor(x))
        return result

    return apply


for _name, _function in _PLAIN.items():
    operator(_name)(_plain(_function))


@operator("Identity")
def identity(x: Any) -> Any:
    return x


@operator("Dropout")
def dropout(
    x: Any, ratio: Any = None, training_mode: Any = None, *, outputs: int, seed: int = 0
) -> tuple[Any, ...]:
    training = training_mode is not None and number(training_mode, "training_mode")
    require(not training, "is not read in training mode", "training_mode = false")
    mask = () if outputs == 1 else (torch.ones_like(as_tensor(x), dtype=torch.bool),)
    return (x, *mask)


@operator("Neg")
def neg(x: Any) -> Any:
    return elementwise(lambda a: -a, x) if isinstance(x, Numbers) else torch.neg(x)


@operator("Abs")
def absolute(x: Any) -> Any:
    return elementwise(abs, x) if isinstance(x, Numbers) else torch.abs(x)


@operator("Sqrt")
def sqrt(x: Any) -> Any:
    numbers = isinstance(x, Numbers) and x.dtype == torch.float64
    if numbers and all(type(each) is float and each >= 0 for each in x.values):
        return elementwise(math.sqrt, x)
    return torch.sqrt(as_tensor(x))


@operator("Floor")
def floor(x: Any) -> Any:
    return _whole(x, math.floor, torch.floor)


@operator("Ceil")
def ceil(x: Any) -> Any:
    return _whole(x, math.ceil, torch.ceil)


def _whole(x: Any, of_number: Function, of_tensor: Function) -> Any:
    """Floor and ceil, which models use to compute sizes: whole numbers stay floats."""
    if isinstance(x, Numbers):
        return cast(elementwise(of_number, x), x.dtype)
    return of_tensor(x)


@operator("Not")
def logical_not(x: Any) -> Any:
    if isinstance(x, Numbers):
        return elementwise(lambda a: a == 0 if not isinstance(a, torch.SymBool) else ~a, x)
    return torch.logical_not(x)


@operator("Sign")
def sign(x: Any) -> torch.Tensor:
    x = as_tensor(x)
    # torch's own gives 0 for what is no number.
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


@operator("IsInf")
def is_inf(x: Any, *, detect_negative: int = 1, detect_positive: int = 1) -> torch.Tensor:
    x = as_tensor(x)
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_positive:
        return x == math.inf
    return x == -math.inf if detect_negative else torch.zeros_like(x, dtype=torch.bool)


@operator("Cast")
def to_dtype(x: Any, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    require(to in DTYPES, f"is not read to {dtype_name(to)}")
    return _cast(x, DTYPES[to])


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, Numbers) and not dtype.is_complex:
        exact = dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
        return cast(x, dtype) if exact else as_tensor(x).to(dtype)
    return as_tensor(x).to(dtype)


@operator("CastLike")
def to_dtype_of(x: Any, like: Any, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return _cast(x, like.dtype)


@operator("LeakyRelu")
def leaky_relu(x: Any, *, alpha: float = 0.01) -> torch.Tensor:
    return F.leaky_relu(as_tensor(x), alpha)


@operator("Elu")
def elu(x: Any, *, alpha: float = 1.0) -> torch.Tensor:
    return F.elu(as_tensor(x), alpha)


@operator("Celu")
def celu(x: Any, *, alpha: float = 1.0) -> torch.Tensor:
    return F.celu(as_tensor(x), alpha)


@operator("Selu")
def selu(
    x: Any, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> torch.Tensor:
    x = as_tensor(x)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@operator("HardSigmoid")
def hard_sigmoid(x: Any, *, alpha: float = 0.2, beta: float = 0.5) -> torch.Tensor:
    return torch.clamp(as_tensor(x) * alpha + beta, 0, 1)


@operator("Softplus")
def softplus(x: Any) -> torch.Tensor:
    # torch's own gives x from 20 on, which is less than float64 can tell.
    x = as_tensor(x)
    return torch.clamp(x, min=0) + torch.log1p(torch.exp(-torch.abs(x)))


@operator("ThresholdedRelu")
def thresholded_relu(x: Any, *, alpha: float = 1.0) -> torch.Tensor:
    x = as_tensor(x)
    return torch.where(x > alpha, x, torch.zeros_like(x))


@operator("Shrink")
def shrink(x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> torch.Tensor:
    x = as_tensor(x)
    none = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, none))


@operator("Gelu", since=20)
def gelu(x: Any, *, approximate: str = "none") -> torch.Tensor:
    return F.gelu(as_tensor(x), approximate=approximate)


@operator("Clip")
def clip(x: Any, least: Any = None, most: Any = None) -> Any:
    if isinstance(x, Numbers) and all(
        each is None or isinstance(each, Numbers) for each in (least, most)
    ):
        x = x if least is None else elementwise(torch.sym_max, x, least)
        return x if most is None else elementwise(torch.sym_min, x, most)
    x = as_tensor(x)
    bounds = [None if each is None else _bound(each) for each in (least, most)]
    if bounds == [None, None]:
        return x
    if any(isinstance(each, torch.Tensor) for each in bounds):
        bounds = [
            each if each is None or isinstance(each, torch.Tensor) else x.new_full((), each)
            for each in bounds
        ]
    return torch.clamp(x, bounds[0], bounds[1])


def _bound(value: Any) -> Any:
    return value.values[0] if isinstance(value, Numbers) else value.reshape(())
