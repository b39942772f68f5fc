import math

import pytest
import torch


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


REDUCTIONS = [
    torch.sum,
    torch.mean,
    torch.amax,
    torch.max,
    torch.min,
    lambda x: x.sum(0),
    lambda x: x.sum(-1, keepdim=True),
    lambda x: x.sum((0, 2)),
    lambda x: x.mean((1, 2), keepdim=True),
    lambda x: x.mean(-1),
    lambda x: x.var(-1, correction=0),
    lambda x: x.std((1, 2)),
    lambda x: torch.var_mean(x, 2),
    lambda x: x.amax((0, 1)),
    lambda x: x.amin(2, keepdim=True),
    lambda x: tuple(x.max(1)),
    lambda x: tuple(x.min(2, keepdim=True)),
    lambda x: x.argmax(),
    lambda x: x.argmax(1),
    lambda x: x.argmin(-1, keepdim=True),
    lambda x: x.prod(2),
    lambda x: x.norm(dim=-1),
    lambda x: x.norm(p=1, dim=1),
    lambda x: x.norm(p=3, dim=(0, 1)),
    lambda x: x.norm(p=float("inf"), dim=2),
    lambda x: x.norm(p=0, dim=1, keepdim=True),
    lambda x: torch.linalg.vector_norm(x, -float("inf"), dim=-1),
    lambda x: torch.cdist(x, x),
    lambda x: torch.cdist(x, x[:, :1], p=1.0),
    lambda x: x.std(),
    lambda x: x.var(unbiased=False),
    lambda x: torch.std_mean(x, 1),
    lambda x: torch.einsum("bij,bkj->bik", x, x),
    lambda x: x.cumprod(1),
    lambda x: tuple(x.cummax(2)),
    lambda x: tuple(x.cummin(0)),
    lambda x: x.logcumsumexp(-1),
    lambda x: x.logsumexp((0, 2)),
    lambda x: x.diff(dim=-1),
    lambda x: tuple(x.aminmax(dim=1)),
    lambda x: x.nansum(0),
    lambda x: x.count_nonzero(1),
    lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5])),
    lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5]), x, right=True),
    lambda x: torch.searchsorted(x.sort(-1).values, x * 0.5, side="left", out_int32=True),
    lambda x: x.repeat_interleave(2, 1),
    lambda x: x.diagonal(1, 0, 2),
    lambda x: (x > 0).any(1),
    lambda x: (x > -1).all(),
    lambda x: (x > 0).sum(),
    lambda x: (x > 0).sum(-1, dtype=torch.int32),
    lambda x: (x * 3).int().sum(0),
    lambda x: (x * 3).long().amax(0),
    lambda x: (x * 3).int().argmax(1),
    lambda x: x.sum(1, dtype=torch.float64),
    lambda x: x.logsumexp(-1),
    lambda x: x.cumsum(1),
    lambda x: x.cumsum(-1),
    lambda x: (x > 0).cumsum(0),
    lambda x: (x * 3).int().cumsum(1),
    lambda x: x.softmax(-1),
    lambda x: x.softmax(0),
    lambda x: x.log_softmax(1),
    lambda x: (x * 3).int().softmax(-1, dtype=torch.float32),
    lambda x: torch.cosine_similarity(x, x.flip(1), dim=-1),
    lambda x: torch.nn.functional.normalize(x, dim=1),
]


def test_reductions(agree) -> None:
    agree(REDUCTIONS, (floats(3, 5, 7),), (floats(2, 2, 2),), (floats(4, 1, 40),))


CHAINED = [
    *(torch.round, torch.floor, torch.ceil, torch.trunc, torch.frac, torch.abs, torch.sign),
    *(torch.exp, torch.exp2, torch.expm1, torch.tanh, torch.sigmoid, torch.erf, torch.erfc),
    *(torch.sin, torch.cos, torch.tan, torch.atan, torch.sinh, torch.asinh, torch.rsqrt),
    *(torch.log, torch.log1p, torch.log2, torch.sqrt, torch.square, torch.reciprocal),
    *(torch.isnan, torch.isinf, torch.signbit, torch.logical_not, torch.nan_to_num),
    *(torch.nn.functional.gelu, torch.nn.functional.silu, torch.nn.functional.softplus),
    lambda x: torch.round(x, decimals=1),
    lambda x: torch.fmod(x, 0.7),
    lambda x: torch.remainder(x, 0.7),
    lambda x: torch.atan2(x, x + 1),
    lambda x: x.pow(2.5),
    lambda x: torch.bitwise_and(x.to(torch.int32), 3),
    lambda x: x.to(torch.int8),
    lambda x: x.half(),
    lambda x: x.bfloat16(),
    lambda x: x.double(),
]


def test_functions_before_a_sum(agree) -> None:
    """They stay in the vector loop of the sum, or leave all of it as it is."""

    def chain(f):
        def steps(x):
            inner = f(x.abs() + 0.5).float().clamp(-2, 2)
            return (f(inner + 0.25).float().clamp(0, 2) - inner).sum((1, 2))

        return steps

    agree(
        [chain(f) for f in CHAINED],
        (floats(3, 5, 70),),
        (floats(2, 2, 2),),
        (floats(4, 1, 33),),
    )


def test_ties_take_the_first_and_nan_wins(agree) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [math.nan, 1.0, math.nan], [-math.inf] * 3])
    agree(
        [
            lambda x: x.argmax(1),
            lambda x: x.argmin(1),
            lambda x: tuple(x.max(1)),
            lambda x: x.amin(0),
            lambda x: x.softmax(1),
        ],
        (x,),
        (x.T.contiguous(),),
    )


def test_long_sums_of_rows_keep_their_digits(agree) -> None:
    rows = torch.full((100_000, 3), 0.1) + torch.rand(100_000, 3) * 1e-3
    sums = [lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x[None].sum((0, 1))]
    compiled = agree(sums, (rows[:5],), (rows[:300],))
    exact = rows.double().sum(0)
    for result, expected in zip(compiled((rows,)), (exact, exact / len(rows), exact), strict=True):
        torch.testing.assert_close(result, expected.float(), rtol=1e-6, atol=0)


def test_extremes_of_a_single_number(agree) -> None:
    functions = [
        lambda x: x.sum().argmax(),
        lambda x: x.sum().argmin(0),
        lambda x: tuple(x.sum().max(0)),
    ]
    agree(functions, (torch.randn(3),), (torch.randn(1),))


def test_a_fraction_is_searched_for_among_integers(agree) -> None:
    functions = [
        lambda x: torch.searchsorted(x, 2.5),
        lambda x: torch.searchsorted(x, 2),
        lambda x: torch.searchsorted(x, 1.5, right=True),
        lambda x: x.new_zeros(0, 4).roll(1, 0),
    ]
    agree(functions, (torch.arange(6),), (torch.arange(1),), (torch.tensor([2, 2, 3]),))


def test_extremes_of_bools_are_any_and_all(agree) -> None:
    def extremes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        most, least = x.max(-1), x.min(0)
        return (
            x.amax(-1), x.amin(), x.max(), *most, *least, x.clamp_min(y), x.clamp_max(y),
            torch.maximum(x, y), torch.minimum(x, y), x.fmax(y), x.fmin(y),
            torch.add(x, y, alpha=False), torch.add(x, y),
        )  # fmt: skip

    torch.manual_seed(0)
    calls = [tuple(torch.rand(n, m) > 0.5 for _ in range(2)) for n, m in ((2, 5), (1, 1), (4, 3))]
    agree([extremes], *calls)


def test_tensors_without_elements_keep_their_shapes(agree) -> None:
    """Relax takes a 0 in the shape of a view for "as it was"."""
    functions = [
        lambda x, y: torch.addmm(x[0, :3], y, y.t()[:, :3], beta=0.5, alpha=2),
        lambda x, y: y.reshape(3, 5, 0) + 1,
        lambda x, y: torch.searchsorted(y * 2, y + 1),
    ]
    agree(
        functions,
        (torch.randn(2, 4), torch.zeros(3, 0)),
        dynamic=(({0: torch.export.Dim.AUTO}, {}),),
    )


@pytest.mark.parametrize("rows", [0, 1])
def test_what_is_divided_by_no_elements_is_no_number(agree, rows: int) -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            rest = (x.mean(0), x.var((0, 1)), x.std(0), x[:, :1].var(1), x.var(1, correction=3))
            return [*torch.var_mean(x), *rest]

    agree(Fixed(), (torch.randn(rows, 3),), dynamic={"x": {}})


def test_a_search_passes_by_what_is_no_number(agree) -> None:
    nan = float("nan")
    functions = [
        lambda x, row: torch.bucketize(x, row),
        lambda x, row: torch.bucketize(x, row, right=True),
        lambda x, row: torch.searchsorted(row.expand(x.shape[0], -1).contiguous(), x),
        lambda x, row: torch.bucketize(x.half(), row.half()),
        lambda x, row: torch.bucketize(x.bfloat16(), row.bfloat16(), right=True),
    ]
    values = torch.tensor([[nan, -1.0, 0.0], [0.5, 2.0, float("inf")]])
    rows = [[-1.0, 0.0, 0.5, nan], [nan], [nan, 0.0], [3.0, nan, 1.0, nan, 0.0], [nan, nan]]
    agree(functions, *((values, torch.tensor(row)) for row in rows))


def test_distances_to_many_rows_and_to_few(agree) -> None:
    """Eager computes them by a product where there are more than 25 rows on one side, else not."""
    codes = torch.randn(32, 6)
    functions = [
        lambda x: torch.cdist(x, codes),
        lambda x: torch.cdist(codes, x),
        lambda x: torch.cdist(x, codes[:5]),
        lambda x: torch.cdist(codes[:25] * 100, x * 100) / 100,
        lambda x: torch.cdist(x.expand(2, -1, -1), codes, compute_mode="use_mm_for_euclid_dist"),
        lambda x: torch.cdist(x, codes, compute_mode="donot_use_mm_for_euclid_dist"),
        lambda x: torch.cdist(x, codes, p=1.0),
    ]
    calls = [(torch.randn(rows, 6),) for rows in (4, 1, 60, 0)]
    agree(functions, *calls, dynamic=(({0: torch.export.Dim.AUTO},),), tolerance=1e-4)
