"""First and later calls of each strategy as an SVG, readable on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from .bench_plot import STYLE
from .bench_report import time_text
from .bench_results import Results
from .bench_sizes import sizes_text
from .bench_strategies import LABELS

_LEFT, _RIGHT, _WIDTH, _TOP, _ROW, _BETWEEN = 270, 90, 860, 64, 22, 34
_DOT = 5
_HUE = {"later": "#4c78a8", "first": "#f58518"}


def strategies_svg(results: Results) -> str:
    """For each size a row for each strategy: the first call, hollow, and the later ones, filled, on
    one logarithmic axis of seconds. One that failed or is wrong says so in its place."""
    times = [
        seconds
        for runtime in results.runtimes
        for timing in runtime.timings
        if timing.samples and not timing.failure
        for seconds in (timing.first, timing.median)
    ]
    low = math.floor(math.log10(max(min(times, default=1e-6), 1e-9)))
    high = max(low + 1, math.ceil(math.log10(max(times, default=1e-3))))
    rows = [each for each in results.runtimes if each.timings]
    group = len(rows) * _ROW + _BETWEEN
    height = _TOP + len(results.sizes) * group + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="16" y="24">{escape(results.model)}: seconds of a call</text>',
        *_key("first", 16, "first call at a size, compilation included", hollow=True),
        *_key("later", 330, "later calls, median"),
        *_grid(low, high, height),
    ]
    for number, sizes in enumerate(results.sizes):
        top = _TOP + number * group + _BETWEEN - 12
        lines.append(f'<text class="title" x="16" y="{top:.0f}">{escape(sizes_text(sizes))}</text>')
        for place, runtime in enumerate(rows):
            y = top + (place + 1) * _ROW - 4
            lines.append(
                f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">'
                f"{escape(LABELS[runtime.name])}</text>"
            )
            timing = runtime.timings[number] if len(runtime.timings) > number else None
            if timing is None or timing.failure or not timing.samples:
                lines.append(f'<text class="quiet" x="{_LEFT}" y="{y + 4}">failed</text>')
                continue
            first, later = (_x(each, low, high) for each in (timing.first, timing.median))
            lines += [
                f'<line class="grid" x1="{min(first, later):.1f}" x2="{max(first, later):.1f}" '
                f'y1="{y}" y2="{y}"/>',
                _dot(first, y, "first", f"first call {time_text(timing.first)}", hollow=True),
                _dot(later, y, "later", f"later calls {time_text(timing.median)}"),
            ]
            told = time_text(timing.median) + (" WRONG" if timing.right is False else "")
            lines.append(
                f'<text class="quiet" x="{max(first, later) + 12:.1f}" y="{y + 4}">'
                f"{escape(told)}</text>"
            )
    return "\n".join([*lines, "</svg>\n"])


def _x(seconds: float, low: int, high: int) -> float:
    part = (math.log10(max(seconds, 1e-9)) - low) / (high - low)
    return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def _grid(low: int, high: int, height: int) -> Iterator[str]:
    for power in range(low, high + 1):
        x = _x(10.0**power, low, high)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - 8}"/>'
        yield (
            f'<text class="quiet" x="{x:.1f}" y="{_TOP - 4}" text-anchor="middle">'
            f"{time_text(10.0**power)}</text>"
        )


def _key(kind: str, x: int, text: str, hollow: bool = False) -> Iterator[str]:
    yield _dot(x + 6, 40, kind, text, hollow=hollow)
    yield f'<text class="quiet" x="{x + 18}" y="44">{text}</text>'


def _dot(x: float, y: float, kind: str, title: str, *, hollow: bool = False) -> str:
    hue = _HUE[kind]
    paint = f'fill="none" stroke="{hue}" stroke-width="2"' if hollow else f'fill="{hue}"'
    return (
        f'<circle cx="{x:.1f}" cy="{y}" r="{_DOT}" {paint}><title>{escape(title)}</title></circle>'
    )
