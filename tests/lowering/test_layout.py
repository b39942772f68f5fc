import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tcexport.lowering import layout
from tcexport.lowering.decompose import decompose

DIMS = {
    "batch": torch.export.Dim("batch", min=1, max=8),
    "height": torch.export.Dim("height", min=8, max=64),
    "width": torch.export.Dim("width", min=8, max=64),
}


class Mobile(nn.Module):
    """What a region is made of: depthwise, gates, residuals, pooling, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 3, padding=1)
        self.norm = nn.BatchNorm2d(20)
        self.depthwise = nn.Conv2d(20, 20, 3, padding=1, groups=20, bias=False)
        self.reduce, self.widen = nn.Conv2d(20, 5, 1), nn.Conv2d(5, 20, 1)
        self.project = nn.Conv2d(20, 20, 1)
        self.join = nn.Conv2d(40, 24, 3, padding=1)
        self.grouped = nn.Conv2d(24, 24, 3, padding=1, groups=4)
        self.head = nn.Linear(24, 7)
        self.scale = nn.Parameter(torch.randn(24, 1, 1))
        self.norm.running_mean.normal_()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.relu6(self.norm(self.stem(x)))
        y = F.silu(self.depthwise(x))
        gate = self.widen(F.relu(self.reduce(y.mean((2, 3), keepdim=True))))
        y = self.project(y * torch.sigmoid(gate)) + x
        y = F.max_pool2d(torch.cat([y, x], 1), 3, 2, 1)
        y = F.avg_pool2d(F.hardswish(self.join(y)), 2)
        image = self.grouped(y) * self.scale + y
        return image, self.head(F.adaptive_avg_pool2d(image, 1).flatten(1))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8, 8, 8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = self.convs
        e, f, g, h = self.norms
        x = F.relu(e(a(x)))
        x = F.relu(f(b(x)) + x)
        x = F.relu(x + g(c(x)))
        return (h(d(x)) + x).amax((2, 3))


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.patch(x).flatten(2).transpose(1, 2)


class Normed(nn.Module):
    """Each convolution stands between norms that work on NCHW."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(2, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        return x


def _count(model: nn.Module, channels: int) -> tuple[int, int]:
    program = torch.export.export(model.eval(), (torch.randn(2, channels, 16, 16),), strict=False)
    program = decompose(program, {})
    inputs = set(program.graph_signature.user_inputs)
    names = {n.name for n in program.graph.nodes if n.op == "placeholder"} - inputs
    convs = [n for n in program.graph.nodes if "conv2d" in str(n.target)]
    return len(layout.find(program.graph, names)), len(convs)


def test_regions_with_more_convolutions_than_copies_keep_channels_last() -> None:
    assert _count(Blocks(), 3) == (4, 4)
    assert _count(Patches(), 3) == (0, 1)
    assert _count(Normed(), 8) == (0, 3)
    chosen, convs = _count(Mobile(), 3)
    assert convs == 7
    assert chosen == 6  # all but the grouped one


@pytest.mark.parametrize("kind", [Mobile, Blocks, Patches, Normed])
def test_a_layout_changes_no_number(agree, kind) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    channels = 8 if kind is Normed else 3
    sizes = [(2, 16, 16), (1, 8, 8), (3, 32, 20)]
    calls = [(torch.randn(n, channels, h, w),) for n, h, w in sizes]
    dynamic = (
        ({0: DIMS["batch"]},)
        if kind is not Blocks
        else ({0: DIMS["batch"], 2: DIMS["height"], 3: DIMS["width"]},)
    )
    if kind is not Blocks:
        calls = [(torch.randn(n, channels, 16, 16),) for n, _, _ in sizes]
    agree(model, *calls, dynamic=dynamic)
