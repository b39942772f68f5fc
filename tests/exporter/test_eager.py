"""What counts as the same numbers: every value of large results, too."""

from __future__ import annotations

import math

import pytest
import torch

from tcexport.exporter.eager import same_numbers

SIZE = 100_000  # more than are compared at once


def _one_changed(value: float, place: int = -1) -> tuple[bool, float]:
    want = torch.linspace(1, 2, SIZE).reshape(100, -1)
    got = want.clone()
    got.view(-1)[place] = value
    return same_numbers(got, want)


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_one_value_of_many_differs(place: int) -> None:
    same, error = _one_changed(7.0, place)
    assert not same and error == pytest.approx(7 - (1 + place / (SIZE - 1)), abs=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_no_number_differs_by_infinity(value: float) -> None:
    assert _one_changed(value) == (False, math.inf)
    want = torch.zeros(SIZE)
    want[-1] = value
    assert same_numbers(want.clone(), want) == (True, 0.0)
    assert not same_numbers(torch.zeros(SIZE), want)[0]
    assert not same_numbers(-want, want)[0] or math.isnan(value)


def test_small_values_are_held_against_the_root_mean_square_of_all() -> None:
    want = torch.zeros(SIZE)
    want[: SIZE // 4] = 2.0  # the root mean square is 1
    got = want.clone()
    got[-1] = 0.9e-4
    assert same_numbers(got, want)[0]
    got[-1] = 1.1e-4
    assert same_numbers(got, want) == (False, pytest.approx(1.1e-4))


def test_views_and_complex_numbers_and_integers() -> None:
    want = torch.randn(400, 300, generator=torch.Generator().manual_seed(0))
    assert same_numbers(want.t(), want.t().contiguous()) == (True, 0.0)
    assert not same_numbers(want.t(), want.t().contiguous() + 1)[0]
    whole = torch.complex(want, want)
    assert same_numbers(whole + 1j, whole) == (False, pytest.approx(1.0))
    assert same_numbers(whole, whole) == (True, 0.0)
    counts = torch.arange(SIZE)
    assert same_numbers(counts, counts) == (True, 0.0)
    other = counts.clone()
    other[:10] += 1
    assert same_numbers(other, counts) == (False, pytest.approx(10 / SIZE))
    assert same_numbers(counts[:0], counts[:0]) == (True, 0.0)
    assert same_numbers(want, want[None]) == (False, math.inf)


def test_numbers_whose_squares_overflow_are_compared_with_each_other():
    want = torch.full((4,), 1e200, dtype=torch.float64)
    assert same_numbers(want.clone(), want) == (True, 0.0)
    assert not same_numbers(2 * want, want)[0]
