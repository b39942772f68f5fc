"""What eager itself leaves to the order of a sum is no difference; anything more is."""

from collections.abc import Callable

import pytest
import torch
import torch.ao.quantization.fx._decomposed

from tcexport.exporter.eager import same_numbers
from tcexport.exporter.undecided import other_answers, undecided

ops = torch.ops.quantized_decomposed
_SCALE, _STEPS = 0.05, (-128, 127, torch.int8)

Quantize = Callable[[torch.Tensor], torch.Tensor]


def quantize(x: torch.Tensor) -> torch.Tensor:
    return ops.quantize_per_tensor(x, _SCALE, 0, *_STEPS)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x / _SCALE).clamp(-128, 127).to(torch.int8)


class Layers:
    """Two products with a quantizer between them; the first one adds up in ``order``."""

    def __init__(self, way: Quantize = quantize, order: torch.Tensor | None = None) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x, self.first, self.second = (
            torch.randn(shape, generator=generator) for shape in ((64, 512), (512, 256), (256, 32))
        )
        self.first /= 512**0.5
        self.way, self.order = way, torch.arange(512) if order is None else order

    def __call__(self) -> list[torch.Tensor]:
        sums = self.x[:, self.order] @ self.first[self.order]
        codes = self.way(sums)
        return [(codes.float() * _SCALE) @ self.second, codes]


@pytest.mark.parametrize("way", [quantize, by_hand])
def test_another_order_of_the_sum_is_as_good(way: Quantize) -> None:
    eager = Layers(way)()
    answers = other_answers(Layers(way))
    for seed in range(20):
        order = torch.randperm(512, generator=torch.Generator().manual_seed(seed))
        mine = Layers(way, order)()
        if not same_numbers(mine[0], eager[0])[0]:
            break
    else:
        raise AssertionError("no order of the sum changed a code")
    for index in range(2):
        assert undecided(mine[index], eager[index], [each[index] for each in answers])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: torch.floor(x / _SCALE).clamp(-128, 127).to(torch.int8),
        lambda x: quantize(x * 1.01),
        lambda x: ops.quantize_per_tensor(x, _SCALE, 1, *_STEPS),
        lambda x: ops.quantize_per_tensor(x, _SCALE, 0, -60, 60, torch.int8),
    ],
)
def test_another_rounding_is_not(wrong: Quantize) -> None:
    eager, answers = Layers()(), other_answers(Layers())
    mine = Layers(wrong)()
    for index in range(2):
        assert not undecided(mine[index], eager[index], [each[index] for each in answers])


def test_which_way_a_half_goes_is_decided() -> None:
    halves = torch.arange(-8, 8) / 2
    eager, answers = [halves.round()], other_answers(lambda: [halves.round()])
    away_from_zero = halves.sign() * (halves.abs() + 0.5).floor()
    assert answers and not undecided(away_from_zero, eager[0], [each[0] for each in answers])


def test_a_model_that_rounds_nothing_has_one_answer() -> None:
    answers = other_answers(Layers(lambda x: x))
    assert answers == []
    assert not undecided(torch.ones(3) + 1e-3, torch.ones(3), [])


def test_what_is_computed_in_halves_has_their_digits_alone() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 64).half(), torch.randn(64, 8).half()

    def call() -> list[torch.Tensor]:
        return [torch.relu(a @ b).float()]

    (want,) = call()
    others = [each[0] for each in other_answers(call)]
    near = (want.half() * (1 + 2**-10)).float()  # the next half
    assert not same_numbers(near, want)[0] and undecided(near, want, others)
    assert not undecided(want * 1.02, want, others)
    weight, x = torch.nn.Parameter(b), a.float()
    assert not other_answers(lambda: [torch.relu(x @ weight.float())])


def test_halves_that_nobody_computed_have_no_other_digits() -> None:
    given, ids = torch.randn(16, 64).half(), torch.tensor([3, 1, 2])
    buffer, w = torch.randn(5, 64).half(), torch.randn(64, 8)

    def call() -> list[torch.Tensor]:
        rows = torch.cat([given[2:].t().contiguous().t(), buffer[ids]]).clone()
        return [rows.float() @ w, given.view(8, 128).float()]

    assert other_answers(call) == []
    assert other_answers(lambda: [(given.add(0.5)[1:]).float() @ w])
