"""A contract as text that a person can scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from ..lowering.survey import OpUse


def size_text(size: int) -> str:
    """A number of bytes: ``1.5 MB`` (powers of 1000, like ``ls --si``)."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def shape_text(shape: Sequence[Expr | None]) -> str:
    """A shape in the user's names: ``[batch, 2*seq, 16]``; ``?`` for a size (None) that depends on
    data, and is known after the call only."""
    return f"[{', '.join('?' if size is None else render(size) for size in shape)}]"


def limits(dim: Dim) -> str:
    """What limits a range: ``<= 512: table[:seq]  (model.py:14)``."""
    parts = []
    if dim.hi is not None:
        parts.append((f"<= {dim.hi}", dim.hi_from))
    parts.append(("any number" if dim.open_below else f">= {dim.lo}", dim.lo_from))
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


def contract_lines(contract: Contract) -> list[str]:
    """Dims and guards; that there are none, where there are none."""
    lines = dim_lines(contract.dims) or ["no dynamic dim: every size is that of the example"]
    guards = [f"guard: {guard}   ({origin})" for guard, origin in guard_rows(contract)]
    checked = "dtypes, ranks, sizes and ranges are all that a call is held against"
    return lines + (guards or [f"no guard: {checked}"])


def op_lines(ops: Sequence[OpUse]) -> list[str]:
    """A table of the ops of a graph: what cannot be lowered first."""
    if not ops:
        return ["no op: the graph only hands its inputs on"]
    refused = sum(not each.supported for each in ops)
    uses = sum(each.count for each in ops)
    kinds = len({each.op for each in ops})
    rest = f"{refused} cannot be lowered" if refused else "all can be lowered"
    rows = [("op", "count", "lowered", "module", "first at")]
    for each in sorted(ops, key=lambda each: each.supported):
        where = f"{each.location}   {each.location.text}" if each.location else ""
        rows.append((each.op, str(each.count), _lowered(each), each.module or "-", where))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]))
        for row in rows
    ]
    head = f"ops: {uses}, of {kinds} kind{'' if kinds == 1 else 's'}; {rest}"
    return [head, *(f"  {line.rstrip()}" for line in lines)]


def _lowered(each: OpUse) -> str:
    """Whether, and how, an op is lowered: ``yes``, ``no: with ord=3``, ``in a kernel of ours``."""
    if not each.supported:
        return f"no: {each.reason or 'there is no converter'}"
    if each.folded == each.count:
        return "yes, at export"
    if not each.fast:
        return "yes"
    return "yes, fast" if each.fast == each.count else f"yes, {each.fast} fast"


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
