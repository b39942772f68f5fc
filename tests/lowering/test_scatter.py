import pytest
import torch
from torch.nn import functional as F


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def test_scatters(agree) -> None:
    functions = [
        lambda x, i, s: x.scatter(1, i[:, :1] % 3, s),
        lambda x, i, s: x.scatter(0, i[:1] % 2, 2.5),
        lambda x, i, s: x.scatter_add(1, i % 3, s),
        lambda x, i, s: x.scatter_add(-2, i % 2, s),
        lambda x, i, s: x.scatter_reduce(1, i % 3, s, "amax"),
        lambda x, i, s: x.scatter_reduce(1, i % 3, s, "amin", include_self=False),
        lambda x, i, s: x.scatter_reduce(0, i % 2, s, "mean"),
        lambda x, i, s: x.scatter_reduce(1, i % 3, s, "mean", include_self=False),
        lambda x, i, s: x.scatter_reduce(1, i % 3, s, "prod", include_self=False),
        lambda x, i, s: x.half().scatter_add(1, i % 3, s.half()),
        lambda x, i, s: (x * 5).long().scatter_add(1, i % 3, i),
        lambda x, i, s: x.index_add(1, i[0] % 3, s, alpha=2),
        lambda x, i, s: x.index_copy(0, i[:1, 0] % 2, s[:1]),
        lambda x, i, s: x.index_fill(1, i[0, :1] % 3, 0.5),
        lambda x, i, s: x.index_put((i[:, 0] % 2, i[:, 1] % 3), s[:, 0], accumulate=True),
        lambda x, i, s: x.index_put((i[:1, 0] % 2,), s[:1]),
        lambda x, i, s: x.index_put((x > 0,), torch.tensor(7.0)),
        lambda x, i, s: F.one_hot(i % 5, 5),
        lambda x, i, s: torch.slice_scatter(x, s[:, 1:], 1, 1),
        lambda x, i, s: torch.select_scatter(x, s[0], 0, -1),
    ]
    shapes = [(2, 4), (2, 3), (5, 9)]
    calls = [(torch.randn(*s), ids(100, *s), torch.randn(*s)) for s in shapes]
    agree(functions, *calls, tolerance=1e-4)


def test_assignments_to_parts(agree) -> None:
    def zero_first(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 0] = 0
        x[..., -1] += 1
        x[1:] = x[:1] * 2
        x[x > 2] = 2.0
        return x

    agree([zero_first], (torch.randn(3, 4),), (torch.randn(2, 2),), (torch.randn(5, 7),))


def test_results_whose_size_hangs_on_the_data(agree) -> None:
    functions = [
        lambda x, m: x[m],
        lambda x, m: x[m[:, 0]],
        lambda x, m: x.masked_select(m) * 2 + 1,
        lambda x, m: m.nonzero(),
        lambda x, m: x.nonzero(),
        lambda x, m: torch.argwhere(m),
        lambda x, m: x[m].sum(),
        lambda x, m: x[:, m[0]],
        lambda x, m: x[..., None].repeat(1, 1, 3)[:, m[0]],
        lambda x, m: x.masked_scatter(m, x.flatten() * 2),
        lambda x, m: x.index_put((m,), x[m] + 1),
        lambda x, m: x.index_put((m[:, 0],), x[m[:, 0]] * 3),
        lambda x, m: x.bfloat16()[m],
        lambda x, m: x.repeat_interleave(m[:, 0].long() + 1, 0),
        lambda x, m: x.nonzero(as_tuple=True)[1],
    ]
    calls = [
        (torch.randn(*shape), torch.rand(*shape) > keep)
        for shape, keep in (((3, 5), 0.5), ((1, 1), 0), ((4, 7), 1), ((6, 2), 0.3))
    ]
    agree(functions, *calls)


def test_a_mask_that_picks_more_than_there_are_values_fails(agree) -> None:
    x, mask, source = torch.zeros(4), torch.tensor([True, False, True, False]), torch.ones(2)
    compiled = agree([lambda x, m, s: x.masked_scatter(m, s)], (x, mask, source))
    with pytest.raises(Exception, match="picks no more than there are values"):
        compiled((x, torch.ones(4, dtype=torch.bool), source))


def test_a_mask_that_picks_another_number_than_there_are_values_fails(agree) -> None:
    def put(x: torch.Tensor, m: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[m] = s
        return x

    x, mask, source = torch.zeros(4), torch.tensor([True, False, True, False]), torch.ones(2)
    compiled = agree([put], (x, mask, source))
    for wrong in (torch.ones(4, dtype=torch.bool), torch.tensor([True, False, False, False])):
        with pytest.raises((RuntimeError, IndexError)):
            put(x, wrong, source)
        with pytest.raises(Exception, match="picks as many as there are values"):
            compiled((x, wrong, source))


def test_bools_are_added_as_eager_adds_them(agree) -> None:
    functions = [
        lambda x, mask, i: x.index_put((mask,), torch.tensor(True), accumulate=True),
        lambda x, mask, i: x.index_put((i,), torch.tensor(True), accumulate=True),
        lambda x, mask, i: x.scatter_add(0, i, x),
    ]
    calls = [
        (torch.rand(n) > 0.5, torch.rand(n) > 0.5, torch.randint(0, n, (n,))) for n in (5, 1, 9)
    ]
    agree(functions, *calls)
