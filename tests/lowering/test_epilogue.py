import torch
from tcexport.lowering.epilogue import LinearEpilogue, NormOfSum, find
from torch import nn
from torch.nn import functional as F

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
    patterns = list(find(program.graph).values())
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
    (pattern,) = find(program.graph).values()  # the sum of two products: one takes the other in
    assert isinstance(pattern, LinearEpilogue) and pattern.residual is not None
    agree(model, (torch.randn(3, 8),), (torch.randn(1, 8),), (torch.randn(17, 8),))
