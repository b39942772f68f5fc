import pytest
import torch
from torch import nn
from torch.nn import functional as F
from tvm import relax
from tvm.ir import Op

from tcexport.lowering import layout
from tcexport.lowering.decompose import decompose
from tcexport.lowering.graph import build
from tcexport.lowering.targets import CPU_TARGETS
from tcexport.lowering.weights import WeightStore, constants

from .conftest import TARGET, trace

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
    """Each convolution stands between norms."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(2, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        return x


class Grouped(nn.Module):
    """Groups of every kind, in vectors, in panels and in neither, and pools between them."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((3, 32, 1), (32, 32, 8), (32, 64, 2), (64, 64, 32), (64, 48, 4), (48, 48, 6))
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, 3, padding=1, groups=groups) for i, o, groups in shapes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d, e, f = self.convs
        x = F.avg_pool2d(F.relu(b(a(x))), 2)
        x = F.adaptive_avg_pool2d(d(c(x)), (5, 7))
        x = F.pad(e(x), (1, 2, 0, 1), value=0.5)
        return F.avg_pool2d(f(x), 3, 2, 1, ceil_mode=True, count_include_pad=False)


class UNet(nn.Module):
    """Group norm, SiLU, attention over pixels, concatenation, resizing and transposed convolution."""

    def __init__(self) -> None:
        super().__init__()

        def block(i: int, o: int) -> nn.Module:
            return nn.Sequential(nn.GroupNorm(4, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))

        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 40, 3, 2, 1)
        self.blocks = nn.ModuleList(block(i, o) for i, o in ((16, 16), (40, 40), (40, 40)))
        self.norm, self.project = nn.GroupNorm(5, 40), nn.Linear(40, 40)
        self.up, self.join, self.out = (
            nn.Conv2d(40, 16, 3, padding=1),
            block(32, 16),
            nn.Conv2d(16, 3, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, middle, last = self.blocks
        skip = first(self.stem(x)) + self.stem(x)
        y = middle(self.down(skip))
        rows = self.norm(y).flatten(2).transpose(1, 2)
        rows = F.scaled_dot_product_attention(rows, rows, self.project(rows))
        y = last(y + rows.transpose(1, 2).reshape(y.shape))
        y = self.up(F.interpolate(y, scale_factor=2))
        y = self.join(torch.cat([y, skip], 1))
        return self.out(F.interpolate(y, scale_factor=2, mode="bilinear"))


class Next(nn.Module):
    """Layer norm and products over the channels, turned to the last axis and back."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 2, 2)
        self.convs = nn.ModuleList(nn.Conv2d(24, 24, 5, padding=2, groups=24) for _ in range(2))
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for conv in self.convs:
            y = self.norm(conv(x).permute(0, 2, 3, 1))
            x = x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return x.mean((2, 3))


class Turned(nn.Module):
    """Images that are turned, and taken for images of the other order then, all axes being alike."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c, d = self.convs
        turned = x.permute(0, 3, 1, 2)
        first = b(F.relu(a(turned)))
        back = first.permute(0, 2, 3, 1)
        second = c(back) + back
        rows = first.flatten(2).transpose(1, 2)
        third = d(rows.transpose(1, 2).reshape(first.shape)) + x
        return first + second, back, turned, rows, third, x


class Kept(nn.Module):
    """Images with as many lines as the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x[:, :, lines])))


def _permutations(model: nn.Module, channels: int) -> int:
    """How many copies of a whole image into another order the lowered graph holds."""
    batch = torch.export.Dim("batch", min=1, max=8)
    example = (torch.randn(2, channels, 16, 16),)
    program = trace(model.eval(), example, ({0: batch},))
    module = build(program, constants(program), CPU_TARGETS[TARGET], WeightStore()).module
    found: list[str] = []

    def look(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and node.op == Op.get("relax.call_tir"):
            found.append(node.args[0].name_hint)

    relax.analysis.post_order_visit(module["main"], look)
    return sum(name.startswith("permute") for name in found)


def _count(model: nn.Module, channels: int) -> tuple[int, int]:
    program = torch.export.export(model.eval(), (torch.randn(2, channels, 16, 16),), strict=False)
    program = decompose(program, {})
    inputs = set(program.graph_signature.user_inputs)
    names = {n.name for n in program.graph.nodes if n.op == "placeholder"} - inputs
    convs = [n for n in program.graph.nodes if "conv2d" in str(n.target)]
    return len(layout.find(program.graph, names) & set(convs)), len(convs)


def test_regions_with_more_convolutions_than_copies_keep_channels_last() -> None:
    assert _count(Blocks(), 3) == (4, 4)
    assert _count(Patches(), 3) == (0, 1)
    assert _count(Normed(), 8) == (3, 3)
    assert _count(Grouped(), 3) == (5, 6)
    assert _count(UNet(), 3) == (9, 9)
    assert _count(Next(), 3) == (3, 3)
    chosen, convs = _count(Mobile(), 3)
    assert convs == 7
    assert chosen == 6  # all but the grouped one


def test_only_what_enters_and_leaves_a_region_is_copied() -> None:
    assert _permutations(UNet(), 3) == 2
    assert _permutations(Next(), 3) == 1
    assert _permutations(Normed(), 8) == 2
    assert _permutations(Grouped(), 3) == 2


@pytest.mark.parametrize("kind", [Mobile, Blocks, Patches, Normed, Grouped, UNet, Next, Turned])
def test_a_layout_changes_no_number(agree, kind) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    channels = {Normed: 8, Turned: 16}.get(kind, 3)
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


def test_images_whose_size_is_data(agree) -> None:
    calls = [
        (torch.randn(2, 3, 6, 5), torch.tensor(lines).bool())
        for lines in ([1, 0] * 3, [0, 1] + [0] * 4)
    ]
    agree(Kept(), *calls)
