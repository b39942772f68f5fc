"""What a call at other sizes than the example's leaves behind in Python, and later answers hang on.

``if seq == 17: self.base = 2`` is not seen in a call of the example, and the graph is the same at 17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..artifacts.errors import Diagnostic, ExportError
from .caches import kept_since, same_answers
from .eager import quietly, run_eager
from .flow import Flow, Reads
from .signature import Bound, forward_location
from .state import Change, Snapshot, preserved


def require_nothing_left(
    module: torch.nn.Module,
    bound: Bound,
    example: Sequence[Any],
    leaves: Sequence[Any],
    sizes: Mapping[str, int],
) -> None:
    """What a call leaves behind may not show: neither in an answer, nor as a count, nor may it hold
    something of the inputs' values. The model is afterwards as before.

    Args:
        example: the leaves of another call, which the model is known to take.
        leaves: those of the call that is looked at, at ``sizes``; where the model does not run on them,
            it leaves nothing.

    Raises:
        ExportError: TC103.
    """
    change = next(_lasting(module, bound, example, leaves), None)
    if change is None:
        return
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    values = "" if change.before == change.after else f" from {change.before} to {change.after}"
    raise ExportError(
        Diagnostic(
            "TC103",
            f"a call with {at} changes {change.path}{values}, and the next call would not see it",
            forward_location(module),
            tries=(f"take {change.path} as an input and return the new value",),
        )
    )


def _lasting(
    module: torch.nn.Module, bound: Bound, example: Sequence[Any], leaves: Sequence[Any]
) -> Iterator[Change]:
    with preserved(module) as beginning, quietly():
        flow = Flow(leaves)
        try:
            with flow, Reads(flow):
                first = run_eager(module, bound, leaves)
        except Exception:  # whatever the user's model raises
            return
        changes = [each for each in beginning.changes() if each.kind != "random"]
        if not changes:
            return
        if flow.read or flow.reaches(kept_since(module, beginning)):
            yield from changes
        yield from (each for each in changes if each.kind not in ("attributes", "items"))
        once = Snapshot(module)
        try:
            again = run_eager(module, bound, leaves)
            yield from (each for each in once.changes() if each.kind != "random")  # a count
            later = run_eager(module, bound, example)
        except Exception:  # it does without what the call has left
            yield from changes
            return
        beginning.restore()
        if not same_answers([*again, *later], [*first, *run_eager(module, bound, example)]):
            yield from changes
