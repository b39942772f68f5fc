"""Windows, resampling and transposed convolutions, over sizes that vary."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tcexport.artifacts.errors import ExportError

AUTO = torch.export.Dim.AUTO


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


RESIZES = [
    lambda x: F.interpolate(x, scale_factor=2),
    lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest"),
    lambda x: F.interpolate(x, size=(7, 5)),
    lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] + 3), mode="nearest-exact"),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    lambda x: F.interpolate(x, scale_factor=(0.5, 3.0), mode="bilinear", align_corners=True),
    lambda x: F.interpolate(x, size=(11, 6), mode="bilinear"),
    lambda x: F.interpolate(x, size=(x.shape[2] // 2, 9), mode="bilinear"),
    lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    lambda x: F.interpolate(x, size=(5, 8), mode="bicubic", align_corners=True),
    lambda x: F.interpolate(x[:, :, 0], scale_factor=2, mode="linear"),
    lambda x: F.interpolate(x[:, :, None], scale_factor=2, mode="trilinear"),
    lambda x: F.interpolate(x.half(), scale_factor=2),
    lambda x: F.pixel_shuffle(x, 2),
    lambda x: F.pixel_unshuffle(x.repeat(1, 1, 2, 2), 2),
    lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"),
    lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"),
    lambda x: F.pad(x, (-1, 2, 0, 1)),
]


def test_resizing(agree) -> None:
    calls = [(floats(b, 4, h, w),) for b, h, w in ((2, 6, 8), (1, 4, 4), (3, 9, 5))]
    agree(RESIZES, *calls, dynamic=(({0: AUTO, 2: AUTO, 3: AUTO},),))


@pytest.mark.parametrize("factor", [1.1, 2.1])
def test_factors_that_leave_small_sizes_as_they_are_or_double_them(agree, factor: float) -> None:
    functions = [
        partial(F.interpolate, scale_factor=factor, mode="nearest"),
        partial(F.interpolate, scale_factor=factor, mode="nearest-exact"),
        partial(F.interpolate, scale_factor=factor, mode="bilinear"),
        partial(F.interpolate, scale_factor=factor, mode="bilinear", align_corners=True),
        partial(F.interpolate, scale_factor=factor, mode="bicubic"),
        partial(F.interpolate, scale_factor=factor, mode="bilinear", antialias=True),
        partial(F.interpolate, scale_factor=factor, mode="bicubic", antialias=True),
        lambda x: F.interpolate(x[:, :, 0], scale_factor=factor),
        lambda x: F.interpolate(x[:, :, None], scale_factor=factor),
        lambda x: F.interpolate(x[:, :, 0], scale_factor=factor, mode="linear"),
        lambda x: F.interpolate(x[:, :, None], scale_factor=factor, mode="trilinear"),
    ]
    calls = [(floats(b, 2, h, w),) for b, h, w in ((2, 14, 25), (1, 5, 9), (3, 10, 3), (2, 4, 11))]
    agree(functions, *calls, dynamic=(({0: AUTO, 2: AUTO, 3: AUTO},),))


def test_an_axis_that_keeps_its_size_takes_nothing_from_its_neighbours(agree) -> None:
    broken = floats(2, 2, 4, 5)
    broken[0, 0, 1, 3], broken[1, 1, 2, 2] = math.nan, math.inf
    functions = [
        lambda x: F.interpolate(x, size=(7, 5), mode="bilinear"),
        lambda x: F.interpolate(x, size=(4, 3), mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, size=(4, 8), mode="bilinear", antialias=True),
        lambda x: F.interpolate(x, size=(4, 8), mode="bicubic", antialias=True),
        lambda x: F.interpolate(x[:, :, 0], size=5, mode="linear"),
        lambda x: F.interpolate(x[:, :, None], size=(3, 4, 5), mode="trilinear"),
    ]
    agree(functions, (floats(2, 2, 6, 8),), (broken,), dynamic=(({0: AUTO, 2: AUTO, 3: AUTO},),))


SMOOTH = [
    lambda x: F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
    lambda x: F.interpolate(x, size=(4, 3), mode="bicubic", antialias=True),
    lambda x: F.interpolate(x, size=(11, 4), mode="bilinear", align_corners=True, antialias=True),
    lambda x: F.interpolate(x, size=(1, 7), mode="bicubic", align_corners=True, antialias=True),
    lambda x: F.interpolate(x, scale_factor=(0.4, 1.5), mode="bilinear", antialias=True),
    lambda x: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
    lambda x: F.interpolate(x.double(), size=(x.shape[3], 2), mode="bicubic", antialias=True),
]


def test_resizing_without_aliasing(agree) -> None:
    calls = [(floats(b, 2, h, w),) for b, h, w in ((2, 6, 8), (1, 4, 4), (3, 29, 15), (1, 3, 40))]
    agree(SMOOTH, *calls, dynamic=(({0: AUTO, 2: AUTO, 3: AUTO},),))


POOLS = [
    lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    lambda x: F.adaptive_avg_pool2d(x, 1),
    lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 3),
    lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    lambda x: tuple(F.adaptive_max_pool2d(x, 2, return_indices=True)),
    lambda x: tuple(F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    lambda x: F.max_pool3d(x[:, :, None].repeat(1, 1, 3, 1, 1), 2),
    lambda x: F.avg_pool3d(x[:, :, None].repeat(1, 1, 3, 1, 1), 2),
    lambda x: F.lp_pool2d(x.abs(), 2, 2),
    lambda x: F.unfold(x, 3, padding=1),
    lambda x: F.unfold(x, (2, 3), stride=2, dilation=(1, 2)),
    lambda x: x.unfold(3, 2, 1),
    lambda x: x.unfold(-2, 3, 2),
]


def test_windows(agree) -> None:
    calls = [(floats(b, 4, h, w),) for b, h, w in ((2, 6, 8), (1, 5, 5), (3, 9, 7))]
    agree(POOLS, *calls, dynamic=(({0: AUTO, 2: AUTO, 3: AUTO},),))


def test_folding_back(agree) -> None:
    functions = [lambda x: F.fold(x, (6, 5), 3, padding=1)]
    agree(functions, (floats(2, 18, 30),), (floats(1, 18, 30),), dynamic=(({0: AUTO},),))


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 2, 2)
        self.wide = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, bias=False)
        self.grouped = nn.ConvTranspose2d(4, 8, (3, 4), stride=(1, 2), groups=2, dilation=(2, 1))
        self.line = nn.ConvTranspose1d(4, 5, 4, stride=2, padding=1)
        self.cube = nn.ConvTranspose3d(4, 2, 2, 2)
        self.doubles = nn.ConvTranspose1d(4, 5, 4, stride=2, padding=1).double()
        self.halves = nn.ConvTranspose2d(4, 6, 2, 2).half()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            self.up(x),
            self.wide(x),
            self.grouped(x),
            self.line(x[:, :, 0]),
            self.cube(x[:, :, None]),
            self.halves(x.half()),
            self.doubles(x[:, :, 0].double()),
        )


def test_transposed_convolutions(agree) -> None:
    calls = [(floats(b, 4, h, w),) for b, h, w in ((2, 6, 8), (1, 1, 1), (3, 9, 5))]
    agree(Transposed(), *calls, dynamic=({0: AUTO, 2: AUTO, 3: AUTO},), tolerance=1e-4)


def test_images_read_at_places_that_are_data(agree) -> None:
    functions = [
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        lambda x, g: F.grid_sample(x, g, align_corners=True, padding_mode="border"),
        lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False),
    ]
    calls = [
        (floats(b, 3, h, w), floats(b, 4, w, 2)) for b, h, w in ((2, 6, 8), (1, 2, 2), (3, 9, 5))
    ]
    axes = ({0: AUTO, 2: AUTO, 3: AUTO}, {0: AUTO, 2: AUTO})
    agree(functions, *calls, dynamic=(axes,), tolerance=1e-4)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_not_mixed(agree, mode: str) -> None:
    images = torch.randint(0, 255, (1, 3, 8, 8), dtype=torch.uint8)
    with pytest.raises(ExportError, match=r"TC501.*of uint8[\s\S]*x\.float\(\)"):
        agree([lambda x: F.interpolate(x, size=(5, 5), mode=mode)], (images,))


def test_grids_of_transformations(agree) -> None:
    """Of one step, too, which stands in the middle; torch fixes the sizes in its own trace."""

    def grids(theta: torch.Tensor, volume: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        flat, deep = list(x[:, :, 0].shape), list(x.shape)
        found = [F.affine_grid(theta, flat, align_corners=each) for each in (False, True)]
        found += [F.affine_grid(volume, deep, align_corners=each) for each in (False, True)]
        return [*found, F.affine_grid(theta.double(), flat, align_corners=False)]

    calls = [
        (floats(b, 2, 3), floats(b, 3, 4), floats(b, 2, d, h, w))
        for b, d, h, w in ((2, 3, 6, 5), (1, 1, 1, 9), (3, 2, 8, 1), (1, 1, 1, 1))
    ]
    moving = dict.fromkeys((0, 2, 3, 4), AUTO)
    agree([grids], *calls, dynamic=(({0: AUTO}, {0: AUTO}, moving),))
