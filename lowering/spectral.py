"""The inverse short-time Fourier transform in ops that a trace can follow.

Torch's own reads a value out of a tensor, to see whether the windows leave a gap; here that is an
assertion. Otherwise as in ATen (SpectralOps.cpp).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def istft(
    spectrum: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """``[..., frequencies, frames]`` to samples: frames are transformed back, weighted and added."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    frames = spectrum.shape[-1]
    weights = torch.ones(width) if window is None else window
    if width != n_fft:
        left = (n_fft - width) // 2
        weights = F.pad(weights, (left, n_fft - width - left))
    rows = spectrum if spectrum.dim() == 3 else spectrum[None]
    rows = rows.transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        pieces = torch.fft.ifft(rows, n=n_fft, norm=norm)
    else:
        pieces = torch.fft.irfft(rows[..., : n_fft // 2 + 1], n=n_fft, norm=norm)
    signal = _overlapped(pieces * weights, hop)
    envelope = _overlapped((weights * weights).expand(1, frames, n_fft), hop)
    whole = n_fft + hop * (frames - 1)
    start = n_fft // 2 if center else 0
    if length is not None:
        end = start + length
    else:
        end = whole - n_fft // 2 if center else whole - 1
    signal, envelope = signal[:, start:end], envelope[:, start:end]
    torch._assert_async((envelope.abs() >= 1e-11).all(), "the windows leave a gap")
    signal = signal / envelope
    if length is not None:
        signal = F.pad(signal, (0, length - signal.shape[1]))
    return signal if spectrum.dim() == 3 else signal[0]


def _overlapped(pieces: torch.Tensor, hop: int) -> torch.Tensor:
    """The sum of ``[n, frames, width]``, each frame ``hop`` elements after the one before."""
    count, frames, width = pieces.shape
    parts = -(-width // hop)
    split = F.pad(pieces, (0, parts * hop - width)).reshape(count, frames, parts, hop)
    # Part r of frame f stands in segment f + r.
    shifted = [F.pad(split[:, :, r], (0, 0, r, parts - 1 - r)) for r in range(parts)]
    total = shifted[0]
    for each in shifted[1:]:
        total = total + each
    segments = frames + parts - 1
    return total.reshape(count, segments * hop)[:, : width + hop * (frames - 1)]
