import torch
from torch.nn import functional as F


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


SIZES = [(4, 6, 8), (1, 2, 8), (3, 5, 8)]

VIEWS = [
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.view(-1, 8),
    lambda x: x.flatten(1),
    lambda x: x.unflatten(2, (2, 4)),
    lambda x: x.reshape(x.shape[0] * x.shape[1], 2, 4).transpose(0, 1),
    lambda x: x.permute(2, 0, 1),
    lambda x: x.permute(2, 0, 1).reshape(8, -1),
    lambda x: x.transpose(-1, 0),
    lambda x: x.mT,
    lambda x: x.unsqueeze(1) + x.unsqueeze(0),
    lambda x: x.unsqueeze(-1).squeeze(-1),
    lambda x: x[:, None].expand(-1, 3, -1, -1),
    lambda x: x[:, :, :1].expand(-1, -1, 5) * 2,
    lambda x: x.movedim(0, 2),
    lambda x: x.swapaxes(0, 1)[0],
]

SLICES = [
    lambda x: x[:, -1],
    lambda x: x[-1],
    lambda x: x[0, 0],
    lambda x: x[:, :-1],
    lambda x: x[:, -2:],
    lambda x: x[..., 1::3],
    lambda x: x[:, ::2],
    lambda x: x[:, : x.shape[1] - 1],
    lambda x: x[:, x.shape[1] // 2 :],
    lambda x: x[..., -3:-1],
    lambda x: x.narrow(2, 2, 3),
    lambda x: x.select(2, -2),
    lambda x: torch.stack(x.unbind(2), 0),
    lambda x: x.split(3, dim=2),
    lambda x: x.chunk(2, dim=-1),
    lambda x: x.split([1, 2, 5], dim=-1),
    lambda x: x.tensor_split(2, dim=-1),
]

JOINS = [
    lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    lambda x: torch.cat([x, x], -1),
    lambda x: torch.cat([x[:, :1], x.long()], 1),
    lambda x: torch.stack([x, -x], 1),
    lambda x: torch.stack([x, -x], -1),
    lambda x: x.repeat(2, 1, 3),
    lambda x: x.repeat(2, 2, 1, 1),
    lambda x: x.tile(2),
    lambda x: x.repeat_interleave(2, dim=2),
    lambda x: x.flip(0, 2),
    lambda x: x.roll(2, 2),
    lambda x: x.roll((1, -1), (0, 2)),
    lambda x: F.pad(x, (1, 2)),
    lambda x: F.pad(x, (0, 0, 2, 1), value=-1.5),
    lambda x: F.pad(x, (-1, 1)),
    lambda x: torch.cat([x.new_zeros(x.shape[0], 1, 8), x], 1),
]


def test_views(agree) -> None:
    agree(VIEWS, *((floats(*size),) for size in SIZES))


def test_slices_and_negative_positions(agree) -> None:
    agree(SLICES, *((floats(*size),) for size in SIZES))


def test_joins_and_pads(agree) -> None:
    agree(JOINS, *((floats(*size),) for size in SIZES))


CREATIONS = [
    lambda x: torch.arange(x.shape[0]),
    lambda x: torch.arange(1, x.shape[0] + 3, 2),
    lambda x: torch.arange(x.shape[0], dtype=torch.float32) * 0.1,
    lambda x: torch.arange(0.5, 3.0, 0.25) + x.sum(),
    lambda x: torch.zeros(x.shape[0], 2),
    lambda x: torch.ones(x.shape[1], dtype=torch.int64),
    lambda x: torch.full((x.shape[0],), x.shape[1]),
    lambda x: torch.full_like(x, 2.5),
    lambda x: torch.zeros_like(x, dtype=torch.bool),
    lambda x: x.new_ones(3),
    lambda x: torch.eye(x.shape[0]),
    lambda x: torch.triu(torch.full((x.shape[0], x.shape[0]), float("-inf")), 1),
    lambda x: torch.tril(x),
    lambda x: torch.triu(x, -1),
    lambda x: torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril(),
    lambda x: torch.linspace(0, 1, 5) + x.sum(),
    lambda x: torch.tensor([1.0, 2.0]) * x.sum(),
    lambda x: x.shape[0] * torch.ones(()),
]


def test_tensors_made_from_sizes(agree) -> None:
    agree(CREATIONS, (floats(4, 6),), (floats(1, 1),), (floats(9, 3),))


# Relax knows no types of sizes that call a function, such as the one that cuts a float off.
QUOTIENTS = [
    lambda x: x[: int(x.shape[0] / 3)] * 2,
    lambda x: x[int(x.shape[1] * 0.75) :] + 1,
    lambda x: x.new_zeros(int(x.shape[0] / 2), int(x.shape[1] * 1.5)) + x.sum(),
    lambda x: torch.arange(int(x.shape[0] / x.shape[1])) * 2,
]

SIDED = [
    lambda x: x[: x.shape[0] - x.shape[0] // 3] * 2,
    lambda x: x[: -(x.shape[0] // 3)] + 1,
    lambda x: x[x.shape[1] - x.shape[0] :, x.shape[0] - 2 : x.shape[0] - x.shape[0] % 3],
    lambda x: x.clone().index_fill_(0, torch.arange(1), 3.0)[: 12 - x.shape[0]].relu(),
]


def test_sizes_that_are_quotients_cut_off(agree) -> None:
    agree(QUOTIENTS, *((floats(*size),) for size in [(7, 4), (3, 2), (2, 9), (12, 5)]))


def test_slices_whose_ends_hang_on_sizes(agree) -> None:
    agree(SIDED, *((floats(*size),) for size in [(5, 7), (3, 3), (11, 12), (8, 8)]))


def test_numbers_meet_tensors_made_of_sizes(agree) -> None:
    functions = [
        lambda x: torch.arange(x.shape[0]) * x.shape[1],
        lambda x: torch.zeros(x.shape[0]) + x.shape[1] / 2,
        lambda x: torch.arange(x.shape[0] * 2) // x.shape[1] + 1,
    ]
    agree(functions, (torch.randn(3, 4),), (torch.randn(5, 1),))


def test_moves_beside_an_axis_of_no_elements(agree) -> None:
    class Moved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            flipped = [x.flip(0), x.flip(()), x.flip(2)]
            return [*flipped, x.repeat(2, 1, 3), x.repeat(2, 1, 3, 1), x.tile(2), x.roll(3, 1)]

    agree(Moved(), (torch.randn(5, 0, 10),), dynamic={"x": {}})


def test_lines_of_as_many_steps_as_an_axis_has(agree) -> None:
    """Torch itself takes their number as a plain one."""
    functions = [
        lambda x: torch.linspace(-1, 1, x.shape[0]),
        lambda x: torch.linspace(0, x.shape[1] - 1, steps=x.shape[1], dtype=torch.float64),
        lambda x: x * torch.linspace(2.5, -0.3, x.shape[0], device=x.device)[:, None],
        lambda x: torch.linspace(0, 5, 3) + torch.linspace(0, 1, 5, dtype=torch.bfloat16)[:3],
        lambda x: torch.linspace(1, 7, 4, dtype=torch.int32),
        lambda x: torch.linspace(torch.tensor(1.0), 2, 4),
        lambda x: x * torch.arange(0.5, x.shape[1]) / x.shape[1],
        lambda x: torch.arange(-2.25, x.shape[0], dtype=torch.float64),
        lambda x: torch.arange(0.1, 3),
    ]
    agree(
        functions, *((torch.randn(*size),) for size in [(7, 4), (1, 2), (2, 1), (0, 3), (300, 9)])
    )


def test_a_number_has_axes_to_transpose(agree) -> None:
    agree([lambda x: x.transpose(0, -1) + 1, lambda x: x.t() + 1], (torch.tensor(3.0),))
