import math

import torch

X = torch.tensor(
    [[3.0, math.nan, 1.0, -math.inf, 3.5], [math.inf, 0.0, 2.0, 9.0, -1.0]], dtype=torch.float32
)


def distinct(*shape: int) -> torch.Tensor:
    """Values without ties, so that the places are certain."""
    count = math.prod(shape)
    return (torch.randperm(count) - count // 2).reshape(shape).float() / 3


def test_sorting_along_any_axis(agree) -> None:
    functions = [
        lambda x: tuple(x.sort()),
        lambda x: tuple(x.sort(0, descending=True)),
        lambda x: tuple(torch.sort(x, stable=True, dim=-2)),
        lambda x: x.argsort(dim=-1, descending=True),
        lambda x: x.double().sort(1).values,
        lambda x: x.half().sort(1).values,
        lambda x: x.nan_to_num(0, 9, -9).long().sort(1).values,
        lambda x: torch.sort(x > 0, dim=1, stable=True).indices,
        lambda x: x.msort(),
    ]
    agree(functions, (X,), (distinct(1, 1),), (distinct(7, 33),), (distinct(3, 64),))


def test_equal_elements_keep_their_order(agree) -> None:
    functions = [
        lambda i: tuple(i.sort(stable=True)),
        lambda i: torch.sort(i, dim=0, descending=True, stable=True).indices,
    ]
    agree(functions, (torch.randint(0, 4, (5, 40)),), (torch.randint(0, 2, (9, 1)),))


def test_the_first_of_a_sorted_axis(agree) -> None:
    functions = [
        lambda x: tuple(x.topk(3)),
        lambda x: tuple(x.topk(2, dim=0, largest=False)),
        lambda x: tuple(x.topk(x.shape[1] - 1)),
        lambda x: tuple(x.topk(1, -1)),
        lambda x: x.bfloat16().topk(2).values,
        lambda x: tuple(x.kthvalue(2)),
        lambda x: tuple(x.kthvalue(2, 0, keepdim=True)),
        lambda x: tuple(x.median(1)),
        lambda x: tuple(x.median(0, keepdim=True)),
        lambda x: x.median(),
        lambda x: x.nan_to_num(0, 99, -99).quantile(0.3, dim=1),
    ]
    agree(functions, (X,), (distinct(2, 4),), (distinct(7, 100),))
