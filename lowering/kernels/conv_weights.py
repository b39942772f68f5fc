"""A convolution with its channels last: what of it is fixed, and how its weight is packed.

The panels are those of GEMM, with the kernel's lines, columns and input channels as its k. Groups have
panels of their own, unless each makes few output channels: those run over vectors of output channels,
whose groups lie side by side. A depthwise convolution is one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...artifacts.recipes import Steps
from . import gemm
from .prim_func import FLOAT, Expr
from .tile import PANEL

_IN_A_VECTOR = (1, 2, 4, 8)  # filters of a group that lies in a vector
_STRIP = 16  # columns of a panel that a tile of any CPU can do alone
_WIDEST_GROUP = 1024  # filters, the width of `gate_panels`

Write = Callable[[Expr, Expr, Expr, int], None]  # value, channel, place in Y, lanes


@dataclass(frozen=True)
class Convolution:
    """What is fixed at export. ``activation`` comes after the sum with the residual. Where the weight
    is stored as ``weight_dtype``, no float, ``scaled`` says that each filter has a scale."""

    channels: int
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False
    residual: bool = False
    activation: str | None = None
    dtype: str = FLOAT
    weight_dtype: str | None = None
    scaled: bool = False

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @property
    def group_filters(self) -> int:
        return self.filters // self.groups

    @property
    def by_vectors(self) -> bool:
        return by_vectors(self.groups, self.filters, self.group_channels)

    @property
    def input_dtype(self) -> str:
        """Halves are widened where they are copied; where nothing is copied, they come so."""
        return self.dtype if any(self.padding) else FLOAT

    @property
    def runs(self) -> tuple[int, int]:
        """How many contiguous pieces a kernel line has, and of how many elements."""
        if self.dilation[1] == 1 and self.groups == 1:
            return 1, self.kernel[1] * self.channels
        return self.kernel[1], self.group_channels


def by_vectors(groups: int, filters: int, group_channels: int) -> bool:
    """Whether the groups lie side by side in the vectors of a result."""
    each = filters // groups
    return groups > 1 and each in _IN_A_VECTOR and group_channels <= 2 * each


def suits(groups: int, filters: int, group_channels: int) -> bool:
    """Whether the kernel is the one for so many groups: panels hold zeros beside the filters of a
    group, of which there may not be too many."""
    if groups == 1 or by_vectors(groups, filters, group_channels):
        return True
    each = filters // groups
    if each > _WIDEST_GROUP and each % PANEL:
        return False
    return -(-each // _STRIP) * _STRIP * 2 <= 3 * each


def packing(shape: Sequence[int], groups: int) -> Steps:
    """How the weight ``[o, i / groups, kh, kw]`` becomes what the kernel reads, on every CPU level:
    GEMM's panels, those of one group after those of another, or, ``by_vectors``, ``[kh, kw, i / groups,
    o]``."""
    filters, channels, height, width = shape
    if by_vectors(groups, filters, channels):
        return (("transpose", (2, 3, 1, 0)),)
    depth, each = height * width * channels, filters // groups
    flat = (("transpose", (0, 2, 3, 1)), ("reshape", (filters, depth)))
    if groups == 1 or each % PANEL == 0:
        return (*flat, *gemm.PACKING)
    panels = -(-each // PANEL)
    return (
        *flat,
        ("gate_panels", 1, each, panels * PANEL),
        ("reshape", (groups, depth, panels, PANEL)),
        ("transpose", (0, 2, 1, 3)),
        ("reshape", (groups * panels, depth, PANEL)),
    )


def packed_shape(conv: Convolution) -> tuple[int, ...]:
    if conv.by_vectors:
        return (*conv.kernel, conv.group_channels, conv.filters)
    depth = conv.kernel[0] * conv.kernel[1] * conv.group_channels
    panels, *rest = gemm.packed_shape(conv.group_filters, depth)
    return (conv.groups * panels, *rest)
