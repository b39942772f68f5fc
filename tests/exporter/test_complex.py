"""Complex numbers at the border of a bundle: numpy's and torch's, of any layout, checked as all are."""

import numpy as np
import pytest
import torch
from torch import nn

import tcexport


class Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fft.fft(x), z * self.gain, z.abs(), torch.fft.irfft(z, n=8), z


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, tcexport.Model]:
    model = Filter().eval()
    report = tcexport.export(
        model,
        (torch.randn(3, 12), torch.randn(4, 5, dtype=torch.complex64)),
        axes={"x": ("rows", "n"), "z": ("batch", None)},
        dynamic={"rows": (1, 8), "n": (1, 100), "batch": (1, 9)},
        out=tmp_path_factory.mktemp("complex") / "m.tcpkg",
    )
    return model, tcexport.load(report.path)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 97, 4), (2, 64, 9)])
def test_complex_tensors_go_in_and_come_out(loaded, shape: tuple[int, int, int]) -> None:
    model, bundle = loaded
    rows, n, batch = shape
    x, z = torch.randn(rows, n), torch.randn(batch, 10, dtype=torch.complex64)[:, ::2]
    wanted = [each.detach() for each in model(x, z)]
    for got, want in zip(bundle(x, z), wanted, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    for array, want in zip(bundle(x.numpy(), z.numpy()), wanted, strict=True):
        assert array.dtype == want.numpy().dtype and array.flags.writeable
        np.testing.assert_allclose(array, want.numpy(), rtol=1e-4, atol=1e-4)


def test_other_dtypes_and_lazy_conjugates_are_refused(loaded) -> None:
    _, bundle = loaded
    x, z = torch.randn(2, 6), torch.randn(3, 5, dtype=torch.complex64)
    with pytest.raises(tcexport.GuardError, match="complex64"):
        bundle(x, z.to(torch.complex128))
    with pytest.raises(tcexport.GuardError, match="complex64"):
        bundle(x.numpy(), z.real.numpy())
    with pytest.raises(tcexport.GuardError, match="resolve_conj"):
        bundle(x, z.conj())
