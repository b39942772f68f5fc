import pytest
import torch
from torch import nn
from torch.nn import functional as F


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


class Lookups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.positions = nn.Embedding(32, 6)
        self.register_buffer("bias", torch.randn(11, 11))

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = (i != 0).long()
        places = (mask.cumsum(1) * mask).clamp(0, 31)
        return (
            self.table(i) + self.positions(torch.arange(i.shape[1])),
            self.positions(places),
            self.table.weight[i],
            self.bias[i[:, :1], i],
            self.bias[i[0], 1:3],
            self.bias[:, i],
            F.embedding(i, self.bias),
            self.bias[2],
            self.bias[-i],
        )


def test_lookups(agree) -> None:
    compiled = agree(Lookups(), (ids(11, 3, 5),), (ids(11, 1, 1),), (ids(11, 4, 31),))
    # Each read at positions that are data is reported: the contract must bound all of them.
    assert len(compiled.answer.main.indexing) == 9


def test_positions_that_are_an_input_are_reported_too(agree) -> None:
    compiled = agree(nn.Embedding(7, 3), (ids(7, 2, 3),), (ids(7, 1, 1),))
    assert compiled.answer.main.indexing == ("embedding",)


def test_values_taken_along_an_axis(agree) -> None:
    functions = [
        lambda x, i: torch.take_along_dim(x, i % 2, 1),
        lambda x, i: torch.take_along_dim(x, i[:, :1] % 2, 0),
        lambda x, i: torch.take_along_dim(x, i[:1] % 2, -1),
        lambda x, i: torch.take_along_dim(x, i % 4),
        lambda x, i: torch.take_along_dim(x, x.argsort(1, descending=True), 1),
    ]
    sizes = [(3, 4), (2, 2), (5, 3)]
    agree(functions, *((torch.randn(n, m), torch.randint(0, 99, (n, m))) for n, m in sizes))


def test_gathers(agree) -> None:
    functions = [
        lambda x, i: x.gather(1, i % 3),
        lambda x, i: x.gather(0, i % 2),
        lambda x, i: x.index_select(1, i[0] % 3),
        lambda x, i: x[:, i[0] % 3],
        lambda x, i: x[i[:, 0] % 2, i[:, 1] % 3],
        lambda x, i: x[i[:, 0] % 2, :, None][:, 1:],
        lambda x, i: F.one_hot(i % 4, 4),
    ]
    shapes = [(2, 4), (3, 3), (5, 9)]
    calls = [(torch.randn(*shape), ids(100, *shape)) for shape in shapes]
    agree(functions, *calls)


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(11, 6, mode=mode, padding_idx=padding)
            for mode in ("sum", "mean", "max")
            for padding in (None, 3)
        )
        self.table = nn.Parameter(torch.randn(11, 6))

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = i.reshape(-1)
        offsets = torch.arange(i.shape[0]) * i.shape[1]
        weights = flat * 0.5
        return (
            *(bag(i) for bag in self.bags),
            *(bag(flat, offsets) for bag in self.bags),
            F.embedding_bag(flat, self.table, offsets, mode="sum", per_sample_weights=weights),
        )


def test_bags(agree) -> None:
    agree(Bags(), (ids(11, 3, 5),), (ids(11, 1, 1),), (ids(11, 4, 31),))


def test_bags_that_end_beyond_the_indices_fail(agree) -> None:
    table = torch.randn(11, 6)
    flat, offsets = ids(11, 8), torch.tensor([0, 3, 5])
    functions = [lambda flat, offsets: F.embedding_bag(flat, table, offsets, mode="sum")]
    compiled = agree(functions, (flat, offsets), (flat, torch.tensor([0, 0, 8])))
    for wrong in ([0, 3, 9], [1, 3, 5]):
        with pytest.raises(Exception, match="offsets begin at 0"):
            compiled((flat, torch.tensor(wrong)))


@pytest.mark.parametrize(("offset", "axes"), [(0, (0, 1)), (1, (1, 2)), (-2, (0, -1))])
def test_what_is_written_to_a_diagonal(agree, offset: int, axes: tuple[int, int]) -> None:
    class Written(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y.diagonal(offset, *axes).mul_(2).add_(1)
            return y

    agree(Written(), (torch.randn(4, 6, 5),), (torch.randn(7, 3, 4),))
