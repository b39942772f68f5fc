"""Convolution in two dimensions, NCHW, as a matrix product that is never laid out.

Rows of the product are output channels, columns are output pixels. The input is first copied to
padded planes, one for each phase of the stride: with stride s, pixel ``s * x + r`` lies at x in plane
r. Then whatever the stride, padding and dilation, the pixels that a kernel element meets are a
contiguous piece of one plane, and run on from row to row: a vector of them is one load, and goes
over the end of a row (the columns between rows are computed too, and dropped). A last pass drops
them and adds bias, activation and residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from ..targets import CpuTarget
from .half import load_wide
from .prim_func import (
    FLOAT,
    Expr,
    ceil_div,
    dim,
    div,
    index,
    let,
    load,
    mod,
    parallel,
    param,
    prim_func,
    serial,
    store,
    vector,
    workspace,
)
from .row import over
from .tile import accumulate, finish_tile, tile_vectors
from .vector_math import activate

_TILES_PER_TASK = 8  # tiles of pixels that pass over one block of output channels


@dataclass(frozen=True)
class _Conv:
    """What is fixed at export."""

    channels: int
    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    target: CpuTarget

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @property
    def group_filters(self) -> int:
        return self.filters // self.groups

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel is made of the input pixel at its place."""
        return (self.kernel, self.stride, self.padding) == ((1, 1), (1, 1), (0, 0))

    @property
    def blocks(self) -> int:
        """Into how many blocks, as tall as a tile, the filters of a group fall."""
        return -(-self.group_filters // self.target.tile_rows)

    @property
    def tile_vectors(self) -> int:
        return tile_vectors(-(-self.group_filters // self.blocks), self.target)

    @property
    def tile_width(self) -> int:
        return self.tile_vectors * self.target.lanes

    def reach(self, axis: int) -> int:
        """How many plane pixels the last kernel element lies after the first."""
        return self.dilation[axis] * (self.kernel[axis] - 1) // self.stride[axis]


def conv2d(
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    bias: bool,
    activation: str | None,
    residual: bool,
    target: CpuTarget,
    weight_dtype: str = FLOAT,
    scale: bool = False,
) -> tirx.PrimFunc:
    """Y = act(conv(X, W) * scale + bias) + residual in float32, for any batch, height and width; the
    weight is stored as ``weight_dtype``.

    Parameters: X ``[n, channels, h, w]``, the weight ``[oc, ic / groups, kh, kw]``, scale and bias
    ``[filters]`` and residual (as Y) where asked for, Y ``[n, filters, ho, wo]``. Padding is of
    zeros, the same on both sides.
    """
    conv = _Conv(channels, filters, kernel, stride, padding, dilation, groups, target)

    def declare() -> Callable[[], None]:
        n, h, w, ho, wo = (dim(None, name) for name in ("n", "h", "w", "ho", "wo"))
        x = param("X", (n, channels, h, w))
        weight = param("W", (filters, conv.group_channels, *kernel), weight_dtype)
        factor = param("scale", (filters,)) if scale else None
        b = param("bias", (filters,)) if bias else None
        r = param("residual", (n, filters, ho, wo)) if residual else None
        y = param("Y", (n, filters, ho, wo))

        def finish(value: Expr, item: Expr, channel: Expr, line: Expr, j: Expr, lanes: int) -> None:
            if factor is not None:
                value = value * vector(factor[channel], lanes)
            if b is not None:
                value = value + vector(b[channel], lanes)
            value = activate(activation, value, lanes)
            if r is not None:
                value = value + load(r, item, channel, line, j, lanes=lanes)
            store(y, value, item, channel, line, j, lanes=lanes)

        def through_planes() -> None:
            rows, row = (
                let(ho + index(conv.reach(0)), "rows"),
                let(wo + index(conv.reach(1)), "row"),
            )
            planes = _planes(conv, x, n, h, w, rows, row)
            products = _products(conv, planes, weight, n, let(ho * row, "pixels"), row)
            with parallel(n * index(filters) * ho) as task:
                item = let(div(task, index(filters) * ho))
                channel = let(mod(div(task, ho), filters))
                line = let(mod(task, ho))

                def write(j: Expr, lanes: int) -> None:
                    value = load(products, item, channel, line * row + j, lanes=lanes)
                    finish(value, item, channel, line, j, lanes)

                over(wo, target.lanes, write)

        def in_place() -> None:
            # Input and output are planes already: line 0, with positions past its end.
            def read(item: Expr, channel: Expr, phase: Expr, pixel: Expr, lanes: int) -> Expr:
                return load(x, item, channel, 0, pixel, lanes=lanes)

            def write(value: Expr, item: Expr, channel: Expr, pixel: Expr, lanes: int) -> None:
                finish(value, item, channel, index(0), pixel, lanes)

            _tiles(conv, weight, n, let(h * w, "pixels"), w, read, write, overlap=True)

        def body() -> None:
            if not conv.is_pointwise:
                through_planes()
                return
            with T.If(h * w >= index(conv.tile_width)):
                with T.Then():
                    in_place()
                with T.Else():
                    through_planes()

        return body

    return prim_func(f"conv2d_{channels}_{filters}", declare)


def _planes(
    conv: _Conv, x: tirx.Buffer, n: Expr, h: Expr, w: Expr, rows: Expr, row: Expr
) -> tirx.Buffer:
    """The padded input ``[n, channels, phases, rows * row and some more]``.

    The last tile reads past the end, what it makes of that is dropped.
    """
    (sy, sx), (py, px) = conv.stride, conv.padding
    slack = index(conv.tile_width + conv.reach(1))
    planes = workspace((n, conv.channels, sy * sx, rows * row + slack))
    with parallel(n * index(conv.channels)) as task:
        item, channel = let(div(task, conv.channels)), let(mod(task, conv.channels))
        with serial(sy) as phase_y, serial(sx) as phase_x, serial(rows) as i:
            phase = let(phase_y * index(sx) + phase_x)
            source_row = let(i * index(sy) + phase_y - index(py))
            inside = tirx.all(source_row >= index(0), source_row < h)
            # The columns [begin, end) of the plane lie in the input.
            begin = let(T.min(row, div(T.max(index(px + sx - 1) - phase_x, index(0)), sx)))
            end = div(T.max(w + index(px + sx - 1) - phase_x, index(0)), sx)
            end = let(T.max(begin, T.min(row, end)))
            begin = let(T.if_then_else(inside, begin, row))
            end = let(T.if_then_else(inside, end, row))
            start = let(i * row)
            with serial(begin) as j:
                store(planes, T.float32(0.0), item, channel, phase, start + j, lanes=1)
            with serial(end - begin) as j:
                column = (begin + j) * index(sx) + phase_x - index(px)
                value = x[item, channel, source_row, column]
                store(planes, value, item, channel, phase, start + begin + j, lanes=1)
            with serial(row - end) as j:
                store(planes, T.float32(0.0), item, channel, phase, start + end + j, lanes=1)
    return planes


def _products(
    conv: _Conv, planes: tirx.Buffer, weight: tirx.Buffer, n: Expr, pixels: Expr, row: Expr
) -> tirx.Buffer:
    """The sums ``[n, filters, pixels, and more up to whole tiles]``."""
    tiles = ceil_div(pixels, conv.tile_width)
    products = workspace((n, conv.filters, tiles * index(conv.tile_width)))

    def read(item: Expr, channel: Expr, phase: Expr, pixel: Expr, lanes: int) -> Expr:
        return load(planes, item, channel, phase, pixel, lanes=lanes)

    def write(value: Expr, item: Expr, channel: Expr, pixel: Expr, lanes: int) -> None:
        store(products, value, item, channel, pixel, lanes=lanes)

    _tiles(conv, weight, n, pixels, row, read, write, overlap=False)
    return products


def _tiles(
    conv: _Conv,
    weight: tirx.Buffer,
    n: Expr,
    pixels: Expr,
    row: Expr,
    read: Callable[[Expr, Expr, Expr, Expr, int], Expr],
    write: Callable[[Expr, Expr, Expr, Expr, int], None],
    *,
    overlap: bool,
) -> None:
    """All tiles of the product.

    ``read(item, channel, phase, pixel, lanes)`` gives input, ``write(value, item, filter, pixel,
    lanes)`` takes sums. The last tile of an image reaches over its end, or with ``overlap`` begins
    so early that it does not, and writes some values a second time.
    """
    lanes = conv.target.lanes
    vectors, width, blocks = conv.tile_vectors, conv.tile_width, conv.blocks
    fewer, larger_blocks = divmod(conv.group_filters, blocks)
    tiles = let(ceil_div(pixels, width), "tiles")
    chunks = let(ceil_div(tiles, _TILES_PER_TASK), "chunks")
    with parallel(n * index(conv.groups * blocks) * chunks) as task:
        item = let(div(task, index(conv.groups * blocks) * chunks), "item")
        group = let(mod(div(task, index(blocks) * chunks), conv.groups), "group")
        block = let(mod(div(task, chunks), blocks), "block")
        chunk = let(mod(task, chunks), "chunk")
        first_channel = let(group * index(conv.group_channels), "first_channel")
        filter_in_group = block * index(fewer) + T.min(block, index(larger_blocks))
        first_filter = let(group * index(conv.group_filters) + filter_in_group, "first_filter")
        first_tile = let(div(tiles * chunk, chunks))
        with serial(div(tiles * (chunk + 1), chunks) - first_tile) as tile:
            pixel = (first_tile + tile) * index(width)
            pixel = let(T.min(pixel, pixels - index(width)) if overlap else pixel, "pixel")

            def compute(count: int) -> None:
                sums = accumulate(
                    count,
                    vectors,
                    lanes,
                    lambda step: _along_kernel(conv, row, step),
                    lambda i, c, ky, kx, phase, shift: load_wide(
                        weight, first_filter + index(i), c, ky, kx, lanes=1
                    ),
                    lambda j, c, ky, kx, phase, shift: read(
                        item, first_channel + c, phase, pixel + shift + index(j * lanes), lanes
                    ),
                )
                finish_tile(
                    sums,
                    count,
                    vectors,
                    lanes,
                    None,
                    lambda value, i, j, lanes: write(
                        value, item, first_filter + i, pixel + j, lanes
                    ),
                    unroll=True,
                )

            if larger_blocks == 0:
                compute(fewer)
            else:
                with T.If(block < index(larger_blocks)):
                    with T.Then():
                        compute(fewer + 1)
                    with T.Else():
                        compute(fewer)


def _along_kernel(conv: _Conv, row: Expr, step: Callable[..., None]) -> None:
    """The loops over channels and kernel elements, with the plane and shift of each element."""
    (sy, sx), (dy, dx) = conv.stride, conv.dilation
    height, width = conv.kernel
    with serial(conv.group_channels) as c, serial(height) as ky, serial(width) as kx:
        y, x = ky * index(dy), kx * index(dx)
        phase = let(mod(y, sy) * index(sx) + mod(x, sx))
        shift = let(div(y, sy) * row + div(x, sx))
        step(c, ky, kx, phase, shift)
