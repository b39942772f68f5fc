import torch
from torch import nn
from torch.nn import functional as F

from tcexport.lowering.epilogue import LinearEpilogue, NormOfSum, find

from .conftest import trace


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x + torch.sin(x))
        z = y + self.down(F.gelu(self.up(y)))
        return self.last(z.transpose(0, 1) + y.transpose(0, 1)) + z.transpose(0, 1)


def test_activations_residuals_and_norms_of_sums_are_fused(agree) -> None:
    model = PostNorm()
    program = trace(model, (torch.randn(3, 3, 16),))
    patterns = list(find(program.graph, ()).values())
    linears = [p for p in patterns if isinstance(p, LinearEpilogue)]
    assert [(p.activation, p.residual is not None) for p in linears] == [
        ("gelu", False),
        (None, True),
    ]
    assert sum(isinstance(p, NormOfSum) for p in patterns) == 2
    agree(model, (torch.randn(2, 3, 16),), (torch.randn(1, 1, 16),), (torch.randn(5, 9, 16),))


class TwoLinears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = self.a(x) + self.b(x)
        doubled = self.a(x * 2)
        kept = self.b(x * 3)
        return both, doubled + doubled, F.relu(kept), kept, self.a(x + 1) + x[:, :1]


def test_what_others_read_is_kept(agree) -> None:
    model = TwoLinears()
    program = trace(model, (torch.randn(3, 8),))
    (pattern,) = find(program.graph, ()).values()  # the sum of two products: one takes the other in
    assert isinstance(pattern, LinearEpilogue) and pattern.residual is not None
    agree(model, (torch.randn(3, 8),), (torch.randn(1, 8),), (torch.randn(17, 8),))


class ConvNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 1, bias=False)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)]
        )
        for norm in self.norms:
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
            if norm.affine:
                nn.init.uniform_(norm.weight)
                nn.init.uniform_(norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        a = self.norms[1](self.shared(y))
        return F.silu(self.norms[2](self.shared(a))) + y


def test_batch_norms_go_into_the_convolution(agree) -> None:
    dynamic = ({0: torch.export.Dim.AUTO},)
    calls = [(torch.randn(n, 3, 9, 9),) for n in (2, 1, 5)]
    compiled = agree(ConvNorms(), *calls, dynamic=dynamic)
    assert not any("running" in name for name in compiled.answer.main.weights)
    assert len(compiled.answer.main.weights) == 6


class Shortcut(nn.Module):
    """Two convolutions of one sum, and a linear in another: each sum belongs to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.short = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.after, self.line = nn.Conv2d(8, 8, 1), nn.Linear(9, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.main(x)) + self.norms[1](self.short(x)))
        return F.relu(self.after(y) + self.line(y))


def test_a_sum_is_taken_in_once(agree) -> None:
    dynamic = ({0: torch.export.Dim.AUTO},)
    calls = [(torch.randn(n, 3, 9, 9),) for n in (2, 1, 5)]
    compiled = agree(Shortcut(), *calls, dynamic=dynamic)
    assert not any("running" in name for name in compiled.answer.main.weights)
