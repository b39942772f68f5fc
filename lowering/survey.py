"""Which ops a graph holds, and which of them are lowered: the table behind TC501 and `check`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ..artifacts.errors import Diagnostic, Location
from .locations import user_location
from .own_ops import OWN

if TYPE_CHECKING:
    import torch

    from .context import Unsupported


class OpUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One op of a graph, with all of its uses that have the same fate.

    Attributes:
        reason, tries: why it cannot be lowered, in the words of its converter, and the nearest form
            that can. An op without any converter has no reason.
        module, location: the module and the line of the user's code of the first use.
        fast: how many uses are computed by a kernel of ours (products, convolutions, attention,
            normalization), alone or as a part of it, and not by a generic loop.
        folded: how many uses are of constants alone, and are computed at export.
        on_data: how many uses are on sizes that only the data decides; their arithmetic is not
            counted.
        flops, fast_flops: arithmetic at the traced sizes, see `flops`, of all uses, and of the fast.
    """

    op: str
    count: int
    supported: bool
    reason: str = ""
    tries: str = ""
    module: str = ""
    location: Location | None = None
    fast: int = 0
    folded: int = 0
    on_data: int = 0
    flops: int = 0
    fast_flops: int = 0

    def __str__(self) -> str:
        fate = f"no: {self.reason or 'there is no converter'}"
        if self.supported:
            kinds = {"a kernel of ours": self.fast, "at export": self.folded}
            known = [f"{count} by {what}" for what, count in kinds.items() if count]
            fate = ", ".join(known) or "a generic loop, or a view"
        where = f", first at {self.location}" if self.location else ""
        return f"{self.op}, {self.count} uses: {fate}{where}"


@dataclass(frozen=True)
class Use:
    """One node, and what became of it."""

    node: torch.fx.Node
    refused: Unsupported | None = None
    fast: bool = False
    folded: bool = False
    on_data: bool = False
    flops: int = 0


def table(uses: Iterable[Use]) -> tuple[OpUse, ...]:
    """One row for each distinct op and reason, in the order of the graph."""
    groups: dict[tuple[str, str, bool], list[Use]] = {}
    for use in uses:
        reason = use.refused.reason if use.refused else ""
        groups.setdefault((_op(use.node), reason, use.refused is None), []).append(use)
    rows = []
    for (op, reason, supported), group in groups.items():
        first = group[0]
        rows.append(
            OpUse(
                op,
                len(group),
                supported,
                reason,
                first.refused.tries if first.refused else "",
                _module_path(first.node),
                user_location(first.node.meta.get("stack_trace")),
                fast=sum(use.fast for use in group),
                folded=sum(use.folded for use in group),
                on_data=sum(use.on_data for use in group),
                flops=sum(use.flops for use in group),
                fast_flops=sum(use.flops for use in group if use.fast),
            )
        )
    return tuple(rows)


def refusals(rows: Iterable[OpUse]) -> tuple[Diagnostic, ...]:
    """A diagnostic for each row that is not supported."""
    found = []
    for row in rows:
        if row.supported:
            continue
        times = "once" if row.count == 1 else f"{row.count} times"
        where = f" in {row.module}" if row.module else " at the top level"
        name = f"{row.op} {row.reason}".strip()
        found.append(
            Diagnostic(
                "TC501",
                f"{name} is not supported ({times}, first{where})",
                row.location,
                tries=(row.tries,) if row.tries else _INSTEAD.get(row.op, ()),
            )
        )
    return tuple(found)


_UNROLLED: tuple[str, ...] = (
    "a fixed number of steps, each with x = torch.where(goes_on, step(x), x)",
)
_INSTEAD = {
    **dict.fromkeys(("while_loop", "scan", "map_impl"), _UNROLLED),
    "cond": (
        "a condition that is a tensor, not a number read out of one: torch.cond(n > 2, f, g, (x,))",
        "tensors of the same sizes and dtypes from both sides",
    ),
    "associative_scan": ("scan(step, first, xs), which is kept as a loop",),
}


def _op(node: torch.fx.Node) -> str:
    if node.target is OWN:
        return str(node.args[2])
    return f"input {node.name}" if node.op == "placeholder" else str(node.target)


def _module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module that the op was called in, such as ``encoder.layers.0``."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""
