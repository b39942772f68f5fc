"""Checks that a graph carries: ops of our own for what can only be seen while the code runs.

``tcexport::check_index(indices, size, wraps, number)`` gives back the indices as they are, and fails
the call where one lies outside of ``0..size-1`` (``-size..size-1`` where negative ones wrap).
``tcexport::require(values, holds, number)`` gives back the values as they are, and fails the call
where one of the bools in ``holds`` is false. ``number`` is the check's place in the contract, which
says what failed and where it comes from; a check that a decomposition puts in has none yet.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("tcexport", "DEF")
_LIBRARY.define("check_index(Tensor indices, SymInt size, bool wraps, int number) -> Tensor")
_LIBRARY.define("require(Tensor values, Tensor holds, int number) -> Tensor")

UNNUMBERED = -1


@torch.library.impl(_LIBRARY, "check_index", "CompositeExplicitAutograd")
def _check_index(indices: torch.Tensor, size: int, wraps: bool, number: int) -> torch.Tensor:
    lowest = -size if wraps else 0
    if indices.numel() and (int(indices.min()) < lowest or int(indices.max()) >= size):
        raise IndexError(f"tcexport check {number}")
    return indices.clone()


@torch.library.register_fake("tcexport::check_index")
def _fake(indices: torch.Tensor, size: int, wraps: bool, number: int) -> torch.Tensor:
    return torch.empty_like(indices)


@torch.library.impl(_LIBRARY, "require", "CompositeExplicitAutograd")
def _require(values: torch.Tensor, holds: torch.Tensor, number: int) -> torch.Tensor:
    if not bool(holds.all()):
        raise ValueError(f"tcexport check {number}")
    return values.clone()


@torch.library.register_fake("tcexport::require")
def _fake_values(values: torch.Tensor, holds: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(values)


def free_number(graph: torch.fx.Graph) -> int:
    """The first number that no check of a graph has."""
    numbers = [node.args[-1] for node in graph.nodes if node.target in (CHECK_INDEX, REQUIRE)]
    return 1 + max((number for number in numbers if isinstance(number, int)), default=UNNUMBERED)


CHECK_INDEX = torch.ops.tcexport.check_index.default
REQUIRE = torch.ops.tcexport.require.default

# What a model asserts of values.
ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
