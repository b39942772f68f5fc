"""Complex numbers and Fourier transforms, as pairs of real tensors."""

from typing import Any

import pytest
import torch
from torch import nn


def numbers(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def test_arithmetic(agree) -> None:
    functions = [
        lambda a, b, r: a + b,
        lambda a, b, r: a + r,
        lambda a, b, r: r - a,
        lambda a, b, r: 1 - a,
        lambda a, b, r: torch.add(a, b, alpha=2),
        lambda a, b, r: a * b,
        lambda a, b, r: r * a,
        lambda a, b, r: a * (2 - 1j),
        lambda a, b, r: r * 1j,
        lambda a, b, r: a / b,
        lambda a, b, r: a / r,
        lambda a, b, r: r / a,
        lambda a, b, r: 1 / a,
        lambda a, b, r: -a,
        lambda a, b, r: a.conj() * b,
        lambda a, b, r: a.abs(),
        lambda a, b, r: a.angle(),
        lambda a, b, r: a.exp(),
        lambda a, b, r: a.log(),
        lambda a, b, r: a.sqrt(),
        lambda a, b, r: (a.sin(), a.cos(), a.sinh(), a.cosh()),
        lambda a, b, r: a**2 + a**3,
        lambda a, b, r: a**1.5,
        lambda a, b, r: torch.sgn(a),
        lambda a, b, r: (a.real, a.imag),
        lambda a, b, r: torch.complex(r, r + 1),
        lambda a, b, r: torch.polar(r, r + 1),
        lambda a, b, r: torch.view_as_real(a),
        lambda a, b, r: torch.view_as_complex(torch.stack([r, r * 2], -1)),
        lambda a, b, r: a == b,
        lambda a, b, r: a != a,
        lambda a, b, r: torch.where(r > 0, a, b),
        lambda a, b, r: a.masked_fill(r > 0, 1 + 2j),
        lambda a, b, r: r.to(torch.complex64) + torch.zeros_like(a),
        lambda a, b, r: a.to(torch.complex128),
        lambda a, b, r: torch.isnan(a / (a - a)),
        lambda a, b, r: (a * 0 + 1j).bool(),
        lambda a, b, r: torch.where(r > 0, a, 0),
    ]
    calls = [
        (numbers(*shape), numbers(*shape), torch.randn(*shape))
        for shape in ((3, 5), (1, 1), (0, 2))
    ]
    agree(functions, *calls)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.complex64, 1e-5), (torch.complex128, 1e-12)]
)
def test_elementary_functions(agree, dtype: torch.dtype, tolerance: float) -> None:
    functions = [
        lambda z: (z.exp2(), z.expm1(), z.sigmoid()),
        lambda z: (z.log2(), z.log10(), z.log1p(), torch.log1p(z * 0.01)),
        lambda z: (z.tan(), z.tanh(), torch.tanh(z * 40), torch.tan(z * 40)),
        lambda z: (z.asin(), z.acos(), z.atan()),
        lambda z: (z.asinh(), z.acosh(), z.atanh()),
        lambda z: (z.logical_not(), z.logical_and(z.real > 0), z.logical_xor(z * 0)),
        lambda z: torch.complex(z.real / 0, z.imag).isinf(),
    ]
    calls = [(numbers(*shape, dtype=dtype) * 2,) for shape in ((3, 7), (1, 1))]
    agree(functions, *calls, tolerance=tolerance)


def test_writes(agree) -> None:
    functions = [
        lambda a, b, i: a.index_put((i,), b[:1]),
        lambda a, b, i: a.index_put((i, i), b[0, 0], accumulate=True),
        lambda a, b, i: a.masked_scatter(a.real > 0, b),
        lambda a, b, i: a.scatter(0, i[:2, None], b),
        lambda a, b, i: a.scatter_add(0, i[:2, None], b),
        lambda a, b, i: a.slice_scatter(b[:, :1], 1, 0, 1),
        lambda a, b, i: torch.addmv(a[:, 0], a, b[0], beta=2, alpha=1j),
    ]
    calls = [
        (numbers(*shape), numbers(*shape), torch.tensor([1, 0, 1])) for shape in ((3, 4), (2, 7))
    ]
    auto = torch.export.Dim.AUTO
    agree(functions, *calls, dynamic=(({0: auto, 1: auto}, {0: auto, 1: auto}, {}),))


def test_moves_sums_and_products(agree) -> None:
    functions = [
        lambda a, b: a.transpose(1, 2).reshape(-1),
        lambda a, b: a[:, 1:, None],
        lambda a, b: a[-1],
        lambda a, b: torch.cat([a, b, a.real], 1),
        lambda a, b: torch.stack([a, b]),
        lambda a, b: a.sum(1),
        lambda a, b: a.sum(),
        lambda a, b: a.mean((0, 1)),
        lambda a, b: a.cumsum(1),
        lambda a, b: (a.var(1), a.std(), torch.var_mean(a, (0, 2), correction=0)),
        lambda a, b: (torch.linalg.vector_norm(a, dim=1), a.norm(1), (a * 0).any(), b.all(0)),
        lambda a, b: a.flip(1).roll(1, 2),
        lambda a, b: a @ b.mT,
        lambda a, b: torch.einsum("bij,bkj->bik", a, b.conj()),
        lambda a, b: a[0] @ b[0, 0],
        lambda a, b: torch.nn.functional.pad(a, (1, 2)),
        lambda a, b: a.expand(2, *a.shape),
        lambda a, b: a.tril(),
    ]
    calls = [(numbers(*shape), numbers(*shape)) for shape in ((2, 3, 4), (1, 1, 1), (3, 7, 5))]
    agree(functions, *calls)


class Rotary(nn.Module):
    """Rotary embeddings as Llama was first written: a complex table, multiplied."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(64), 1.0 / 100 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles))
        self.mix = nn.Linear(8, 8, dtype=torch.complex64)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * self.table[: x.shape[1]][:, None]
        return torch.view_as_real(turned).flatten(3).type_as(x), self.mix(z), self.table[:2]


def test_rotary_embeddings_in_complex_form(agree) -> None:
    calls = [(torch.randn(b, s, 3, 8), numbers(b, 8)) for b, s in ((2, 5), (1, 1), (3, 64))]
    auto = torch.export.Dim.AUTO
    agree(Rotary(), *calls, dynamic=({0: auto, 1: auto}, {0: auto}))


def test_transforms_of_any_length(agree) -> None:
    functions = [
        lambda x, z: torch.fft.fft(x),
        lambda x, z: torch.fft.ifft(z),
        lambda x, z: torch.fft.rfft(x, norm="ortho"),
        lambda x, z: torch.fft.irfft(z, n=2 * z.shape[1] - 1),
        lambda x, z: torch.fft.fft(z, dim=0, norm="forward"),
    ]
    lengths = (7, 1, 2, 3, 5, 8, 12, 17, 30, 31, 37, 64, 74, 97, 128, 210, 509, 1024, 1331)
    calls = [(torch.randn(3, n), numbers(3, n)) for n in lengths]
    calls += [(torch.randn(21, 60), numbers(21, 60)), (torch.randn(1, 41), numbers(1, 41))]
    agree(functions, *calls, tolerance=3e-4)


SEVERAL = [
    lambda x, z: torch.fft.ifftn(z, norm="backward"),
    lambda x, z: torch.fft.rfftn(x),
    lambda x, z: torch.fft.irfft2(z, s=(4, 6)),
    lambda x, z: torch.fft.fft2(z),
    lambda x, z: torch.fft.hfft(z, n=6),
    lambda x, z: torch.fft.ihfft(x),
    lambda x, z: torch.fft.fft(z, n=16, dim=1),
    lambda x, z: torch.fft.fftshift(torch.fft.fftn(x, dim=(0, 2))),
    lambda x, z: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x), n=x.shape[-1]),
]


@pytest.mark.parametrize(
    ("functions", "real", "tolerance"),
    [(SEVERAL, torch.float32, 1e-4), (SEVERAL[:3], torch.float64, 1e-9)],
    ids=["float32", "float64"],
)
def test_transforms_of_several_axes(
    agree, functions: list[Any], real: torch.dtype, tolerance: float
) -> None:
    dtype = torch.complex64 if real is torch.float32 else torch.complex128
    calls = [
        (torch.randn(*shape, dtype=real), numbers(*shape, dtype=dtype))
        for shape in ((4, 6, 5), (6, 4, 4), (9, 4, 11))
    ]
    agree(functions, *calls, tolerance=tolerance)


def test_short_time_transforms(agree) -> None:
    window = torch.hann_window(16)

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, hop_length=4, window=window, return_complex=True)

    def back(x: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectrum(x), 16, hop_length=4, window=window)

    def part(x: torch.Tensor) -> torch.Tensor:
        shape = {"hop_length": 5, "win_length": 12, "normalized": True}
        spectrum = torch.stft(x[0], 16, window=window[:12] + 0.1, return_complex=True, **shape)
        return torch.istft(spectrum, 16, window=window[:12] + 0.1, length=30, **shape)

    functions = [lambda x: spectrum(x).abs(), spectrum, back, part]
    agree(functions, (torch.randn(2, 50),), (torch.randn(1, 41),), (torch.randn(3, 73),))


def test_complex_tensors_of_no_elements_are_joined(agree) -> None:
    class Joined(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.cat([x, x]), torch.stack([x, x]), torch.cat([x, y])

    call = (torch.zeros(0, dtype=torch.complex64), torch.randn(2, 3, dtype=torch.complex64))
    agree(Joined(), call, dynamic={"x": {}, "y": {}})
