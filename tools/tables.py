"""A contract as text that a person can scan."""

from __future__ import annotations

from collections.abc import Sequence

from ..artifacts.contract import (
    ComputedGuard,
    Contract,
    Dim,
    Fixed,
    IndexGuard,
    Origin,
    SizeOutput,
    TensorOutput,
)
from ..artifacts.expr import Expr, render


def size_text(size: int) -> str:
    """A number of bytes: ``1.5 MB`` (powers of 1000, like ``ls --si``)."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def shape_text(shape: Sequence[Expr]) -> str:
    """A shape in the user's names: ``[batch, 2*seq, 16]``."""
    return f"[{', '.join(render(size) for size in shape)}]"


def limits(dim: Dim) -> str:
    """What limits a range: ``<= 512: table[:seq]  (model.py:14)``."""
    parts = []
    if dim.hi is not None:
        parts.append((f"<= {dim.hi}", dim.hi_from))
    parts.append((f">= {dim.lo}", dim.lo_from))
    if dim.step != 1 and dim.step_from is not None:
        parts.append((f"steps of {dim.step}", dim.step_from))
    by_origin: dict[str, list[str]] = {}
    for text, origin in parts:
        by_origin.setdefault(origin_text(origin), []).append(text)
    return "; ".join(f"{' and '.join(texts)}: {origin}" for origin, texts in by_origin.items())


def origin_text(origin: Origin) -> str:
    """Why an assumption is there, and the user's line: ``index of self.table(ids)  model.py:9``."""
    if origin.location is None:
        return origin.reason
    text = origin.location.text or origin.reason
    return f"{text}  ({origin.location})"


def dim_lines(dims: Sequence[Dim]) -> list[str]:
    """Each dim with its range and what limits it, one line each."""
    return [f"{dim.name}: {dim.span()}   ({limits(dim)})" for dim in dims]


def input_rows(contract: Contract) -> list[tuple[str, str, str]]:
    """Path, dtype and shape of each input; a fixed value stands where the shape would."""
    return [
        (each.path, each.type, f"fixed: {each.value!r}")
        if isinstance(each, Fixed)
        else (each.path, each.dtype, shape_text(each.shape))
        for each in contract.inputs
    ]


def output_rows(contract: Contract) -> list[tuple[str, str, str]]:
    """Path, dtype and shape of each output."""
    rows = []
    for each in contract.outputs:
        if isinstance(each, TensorOutput):
            rows.append((each.path, each.dtype, shape_text(each.shape)))
        elif isinstance(each, SizeOutput):
            rows.append((each.path, "int", render(each.value)))
        else:
            rows.append((each.path, each.type, f"always {each.value!r}"))
    return rows


def guard_rows(contract: Contract) -> list[tuple[str, str]]:
    """Each guard on sizes, and each on values, with where it comes from."""
    rows = [(render(guard.expr), origin_text(guard.origin)) for guard in contract.guards]
    return rows + value_rows(contract)


def value_rows(contract: Contract) -> list[tuple[str, str]]:
    """The guards on the values of tensors: indices, and what the compiled code looks at."""
    rows = [
        (index_text(contract, each), origin_text(each.origin)) for each in contract.index_guards
    ]
    rows += [(computed_text(each), origin_text(each.origin)) for each in contract.computed_guards]
    return rows


def computed_text(guard: ComputedGuard) -> str:
    """``0 <= the indices of index < n, in the code``: what the compiled code looks at."""
    if guard.assertion:
        return f"assertion in the code{': ' if guard.what else ''}{guard.what}"
    size = "their number" if guard.size is None else render(guard.size)
    lowest = "0"
    if guard.wraps and guard.size is not None:
        lowest = f"-({size})" if isinstance(guard.size, tuple) else f"-{size}"
    return f"{lowest} <= {guard.what} < {size}, in the code"


def index_text(contract: Contract, guard: IndexGuard) -> str:
    """``0 <= ids <= 29999`` for every value of the input ``ids``."""
    path = contract.inputs[guard.input].path
    return f"{render(guard.lo)} <= {path} <= {render(guard.hi)}, each value"
