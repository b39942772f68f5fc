"""How the variants of a bundle share the space of sizes: as rows of a table, and as an SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ..artifacts.contract import Contract, Dim
from ..artifacts.expr import render
from ..artifacts.manifest import Manifest, contract_of

VARIANT_HEADS = ("name", "takes", "guards of its own", "function")
WIDTH, HEIGHT, MARGIN, LEGEND = 420, 300, 56, 20
_COLOURS = ("#1b6ca8", "#d1495b", "#2a9d8f", "#edae49", "#6a4c93", "#8d5b4c", "#577590", "#9c9c38")
_GENERAL = "#e4e4e0"
_OPEN_END = 4096  # a range without end is drawn so far


def variant_rows(manifest: Manifest) -> list[tuple[str, str, str, str]]:
    """Of each variant, in the order of trial: its name, the sizes that it takes, the guards that it
    has beside the bundle's, and its function."""
    whole = manifest.contract
    rows = []
    for variant in manifest.variants:
        contract = contract_of(manifest, variant)
        rows.append(
            (
                variant.name,
                takes(whole, contract),
                "; ".join(
                    render(guard.expr) for guard in contract.guards if guard not in whole.guards
                ),
                variant.entry.function,
            )
        )
    return rows


def takes(whole: Contract, contract: Contract) -> str:
    """The ranges that are narrower than the bundle's: ``batch 1, seq 1..128``."""
    own = {dim.name: dim for dim in contract.dims}
    narrower = [
        own[dim.name]
        for dim in whole.dims
        if dim.name in own and _span(own[dim.name]) != _span(dim)
    ]
    return ", ".join(f"{dim.name} {span_of(dim)}" for dim in narrower) or "all that is left"


def span_of(dim: Dim) -> str:
    """``128`` for one size, else the range."""
    return str(dim.lo) if dim.lo == dim.hi else dim.span()


def _span(dim: Dim) -> tuple[int, int | None, int]:
    return dim.lo, dim.hi, dim.step


def svg(manifest: Manifest) -> str:
    """The partition over the one or two dims in which the variants differ most, on scales of powers
    of two; what is tried first lies on top."""
    whole = manifest.contract
    parts = [(each.name, contract_of(manifest, each)) for each in manifest.variants]
    parts = parts or [("general", whole)]
    across, *upwards = _axes_of(whole, [contract for _, contract in parts])
    up = upwards[0] if upwards else None
    height = HEIGHT if up else 60
    total = height + 2 * MARGIN + LEGEND * len(parts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * MARGIN}" height="{total}" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(manifest.model)}: which variant serves which sizes</title>",
        f'<rect width="{WIDTH + 2 * MARGIN}" height="{total}" fill="white"/>',
    ]
    for number in reversed(range(len(parts))):
        name, contract = parts[number]
        own = {dim.name: dim for dim in contract.dims}
        left, right = _interval(own[across.name], across, WIDTH)
        bottom, top = _interval(own[up.name], up, height) if up else (0.0, float(height))
        lines.append(
            f'<rect x="{MARGIN + left:.1f}" y="{MARGIN + height - top:.1f}" '
            f'width="{right - left:.1f}" height="{top - bottom:.1f}" '
            f'fill="{_colour(number, len(parts))}" stroke="white"><title>{escape(name)}</title></rect>'
        )
    lines += _scale(across, height, along=True)
    if up is not None:
        lines += _scale(up, height, along=False)
    for number, (name, contract) in enumerate(parts):
        y = height + 2 * MARGIN + LEGEND * number
        colour = _colour(number, len(parts))
        lines.append(f'<rect x="{MARGIN}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        text = f"{number + 1}. {name}: {takes(whole, contract)}"
        lines.append(f'<text x="{MARGIN + 18}" y="{y}">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _colour(number: int, count: int) -> str:
    return _GENERAL if number == count - 1 else _COLOURS[number % len(_COLOURS)]


def _axes_of(whole: Contract, contracts: Sequence[Contract]) -> list[Dim]:
    """The dims that most variants narrow, two at most; the first of all where none does."""

    def narrowed(dim: Dim) -> int:
        own = [each for contract in contracts for each in contract.dims if each.name == dim.name]
        return sum(_span(each) != _span(dim) for each in own)

    ranked = sorted(whole.dims, key=lambda dim: -narrowed(dim))
    return [dim for dim in ranked if narrowed(dim)][:2] or ranked[:1]


def _ends(dim: Dim) -> tuple[int, int]:
    return dim.lo, max(dim.lo + 1, _OPEN_END) if dim.hi is None else dim.hi


def _place(size: float, dim: Dim, length: int) -> float:
    """A size on a scale of powers of two, each size as wide as the step to the next one."""
    low, high = _ends(dim)
    first, last = math.log2(low + 1), math.log2(high + 2)
    return (math.log2(size + 1) - first) / (last - first) * length


def _interval(own: Dim, dim: Dim, length: int) -> tuple[float, float]:
    low, high = own.lo, _ends(dim)[1] if own.hi is None else own.hi
    start, end = _place(low, dim, length), _place(high + 1, dim, length)
    if end - start < 3:  # one size among many would not be seen
        middle = (start + end) / 2
        start, end = max(0.0, middle - 1.5), min(float(length), middle + 1.5)
    return start, end


def _scale(dim: Dim, height: int, *, along: bool) -> list[str]:
    low, high = _ends(dim)
    length = WIDTH if along else height
    ticks = sorted({low, high, *(2**n for n in range(1, 40) if low < 2**n < high)})
    lines = []
    last = -40.0
    for size in ticks:
        place = (_place(size, dim, length) + _place(size + 1, dim, length)) / 2
        if place - last < (28 if along else 14) and size != low:
            continue
        last = place
        x, y = (MARGIN + place, MARGIN + height + 16.0) if along else (MARGIN - 8.0, 0.0)
        if not along:
            y = MARGIN + height - place + 4
        anchor = "middle" if along else "end"
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{size}</text>')
    name = escape(dim.name) + ("" if dim.hi is not None else " (without end)")
    if along:
        lines.append(
            f'<text x="{MARGIN + WIDTH / 2}" y="{MARGIN + height + 34}" text-anchor="middle" '
            f'font-weight="bold">{name}</text>'
        )
    else:
        lines.append(f'<text x="{MARGIN - 8}" y="{MARGIN - 12}" font-weight="bold">{name}</text>')
    return lines
