"""How far eager's own answers hang on the order of sums, where a model rounds to integers.

A quantizer takes a float that lies in the middle of two of its steps, but for the last digits, to the
one or to the other, as the order of the terms in the sum before decides: eager's own order changes with
the number of threads and the CPU. What comes of it is then a step apart, which is a thousand times what
else is taken for equal. So where such an answer differs from eager's, eager runs again, with all that
it rounds moved by a few of its last digits, and shows how far apart its own answers are. So it does
where halves are widened that the model computed: one that computes in float16 and gives float32 has
their digits alone. Inputs, weights and what only moves their elements have no other digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .eager import TOLERANCE

_MOVED = 1e-4  # of the root mean square: ten times what sums in float32 of some thousand terms lose
_RUNS = 8  # so that few flips show, too
_ROUND = (torch.ops.aten.round.default, torch.ops.aten.round_.default)
_NAMESPACES = ("quantized_decomposed", "torchao")
_QUANTIZE = ("quantize_", "choose_qparams", "_choose_qparams")

aten = torch.ops.aten
_MOVES = {  # elements to another place or dtype, none of which is computed
    *(aten.clone, aten._to_copy, aten.copy_, aten.detach, aten.lift_fresh_copy, aten.repeat),
    *(aten.index, aten.index_select, aten.embedding, aten.gather, aten.take, aten.masked_fill),
    *(aten.cat, aten.stack, aten.where, aten.flip, aten.roll, aten.constant_pad_nd),
}


class _Moving(TorchDispatchMode):
    """While active, whatever is rounded to integers is moved first, by ``_MOVED``: some of it flips."""

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self.rounded = False
        self._computed: set[StorageWeakRef] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # the subclass takes itself apart, under this mode again
        if _rounds(func) and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self.rounded = True
            args = (self._moved(args[0], in_place=func is _ROUND[1]), *args[1:])
        result = func(*args, **(kwargs or {}))
        operands = list(filter(_is_float, pytree.tree_leaves((args, kwargs))))
        self._follow(func, operands, list(filter(_is_float, pytree.tree_leaves(result))))
        if func is aten._to_copy.default and self._widened(args[0], result):
            self.rounded = True
            noise = torch.randn(result.shape, generator=self._generator).to(result.dtype)
            result = result * (1 + noise * torch.finfo(args[0].dtype).eps)
        return result

    def _moved(self, x: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        if x.numel() == 0:
            return x
        size = x.float().square().mean().sqrt() * _MOVED
        noise = torch.randn(x.shape, generator=self._generator) * size
        # What lies in the very middle has no lost digits: which way that goes is for `round` to say.
        noise = torch.where((2 * x).remainder(2) == 1, 0.0, noise)
        return x.add_(noise.to(x.dtype)) if in_place else x + noise.to(x.dtype)

    def _follow(
        self, func: Any, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Note by its memory what was computed; a view is in the memory of what it is a view of."""
        before = {StorageWeakRef(each.untyped_storage()) for each in operands}
        made = {StorageWeakRef(each.untyped_storage()) for each in results}
        if not getattr(getattr(func, "_schema", None), "is_mutable", True):
            made -= before
        moves = getattr(func, "overloadpacket", None) in _MOVES
        if operands and (not moves or before & self._computed):
            self._computed |= made

    def _widened(self, source: torch.Tensor, result: torch.Tensor) -> bool:
        """Whether a half was widened that the model computed."""
        if not (_is_float(source) and _is_float(result)):
            return False
        narrow = source.dtype.itemsize < min(4, result.dtype.itemsize)
        return narrow and StorageWeakRef(source.untyped_storage()) in self._computed


def _is_float(value: Any) -> bool:
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return strided and value.is_floating_point()


def _rounds(func: Any) -> bool:
    if func in _ROUND:
        return True
    namespace, _, name = str(func.name()).partition("::")
    return namespace in _NAMESPACES and name.startswith(_QUANTIZE)


def other_answers(call: Callable[[], list[Any]]) -> list[list[Any]]:
    """What a call of the model gives with what it rounds moved, several times; none where it rounds
    nothing."""
    answers: list[list[Any]] = []
    for seed in range(_RUNS):
        moving = _Moving(seed)
        with moving:
            answers.append(call())
        if not moving.rounded:
            return []
    return answers


def undecided(got: torch.Tensor, want: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether a result is no farther from eager's than eager's others are, by its largest difference
    and by the mean of the squares; of integers (codes), too.

    Args:
        others: what `other_answers` gave in its place.
    """
    alike = all(each.shape == want.shape and each.dtype == want.dtype for each in (got, *others))
    if not others or not alike or want.is_complex() or want.dtype is torch.bool:
        return False
    wide = [each.to(torch.float64) for each in (got, want, *others)]
    if not all(bool(torch.isfinite(each).all()) for each in wide):
        return False
    mine, eager, *moved = wide
    tolerance = TOLERANCE.get(want.dtype, 0.0)
    base = tolerance * float(eager.square().mean().sqrt())

    def apart(values: torch.Tensor) -> tuple[float, float]:
        difference = (values - eager).abs()
        return float(difference.max()), float(difference.square().mean().sqrt())

    largest, mean = apart(mine)
    of_others = [apart(each) for each in moved]
    return largest <= base + 2 * max(each[0] for each in of_others) and (
        mean <= base + 2 * max(each[1] for each in of_others)
    )
