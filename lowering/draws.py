"""Random numbers that a model draws, made of counters: a place in a sequence, and no state of a thread.

Each element of each draw has 64 bits of its own, Philox 4x32-10 of four counters and a key (Salmon et
al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011). The key is the seed; the counters are the
element, which draw of the call it is, and which call of the session. So a draw depends on nothing else:
not on threads, not on vectors, not on what is computed beside it.

``tcexport::words(generator, count, draw)`` gives these bits, ``[count]`` of int64. The generator is a
tensor of two int64, the seed and the number of the call, which counts from 1; 0 is a generator without
a seed. What torch draws is arithmetic on such words, in ``draws``: the same functions are put into a
graph and run in eager mode, so that one can be held against the other, element by element. The numbers
are not those of torch's own generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

_LIBRARY = torch.library.Library("tcexport", "FRAGMENT")
_LIBRARY.define(
    "words(Tensor? generator, SymInt count, int draw) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_LIBRARY.define("next_call(Tensor generator) -> Tensor")
_LIBRARY.define("holds(Tensor values, Tensor holds, str what) -> Tensor")

WORDS = torch.ops.tcexport.words.default
NEXT_CALL = torch.ops.tcexport.next_call.default
HOLDS = torch.ops.tcexport.holds.default

# What to type for draws of other kinds.
DRAWN = "torch.rand, randn, randint, bernoulli, multinomial, which a bundle draws"

# The state of a program that draws. No buffer has a space in its name.
GENERATOR = "random generator"

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF
MOST_DRAWS = 1 << 16  # of one call; above these bits stand those of elements beyond 2**32

Words = Callable[[Any], torch.Tensor]  # a count → that many words

aten = torch.ops.aten


def generator_of(seed: int, call: int = 1) -> torch.Tensor:
    return torch.tensor([seed, call], dtype=torch.int64)


@torch.library.impl(_LIBRARY, "words", "CompositeExplicitAutograd")
def _words(generator: torch.Tensor | None, count: int, draw: int) -> torch.Tensor:
    assert generator is not None, "a draw without a generator"
    seed, call = generator.tolist()
    element = torch.arange(count, dtype=torch.int64)
    counters = [
        element & LOW,
        (element >> 32) * MOST_DRAWS + draw,
        torch.full_like(element, call & LOW),
        torch.full_like(element, (call >> 32) & LOW),
    ]
    first, second, *_ = philox(counters, [seed & LOW, (seed >> 32) & LOW])
    return first | (second << 32)


@torch.library.register_fake("tcexport::words")
def _fake_words(generator: torch.Tensor | None, count: int, draw: int) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.int64)


@torch.library.impl(_LIBRARY, "next_call", "CompositeExplicitAutograd")
def _next_call(generator: torch.Tensor) -> torch.Tensor:
    return generator + torch.tensor([0, 1])


@torch.library.register_fake("tcexport::next_call")
def _fake_next_call(generator: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(generator)


@torch.library.impl(_LIBRARY, "holds", "CompositeExplicitAutograd")
def _holds(values: torch.Tensor, holds: torch.Tensor, what: str) -> torch.Tensor:
    if not bool(holds.all()):
        raise ValueError(f"not so: {what}")
    return values.clone()


@torch.library.register_fake("tcexport::holds")
def _fake_holds(values: torch.Tensor, holds: torch.Tensor, what: str) -> torch.Tensor:
    return torch.empty_like(values)


def philox(counters: Sequence[torch.Tensor], key: Sequence[int]) -> list[torch.Tensor]:
    """Four words of 32 bits, as int64, for each position of four such counters."""
    a, b, c, d = counters
    low, high = key
    for _ in range(ROUNDS):
        # The product of two words fills 64 bits: int64 has them all, whatever its sign says.
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (
            ((second >> 32) & LOW) ^ b ^ low,
            second & LOW,
            ((first >> 32) & LOW) ^ d ^ high,
            first & LOW,
        )
        low, high = (low + WEYL[0]) & LOW, (high + WEYL[1]) & LOW
    return [a, b, c, d]


# --- numbers of words -----------------------------------------------------------------------------

_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _bits(words: Words, shape: Sequence[Any]) -> torch.Tensor:
    return words(math.prod(shape)).reshape(tuple(shape))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _unit(words: Words, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Uniform in [0, 1), in steps as fine as torch's own."""
    digits = _DIGITS[dtype]
    kept = _bits(words, shape) & ((1 << digits) - 1)
    return (kept.to(_wide(dtype)) * 2.0**-digits).to(dtype)


def _positive(bits: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Uniform in (0, 1], whose logarithm is finite."""
    digits = 53 if wide is torch.float64 else 32
    return ((bits & ((1 << digits) - 1)) + 1).to(wide) * 2.0**-digits


def _normal(words: Words, shape: Sequence[Any], wide: torch.dtype) -> torch.Tensor:
    """Standard normal (Box and Muller, 1958)."""
    bits = _bits(words, shape)
    if wide is torch.float64:  # 53 bits twice are more than one word has
        turn = _unit(words, shape, wide)
    else:
        turn = ((bits >> 32) & 0xFFFFFF).to(wide) * 2.0**-24
    return (-2 * _positive(bits, wide).log()).sqrt() * (2 * math.pi * turn).cos()


def _exponential(words: Words, shape: Sequence[Any], wide: torch.dtype) -> torch.Tensor:
    """Of rate 1, and never 0, as torch's."""
    unit, least = _positive(_bits(words, shape), wide), torch.finfo(wide).eps / 2
    return torch.where(unit >= 1 - least, least, -unit.log())


def _below(words: Words, shape: Sequence[Any], low: Any, high: Any) -> torch.Tensor:
    return (_bits(words, shape) & ((1 << 63) - 1)) % (high - low) + low


# --- what torch draws -----------------------------------------------------------------------------


def _rand(words: Words, size: Any, *, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    return _unit(words, size, dtype) if dtype in _DIGITS else NotImplemented


def _rand_like(words: Words, x: torch.Tensor, *, dtype: Any = None, **_: Any) -> Any:
    return _rand(words, x.shape, dtype=dtype or x.dtype)


def _randn(words: Words, size: Any, *, dtype: Any = None, **_: Any) -> Any:
    dtype = dtype or torch.get_default_dtype()
    if dtype not in _DIGITS:
        return NotImplemented
    return _normal(words, size, _wide(dtype)).to(dtype)


def _randn_like(words: Words, x: torch.Tensor, *, dtype: Any = None, **_: Any) -> Any:
    return _randn(words, x.shape, dtype=dtype or x.dtype)


def _randint_low(
    words: Words, low: Any, high: Any, size: Any, *, dtype: Any = None, **_: Any
) -> Any:
    dtype = dtype or torch.int64
    if dtype not in (*_INTEGERS, *_DIGITS):
        return NotImplemented
    return _below(words, size, low, high).to(dtype)


def _randint(words: Words, high: Any, size: Any, **options: Any) -> Any:
    return _randint_low(words, 0, high, size, **options)


def _randint_like(words: Words, x: torch.Tensor, high: Any, *, dtype: Any = None, **_: Any) -> Any:
    return _randint_low(words, 0, high, x.shape, dtype=dtype or x.dtype)


def _randint_like_low(
    words: Words, x: torch.Tensor, low: Any, high: Any, *, dtype: Any = None, **_: Any
) -> Any:
    return _randint_low(words, low, high, x.shape, dtype=dtype or x.dtype)


def _randperm(words: Words, n: Any, *, dtype: Any = torch.int64, **_: Any) -> Any:
    return torch.sort(words(n), stable=True).indices.to(dtype or torch.int64)


def _uniform(words: Words, x: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    if x.dtype not in _DIGITS:
        return NotImplemented
    return (_unit(words, x.shape, x.dtype).to(_wide(x.dtype)) * (high - low) + low).to(x.dtype)


def _scaled(words: Words, x: torch.Tensor, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> Any:
    if x.dtype not in _DIGITS:
        return NotImplemented
    return (_normal(words, x.shape, _wide(x.dtype)) * std + mean).to(x.dtype)


def _normal_around(
    words: Words, mean: Any, std: Any = 1.0, size: Any = None, **options: Any
) -> Any:
    tensors = [each for each in (mean, std) if isinstance(each, torch.Tensor)]
    if any(each.dtype not in _DIGITS for each in tensors):
        return NotImplemented
    if not tensors:
        made = _randn(words, size, **options)
        return made if made is NotImplemented else made * std + mean
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    if isinstance(std, torch.Tensor):
        std = HOLDS(std, std >= 0, "no standard deviation is negative")
    return (_normal(words, shape, _wide(tensors[0].dtype)) * std + mean).to(tensors[0].dtype)


def _bernoulli(words: Words, shape: Any, p: Any) -> torch.Tensor:
    if isinstance(p, torch.Tensor):
        p = p.to(torch.float64)
        p = HOLDS(p, (p >= 0) & (p <= 1), "every probability is between 0 and 1")
    return _unit(words, shape, torch.float64) < p


def _bernoulli_own(words: Words, x: torch.Tensor, **_: Any) -> Any:
    return _bernoulli(words, x.shape, x).to(x.dtype)


def _bernoulli_of(words: Words, x: torch.Tensor, p: Any = 0.5, **_: Any) -> Any:
    return _bernoulli(words, x.shape, p).to(x.dtype)


def _exponential_of(words: Words, x: torch.Tensor, lambd: float = 1.0, **_: Any) -> Any:
    if x.dtype not in _DIGITS:
        return NotImplemented
    return (_exponential(words, x.shape, _wide(x.dtype)) / lambd).to(x.dtype)


def _log_normal(
    words: Words, x: torch.Tensor, mean: float = 1.0, std: float = 2.0, **_: Any
) -> Any:
    if x.dtype not in _DIGITS:
        return NotImplemented
    return (_normal(words, x.shape, _wide(x.dtype)) * std + mean).exp().to(x.dtype)


def _cauchy(
    words: Words, x: torch.Tensor, median: float = 0.0, sigma: float = 1.0, **_: Any
) -> Any:
    if x.dtype not in _DIGITS:
        return NotImplemented
    unit = _unit(words, x.shape, _wide(x.dtype))
    return (median + sigma * (math.pi * (unit - 0.5)).tan()).to(x.dtype)


def _geometric(words: Words, x: torch.Tensor, p: float, **_: Any) -> Any:
    if x.dtype not in (*_INTEGERS, *_DIGITS):
        return NotImplemented
    unit = _positive(_bits(words, x.shape), torch.float64)
    return (unit.log() / math.log1p(-p)).ceil().clamp(min=1).to(x.dtype)


def _random_from(words: Words, x: torch.Tensor, low: Any, high: Any, **_: Any) -> Any:
    return (
        NotImplemented if high is None else _randint_low(words, low, high, x.shape, dtype=x.dtype)
    )


def _random_to(words: Words, x: torch.Tensor, high: Any, **_: Any) -> Any:
    return _randint_low(words, 0, high, x.shape, dtype=x.dtype)


def _multinomial(
    words: Words, x: torch.Tensor, num_samples: Any, replacement: bool = False, **_: Any
) -> Any:
    if x.dtype not in _DIGITS:
        return NotImplemented
    x = HOLDS(x, (x >= 0) & (x < math.inf), "no probability is negative, infinite or NaN")
    x = HOLDS(x, x.sum(-1) > 0, "the probabilities of a row do not sum to 0")
    if num_samples == 1 or not replacement:
        # The first to come of clocks with these rates (Efraimidis and Spirakis, 2006).
        soon = x.to(_wide(x.dtype)) / _exponential(words, x.shape, _wide(x.dtype))
        return soon.argmax(-1, keepdim=True) if num_samples == 1 else soon.topk(num_samples).indices
    sums = x.to(torch.float64).cumsum(-1)
    total = sums.amax(-1, keepdim=True)
    value = _unit(words, (*x.shape[:-1], num_samples), torch.float64) * total
    # What is rounded up to the whole sum belongs to the last one that is possible.
    last = torch.searchsorted(sums, total)
    return torch.minimum(torch.searchsorted(sums, value, right=True), last)


def _dropout(words: Words, x: torch.Tensor, p: float, train: bool | None) -> Any:
    """As eager's `dropout`, which scales its mask; a trace has this op in its place."""
    if train is False or p == 0.0:
        return NotImplemented
    if p == 1.0:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = _bernoulli(words, x.shape, 1 - p)
    return x * (mask.to(x.dtype) / (1 - p)), mask


_DRAWS: Mapping[Any, Callable[..., Any]] = {
    aten.rand.default: _rand,
    aten.rand_like.default: _rand_like,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn_like,
    aten.randint.default: _randint,
    aten.randint.low: _randint_low,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like_low,
    aten.randperm.default: _randperm,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _scaled,
    aten.normal.Tensor_float: _normal_around,
    aten.normal.float_Tensor: _normal_around,
    aten.normal.Tensor_Tensor: _normal_around,
    aten.normal.float_float: _normal_around,
    aten.bernoulli.default: _bernoulli_own,
    aten.bernoulli.p: _bernoulli_of,
    aten.bernoulli.Tensor: _bernoulli_of,
    aten.exponential.default: _exponential_of,
    aten.log_normal.default: _log_normal,
    aten.cauchy.default: _cauchy,
    aten.geometric.default: _geometric,
    getattr(aten.random, "from"): _random_from,
    aten.random.to: _random_to,
    aten.multinomial.default: _multinomial,
    aten.native_dropout.default: _dropout,
}

# A trace is functional, eager mode is not.
IN_PLACE: Mapping[Any, Any] = {
    aten.uniform_.default: aten.uniform.default,
    aten.normal_.default: aten.normal_functional.default,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.exponential_.default: aten.exponential.default,
    aten.log_normal_.default: aten.log_normal.default,
    aten.cauchy_.default: aten.cauchy.default,
    aten.geometric_.default: aten.geometric.default,
    getattr(aten.random_, "from"): getattr(aten.random, "from"),
    aten.random_.to: aten.random.to,
}


def draws(words: Words) -> dict[Any, Callable[..., Any]]:
    """What takes the place of torch's draws: functions of an op's own arguments, which give
    NotImplemented for dtypes that are not drawn here, and for generators of the user's own."""

    def without_generator(draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("generator", None) is not None:
            return NotImplemented
        return draw(words, *args, **kwargs)

    return {op: partial(without_generator, draw) for op, draw in _DRAWS.items()}
