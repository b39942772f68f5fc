"""What times of two codes tell that were taken in turn: which is faster, if noise lets one say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOISE = 0.97  # of the other's time: what is nearer to it is not told from noise


@dataclass(frozen=True)
class Ratio:
    """The time of one code over that of another: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        """Whether three quarters of the rounds were faster, by more than noise."""
        return self.high < NOISE

    @property
    def slower(self) -> bool:
        """The same the other way round."""
        return self.low > 1 / NOISE


def ratio_of(times: Sequence[tuple[float, float]]) -> Ratio:
    """How the second of two codes stands to the first.

    Args:
        times: seconds of a call of each, in each round.
    """
    ratios = sorted(other / one for one, other in times)
    quarter = len(ratios) // 4
    return Ratio(ratios[len(ratios) // 2], ratios[quarter], ratios[-1 - quarter])
