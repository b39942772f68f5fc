"""`torch.einsum` as products of matrices, whatever the sizes of its axes are.

Torch's own code asks of each axis whether its size is 1, to leave it out, and lets `reshape` find out
whether a view will do: both leave guards like ``seq != 1``, though the same products serve that size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

# A letter, or the place of an axis that "..." stands for, counted from the last one: -1, -2, …
Label: TypeAlias = "str | int"
Labelled: TypeAlias = "tuple[torch.Tensor, list[Label]]"


def einsum(
    equation: str, tensors: Sequence[torch.Tensor], *, path: Sequence[int] | None = None
) -> torch.Tensor:
    """The sum of products that ``equation`` says, in pairs as eager takes them.

    Args:
        path: the places of the two operands of each product; its result is put behind the rest.
    """
    *sides, output = _parse(equation, [x.dim() for x in tensors])
    operands = [_diagonals(x, labels) for x, labels in zip(tensors, sides, strict=True)]
    operands = [_without_ones(each, operands) for each in operands]
    steps = [0, 1] * (len(operands) - 1) if path is None else list(path)
    # Without a path eager goes from left to right, and puts each result in front.
    while len(operands) > 1:
        first, second, *steps = steps
        pair = (operands[first], operands[second])
        operands = [each for at, each in enumerate(operands) if at not in (first, second)]
        needed = {*output, *(label for _, labels in operands for label in labels)}
        operands.insert(0 if path is None else len(operands), _product(*pair, needed))
    x, labels = _sum_others(operands[0], output)
    return x.permute([labels.index(label) for label in output])


def _parse(equation: str, ranks: Sequence[int]) -> list[list[Label]]:
    """The labels of each operand, and of the result at the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    wide = [
        rank - len(text.replace("...", "")) if "..." in text else 0
        for text, rank in zip(texts, ranks, strict=True)
    ]
    found = [_labels(text, count) for text, count in zip(texts, wide, strict=True)]
    if not arrow:
        once = sorted(letter for letter in set(left) - set(".,") if left.count(letter) == 1)
        right = "..." + "".join(once)
    return [*found, _labels(right, max(wide))]


def _labels(text: str, count: int) -> list[Label]:
    before, dots, after = text.partition("...")
    return [*before, *(range(-count, 0) if dots else ()), *after]


def _diagonals(x: torch.Tensor, labels: list[Label]) -> Labelled:
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = x.diagonal(0, first, second)
            rest = [each for at, each in enumerate(labels) if at not in (first, second)]
            labels = [*rest, label]
    return x, labels


def _without_ones(operand: Labelled, operands: Sequence[Labelled]) -> Labelled:
    """Without the axes of size 1 that are broadcast along those of other operands."""
    x, labels = operand
    broadcast = [
        at
        for at, label in enumerate(labels)
        if _is_one(x.shape[at])
        and not all(
            _is_one(y.shape[others.index(label)]) for y, others in operands if label in others
        )
    ]
    kept = [label for at, label in enumerate(labels) if at not in broadcast]
    return (x.squeeze(broadcast) if broadcast else x), kept


def _is_one(size: int | torch.SymInt) -> bool:
    return statically_known_true(size == 1)


def _sum_others(operand: Labelled, needed: Collection[Label]) -> Labelled:
    x, labels = operand
    axes = [at for at, label in enumerate(labels) if label not in needed]
    if not axes:
        return operand
    return x.sum(axes), [label for label in labels if label in needed]


def _product(one: Labelled, two: Labelled, needed: Collection[Label]) -> Labelled:
    """Summed over what both have and nobody needs."""
    x, left = _sum_others(one, {*needed, *two[1]})
    y, right = _sum_others(two, {*needed, *one[1]})
    batch = [label for label in left if label in right and label in needed]
    summed = [label for label in left if label in right and label not in needed]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]
    for label in (*batch, *summed):
        torch._check(x.shape[left.index(label)] == y.shape[right.index(label)])
    if not summed:
        order = [*batch, *rows, *columns]
        return _spread(x, left, order) * _spread(y, right, order), order
    sizes = [x.shape[left.index(label)] for label in (*batch, *rows)]
    sizes += [y.shape[right.index(label)] for label in columns]
    one_matrix = _matrices(x, left, batch, rows, summed)
    other_matrix = _matrices(y, right, batch, summed, columns)
    product = torch.matmul(one_matrix, other_matrix)
    if len(rows) != 1 or len(columns) != 1:
        product = product.reshape(sizes)
    return product, [*batch, *rows, *columns]


def _spread(x: torch.Tensor, labels: list[Label], order: Sequence[Label]) -> torch.Tensor:
    """With an axis for each of ``order``: those that it has not are of size 1."""
    x = x.permute([labels.index(label) for label in order if label in labels])
    for at, label in enumerate(order):
        if label not in labels:
            x = x.unsqueeze(at)
    return x


def _matrices(x: torch.Tensor, labels: list[Label], *groups: Sequence[Label]) -> torch.Tensor:
    """One matrix for each choice of the first group; each of the other two becomes one axis."""
    batch, *pair = groups
    x = x.permute([labels.index(label) for group in groups for label in group])
    if all(len(group) == 1 for group in pair):
        return x
    sizes = x.shape
    at = len(batch)
    merged = []
    for group in pair:
        merged.append(math.prod(sizes[at : at + len(group)]))
        at += len(group)
    # A copy first: `reshape` would look at strides to find out whether a view will do.
    return x.clone(memory_format=torch.contiguous_format).view(*sizes[: len(batch)], *merged)
