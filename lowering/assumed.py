"""What is taken for granted of sizes: no more after the trace's assumptions were read than before.

Torch decides a question about a symbolic size by the size in the trace, and writes down a guard, a
replacement or a narrower range. Whatever asks such a question once the contract is made, a converter or
a pass over the graph, would assume something that no call is held against.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode

from ..artifacts.errors import Diagnostic, ExportError
from .locations import user_location


class Assumed:
    """The assumptions that stand beside a graph, as they are now."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        values = [node.meta.get("val") for node in graph.nodes]
        mode = detect_fake_mode([each for each in values if isinstance(each, torch.Tensor)])
        self._env = None if mode is None else mode.shape_env
        self._known = self._now()

    def require_no_more(self, node: torch.fx.Node | None = None) -> None:
        """Refuse what was added since.

        Args:
            node: what was done since, if it was one node.

        Raises:
            ExportError: TC502, with the line of the node.
        """
        now = self._now()
        if now == self._known:
            return
        before, self._known = self._known, now
        more = [f"{each.expr}" for each in self._guards()[before[0] :]]
        more += [
            f"{name} is {now[1][name]}" for name in now[1] if now[1][name] != before[1].get(name)
        ]
        what = "lowering" if node is None else str(node.target)
        raise ExportError(
            Diagnostic(
                "TC502",
                f"{what}: something is assumed of sizes that the trace does not assume",
                None if node is None else user_location(node.meta.get("stack_trace")),
                notes=tuple(more),
            )
        )

    def _guards(self) -> list[Any]:
        return [] if self._env is None else self._env.guards

    def _now(self) -> tuple[int, dict[str, str]]:
        env = self._env
        if env is None:
            return 0, {}
        sizes = {
            str(symbol): f"{env.replace(symbol)} in {span}"
            for symbol, span in env.var_to_range.items()
        }
        return len(env.guards), sizes
