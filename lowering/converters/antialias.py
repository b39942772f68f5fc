"""Images made smaller without aliasing: `F.interpolate(…, antialias=True)`.

Each axis on its own, the last one first, as ATen does: a pixel is the weighted mean of those that lie
under a filter, which is as wide as its step where pixels get fewer (Pillow's way to resize).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..context import Context
from ..symbols import Shape, Size, Symbols, as_shape
from ..tensor import Tensor
from .registry import converter
from .resample import hidden, integer, require_floats

Filter = Callable[[Any, Callable[[float], Any]], Any]


def _triangle(x: Any, number: Callable[[float], Any]) -> Any:
    return tirx.max(number(1) - tirx.abs(x), number(0))


def _cubic(x: Any, number: Callable[[float], Any]) -> Any:
    """Keys' kernel with a = -0.5, as Pillow has it; `F.interpolate` without antialias has -0.75."""
    a = -0.5
    x = tirx.abs(x)
    near = ((number(a + 2) * x - number(a + 3)) * x) * x + number(1)
    far = (((x - number(5)) * x + number(8)) * x - number(4)) * number(a)
    return tirx.Select(x < number(1), near, tirx.Select(x < number(2), far, number(0)))


@dataclass(frozen=True)
class _Axis:
    """How one axis is made anew: ``reach`` is the width of the filter in steps, to both sides."""

    own: Size
    out: Size
    factor: float | None
    corners: bool
    weigh: Filter
    reach: int
    dtype: str

    def number(self, value: float) -> Any:
        return tirx.const(value, self.dtype)

    def step(self, scope: Symbols) -> Any:
        """Input pixels for each output pixel."""
        return tirx.Select(self._copied(scope), self.number(1), self._asked(scope))

    def _copied(self, scope: Symbols) -> Any:
        """ATen leaves an axis that keeps its size as it is, whatever the factor is."""
        return tirx.EQ(scope.size(self.own), scope.size(self.out))

    def _asked(self, scope: Symbols) -> Any:
        own, out = scope.size(self.own), scope.size(self.out)
        if self.corners:
            apart = tirx.max(out - integer(1), integer(1)).astype(self.dtype)
            step = hidden((own - integer(1)).astype(self.dtype)) / apart
            return tirx.Select(out > integer(1), step, self.number(0))
        if self.factor is not None and self.factor > 0:
            return self.number(1.0 / self.factor)
        return hidden(own.astype(self.dtype)) / out.astype(self.dtype)

    def taps(self, scope: Symbols) -> Any:
        """How many pixels lie under the filter at most."""
        if not self.corners and self.factor is not None and self.factor > 0:
            return integer(2 * math.ceil(self.reach * max(1.0, 1.0 / self.factor)) + 1)
        own, out = scope.size(self.own), scope.size(self.out)
        if self.corners:
            own, out = own - integer(1), tirx.max(out - integer(1), integer(1))
        widest = tirx.max(tirx.truncdiv(own + out - integer(1), out), integer(1))
        return integer(2 * self.reach) * widest + integer(1)

    def place(self, scope: Symbols, p: Any, tap: Any) -> tuple[Any, Any, Any]:
        """A pixel under the filter, whether there is one, and its weight before all are divided by
        their sum."""
        step = self.step(scope)
        wide = tirx.max(step, self.number(1))
        support = self.number(self.reach) * wide
        half = self.number(0.5)  # with the corners aligned, too
        centre = step * (p.astype(self.dtype) + half)
        first = tirx.max((centre - support + half).astype("int64"), integer(0))
        end = tirx.min((centre + support + half).astype("int64"), scope.size(self.own))
        at = first + tap
        inverse = tirx.Select(step >= self.number(1), self.number(1) / wide, self.number(1))
        weight = self.weigh((at.astype(self.dtype) - centre + half) * inverse, self.number)
        own_pixel = tirx.Or(tirx.Not(self._copied(scope)), tirx.EQ(at, p.astype("int64")))
        return at, tirx.And(at < end, own_pixel), weight


def _resized(ctx: Context, x: Tensor, axis: int, how: _Axis) -> Tensor:
    shape: Shape = (*x.shape[:axis], how.out, *x.shape[axis + 1 :])

    def over(scope: Symbols) -> Any:
        return te.reduce_axis((integer(0), how.taps(scope)), name="rk")

    def total(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        tap = over(scope)
        _, inside, weight = how.place(scope, position[0], tap.var)
        return te.sum(tirx.if_then_else(inside, weight, how.number(0)), axis=tap)

    totals = ctx.compute("filter", [], (how.out,), x.dtype, total)

    def element(scope: Any, tensors: Any, position: tuple[Any, ...]) -> Any:
        image, sums = tensors
        tap = over(scope)
        p = position[axis]
        at, inside, weight = how.place(scope, p, tap.var)
        at = tirx.min(at, scope.size(how.own) - integer(1))
        value = image(*position[:axis], at, *position[axis + 1 :])
        share = weight / sums(p)
        return te.sum(tirx.if_then_else(inside, share * value, how.number(0)), axis=tap)

    return ctx.compute("antialiased", [x, totals], shape, x.dtype, element)


@converter("aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default")
def convert_antialiased(
    ctx: Context,
    x: Tensor,
    output_size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    require_floats(x)
    assert ctx.node is not None
    weigh, reach = (_cubic, 2) if "bicubic" in str(ctx.node.target) else (_triangle, 1)
    shape = as_shape(ctx.expected().shape)
    for axis, factor in ((3, scales_w), (2, scales_h)):
        how = _Axis(x.shape[axis], shape[axis], factor, align_corners, weigh, reach, x.dtype)
        x = _resized(ctx, x, axis, how)
    return x
