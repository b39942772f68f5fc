"""Who else can say what a source gives: a second opinion beside the module that is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class NoAnswer(Exception):
    """The reference is not there, or does not take the source or the call; its reason."""


class Reference(Protocol):
    """Runs the source itself. ``name``: how the report calls it."""

    name: str

    def __call__(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for the tensors of a call, in order.

        Raises:
            NoAnswer: with the reason.
        """
