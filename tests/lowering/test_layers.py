"""Products, convolutions, pools, norms and attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 33)
        self.second = nn.Linear(33, 12, bias=False)
        self.tied = nn.Linear(12, 33)
        self.tied.weight = self.first.weight
        self.matrix = nn.Parameter(torch.randn(12, 5))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = F.gelu(self.first(x))
        return (
            hidden,
            self.second(F.relu(self.tied(x))),
            self.second(F.silu(self.first(x))),
            F.gelu(self.tied(x), approximate="tanh"),
            x @ self.matrix,
            x[0] @ self.matrix + self.bias,
            torch.addmm(self.bias, x[0], self.matrix, beta=0.5, alpha=2),
            x[0, 0] @ self.matrix,
            self.first(x[0, 0]),
            x @ self.first.weight.T,
        )


def test_linear_layers(agree) -> None:
    compiled = agree(Linears(), (floats(2, 5, 12),), (floats(1, 1, 12),), (floats(3, 17, 12),))
    names = compiled.answer.main.weights
    assert "first.weight:packed32" in names  # and no unpacked copy beside it
    assert "first.weight" not in names and "tied.weight" not in names


def test_products_of_two_inputs(agree) -> None:
    functions = [
        torch.matmul,
        lambda a, b: torch.bmm(a, b),
        lambda a, b: a[0] @ b[0],
        lambda a, b: a @ b[0],
        lambda a, b: a[:, None] @ b[None],
        lambda a, b: a[0, 0] @ b[0],
        lambda a, b: a[0] @ b[0, :, 0],
        lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
        lambda a, b: torch.baddbmm(a[:, :, :1], a, b, beta=2),
        lambda a, b: torch.einsum("bij,bjk->bki", a, b),
        lambda a, b: (a * 3).long() @ (b * 3).long(),
        lambda a, b: F.linear(a, b.mT[0]),
    ]
    sizes = [(2, 3, 4, 5), (1, 2, 2, 2), (3, 17, 9, 6)]
    calls = [(floats(b, i, j), floats(b, j, k)) for b, i, j, k in sizes]
    agree(functions, *calls)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(4, 8, 3, padding=1)
        self.strided = nn.Conv2d(8, 6, 3, stride=2, dilation=2, padding=2, bias=False)
        self.grouped = nn.Conv2d(4, 8, (3, 1), groups=2, padding=(1, 0))
        self.depthwise = nn.Conv2d(4, 4, 5, groups=4, padding="same")
        self.norm = nn.BatchNorm2d(8)
        self.groups = nn.GroupNorm(2, 8)
        self.line = nn.Conv1d(4, 6, 3, stride=2, padding=1)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)
        nn.init.uniform_(self.groups.weight)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(self.norm(self.plain(x)))
        return (
            y,
            self.strided(y),
            self.grouped(x),
            self.depthwise(x),
            self.groups(y),
            F.instance_norm(y, weight=self.norm.weight, bias=self.norm.bias),
            self.line(x[:, :, 0]),
            F.max_pool2d(y, 3, 2, 1),
            F.max_pool2d(y, 2, ceil_mode=True),
            F.avg_pool2d(y, 3, 2, 1),
            F.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            F.adaptive_avg_pool2d(y, 1),
            F.max_pool1d(x[:, :, 0], 2),
            F.avg_pool1d(x[:, :, 0], 3, 2),
        )


def test_convolutions_and_pools_of_any_size(agree) -> None:
    agree(
        Convolutions(),
        (floats(2, 4, 12, 9),),
        (floats(1, 4, 7, 9),),
        (floats(3, 4, 16, 9),),
        dynamic=({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},),
    )


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(24)
        self.plain = nn.LayerNorm((6, 24), elementwise_affine=False)
        self.rms = nn.RMSNorm(24, eps=1e-6)
        nn.init.uniform_(self.layer.weight)
        nn.init.uniform_(self.layer.bias)
        nn.init.uniform_(self.rms.weight)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            self.layer(x),
            self.layer(x + 1000),
            self.plain(x),
            self.rms(x),
            self.layer(x * 2 + x),
        )


def test_norms(agree) -> None:
    calls = [(floats(n, 6, 24),) for n in (2, 1, 5)]
    agree(Norms(), *calls, dynamic=({0: torch.export.Dim.AUTO},), tolerance=2e-4)


def attention(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def masked(kind: str):
    def run(q, k, v):
        rows, columns = q.shape[-2], k.shape[-2]
        place = torch.arange(rows)[:, None] - torch.arange(columns)
        mask = place.abs() < 3 if kind == "bool" else place.abs() * -0.5
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return run


@pytest.mark.parametrize("width", [8, 24])
def test_attention(agree, width: int) -> None:
    functions = [
        attention(),
        attention(is_causal=True),
        attention(scale=0.3),
        masked("bool"),
        masked("float"),
        lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
    ]
    auto = torch.export.Dim.AUTO
    calls = [
        tuple(floats(b, 4, n, width) for n in (s, t, t))
        for b, s, t in ((2, 5, 7), (1, 1, 1), (3, 33, 20))
    ]
    agree(functions, *calls, dynamic=(({0: auto, 2: auto},) * 3,))


def test_attention_of_doubles_in_steps(agree) -> None:
    functions = [
        attention(),
        attention(is_causal=True),
        masked("bool"),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
    ]
    auto = torch.export.Dim.AUTO
    sizes = ((2, 5, 7), (1, 1, 1), (3, 9, 20))
    calls = [tuple(floats(b, 4, n, 8).double() for n in (s, t, t)) for b, s, t in sizes]
    agree(functions, *calls, dynamic=(({0: auto, 2: auto},) * 3,), tolerance=1e-10)


def test_norms_by_their_native_names(agree) -> None:
    weight, bias = torch.randn(6), torch.randn(6)

    def groups(x: torch.Tensor) -> torch.Tensor:
        image = x.mT.contiguous()
        return torch.native_group_norm(image, weight, bias, x.shape[0], 6, x.shape[1], 3, 1e-5)[0]

    functions = [lambda x: torch.native_layer_norm(x, (6,), weight, bias, 1e-5)[0], groups]
    agree(functions, (floats(3, 4, 6),), (floats(1, 1, 6),), (floats(2, 9, 6),))


def test_products_of_three(agree) -> None:
    layer = nn.Bilinear(4, 5, 6)
    agree(layer, (floats(7, 3, 4), floats(7, 3, 5)), (floats(1, 1, 4), floats(1, 1, 5)))


def test_products_of_three_small_integers_stay_small(agree) -> None:
    def small(*shape: int) -> torch.Tensor:
        return torch.randint(-20, 20, shape, dtype=torch.int8)

    agree([F.bilinear], (small(3, 4), small(3, 5), small(6, 4, 5)))


def test_a_sum_of_products_of_a_batch(agree) -> None:
    functions = (
        torch.addbmm,
        lambda x, a, b: torch.addbmm(x / 0, a, b, beta=0, alpha=2),
        lambda x, a, b: torch.addbmm(x, a, b, beta=0.5, alpha=0),
    )
    calls = ((floats(n, 4), floats(b, n, 5), floats(b, 5, 4)) for b, n in ((2, 3), (1, 1)))
    agree(functions, *calls)


def test_softmax_of_one_number(agree) -> None:
    agree([lambda x: x.softmax(0), lambda x: x.log_softmax(0)], (torch.tensor(3.0),))


def test_pools_of_integers(agree) -> None:
    x = torch.randint(-20, 20, (2, 3, 9, 8))
    agree([lambda x: F.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 2, 1)], (x,))


def test_a_product_without_columns_or_without_terms(agree) -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.columns = nn.Linear(8, 0)
            self.matrix = nn.Parameter(torch.randn(8, 0))
            self.terms = nn.Linear(0, 5)
            self.register_buffer("codes", torch.zeros(0, 8, dtype=torch.int8))

        def forward(self, x):
            half = torch.relu(nn.functional.linear(x.half(), self.matrix.t().half()))
            coded = nn.functional.linear(x, self.codes.float() * 0.5)
            return self.columns(x), x @ self.matrix, self.terms(x[:, :0]), half, coded

    agree(Nothing(), *[(torch.randn(n, 8),) for n in (2, 3, 50)])


def test_convolutions_and_norms_of_no_channels(agree) -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Sequential(nn.Conv2d(0, 4, 3, padding=1), nn.ReLU())
            self.line = nn.Conv1d(0, 4, 3, bias=False)
            self.norm = nn.LayerNorm(0)

        def forward(self, x):
            none = x[:, :0]
            line = self.line(none.flatten(2))
            return self.image(none), self.image(none) + none, line, self.norm(x[..., :0])

    agree(Nothing().eval(), *[(torch.randn(n, 3, 6, 8),) for n in (2, 3)])
