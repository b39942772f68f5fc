"""The ratios of a benchmark as bars, in SVG that is readable on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from .bench_results import Results, RuntimeResult
from .bench_sizes import sizes_text

_BAR, _GAP = 22, 28  # widths in pixels: of one bar, and between the groups of two sizes
_LEFT, _TOP, _HEIGHT, _BELOW = 48, 76, 240, 44
_LEAST = 480  # width of the whole
_HUES = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d")
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 }
  .quiet { fill: #6e7781 }
  .grid { stroke: #d0d7de }
  .one { stroke: #24292f; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .quiet { fill: #8b949e }
    .grid { stroke: #30363d }
    .one { stroke: #e6edf3 }
  }
"""


def svg(results: Results) -> str:
    """A group of bars for each size, a bar for each peer: its time over the bundle's.

    A peer without a ratio at a size has a word in its place: what stopped it. A ratio that does not
    count, since one of the two answers was wrong or was not compared, has a hollow bar.
    """
    peers = [each for each in results.peers if not each.skipped]
    ratios = [
        ratio
        for peer in peers
        for number in range(len(results.sizes))
        if (ratio := results.ratio(peer.name, number)) is not None
    ]
    step, top = _scale(max(ratios, default=1.0))
    group = max(_BAR * len(peers), max((7 * len(sizes_text(s)) for s in results.sizes), default=0))
    width = max(_LEAST, _LEFT + len(results.sizes) * (group + _GAP) + _GAP)
    height = _TOP + _HEIGHT + _BELOW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(results.model)}: time of each runtime over the bundle's</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="22">{escape(results.model)}: time over the bundle\'s, '
        "higher is slower than the bundle</text>",
        *_legend(peers, results),
        *_grid(step, top, width),
    ]
    for number, sizes in enumerate(results.sizes):
        left = _LEFT + _GAP + number * (group + _GAP)
        middle = left + group / 2
        lines.append(
            f'<text x="{middle:.0f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">'
            f"{escape(sizes_text(sizes))}</text>"
        )
        first = middle - _BAR * len(peers) / 2
        for place, peer in enumerate(peers):
            lines += _bar(results, peer, number, first + place * _BAR, _HUES[place], top)
    return "\n".join([*lines, "</svg>\n"])


def _scale(highest: float) -> tuple[float, float]:
    """The distance of two grid lines, and the uppermost of them."""
    magnitude = 10 ** math.floor(math.log10(highest / 4)) if highest > 0.4 else 0.1
    step = next(n * magnitude for n in (1, 2, 5, 10) if n * magnitude * 5 >= highest)
    return step, step * max(1, math.ceil(highest * 1.02 / step))


def _y(value: float, top: float) -> float:
    return _TOP + _HEIGHT * (1 - value / top)


def _legend(peers: list[RuntimeResult], results: Results) -> Iterator[str]:
    x = float(_LEFT)
    for place, peer in enumerate(peers):
        mean, _ = results.mean_ratio(peer.name)
        label = peer.name if mean is None else f"{peer.name} {mean:.2f}"
        yield f'<rect x="{x:.0f}" y="36" width="11" height="11" fill="{_HUES[place]}"/>'
        yield f'<text x="{x + 16:.0f}" y="46">{escape(label)}</text>'
        x += 16 + 7.2 * len(label) + 18


def _grid(step: float, top: float, width: int) -> Iterator[str]:
    for number in range(round(top / step) + 1):
        value, y = number * step, _y(number * step, top)
        yield f'<line class="grid" x1="{_LEFT}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield (
            f'<text class="quiet" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    one = _y(1, top)
    yield f'<line class="one" x1="{_LEFT}" x2="{width}" y1="{one:.1f}" y2="{one:.1f}"/>'


def _bar(
    results: Results, peer: RuntimeResult, number: int, x: float, hue: str, top: float
) -> Iterator[str]:
    ratio = results.ratio(peer.name, number)
    middle, foot = x + _BAR / 2, _TOP + _HEIGHT
    if ratio is None:
        yield _upright(middle + 4, foot - 4, "failed")
        return
    timing = peer.timings[number]
    counts = results.counts(peer.name, number)
    y = _y(ratio, top)
    paint = f'fill="{hue}"' if counts else f'fill="none" stroke="{hue}" stroke-width="1.5"'
    yield (
        f'<rect x="{x + 2:.1f}" y="{y:.1f}" width="{_BAR - 4}" height="{foot - y:.1f}" {paint}>'
        f"<title>{escape(peer.name)}: {ratio:.3f}</title></rect>"
    )
    yield (
        f'<text class="quiet" x="{middle:.1f}" y="{y - 4:.1f}" text-anchor="middle" '
        f'style="font-size:9px">{ratio:.2f}</text>'
    )
    if timing.right is False:
        yield _upright(middle + 4, foot - 4, "wrong")


def _upright(x: float, y: float, word: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" transform="rotate(-90 {x:.1f} {y:.1f})">{word}</text>'
