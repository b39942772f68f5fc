"""The user's own line for everything that torch assumes.

Torch keeps, beside each shape guard, a short text of the user's frame in strict traces and of its
own frame otherwise. `recording_lines` makes it keep the whole location in both.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.fx.traceback as fx_traceback
from torch._guards import SLoc, TracingContext
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import RuntimeAssert, ShapeEnv

from ..artifacts.errors import Location
from ..lowering.locations import location_of_frames, user_location


class LocatedText(str):
    """The text that torch shows for a guard or an assertion, with the location it stands for."""

    location: Location | None

    def __new__(cls, location: Location | None, text: str | None = None) -> LocatedText:
        if text is None:
            text = "" if location is None else f"{location.text}  # {location}"
        located = super().__new__(cls, text)
        located.location = location
        return located


def current_user_location() -> Location | None:
    """The innermost line of the user's code that is being traced now."""
    if fx_traceback.has_preserved_node_meta():  # a graph is being taken apart, node by node
        stack = fx_traceback.get_current_meta().get("stack_trace")
        if stack:
            return user_location(stack)
    traced = TracingContext.extract_stack()  # in a strict trace: the frames Dynamo is walking
    if traced:
        return location_of_frames([(frame.filename, frame.lineno or 0) for frame in traced])
    running = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None)]
    return location_of_frames(running[::-1])


@contextmanager
def recording_lines() -> Iterator[None]:
    """While active, every guard and every assertion that torch adds carries a `LocatedText`."""
    original = ShapeEnv._get_stack_summary
    original_assertion = symbolic_shapes.RuntimeAssert

    def summary(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        sloc, extra = original(self, *args, **kwargs)
        return SLoc(sloc.framework_loc, LocatedText(current_user_location())), extra

    def assertion(expr: Any, msg: str, stack: Any) -> RuntimeAssert:
        return original_assertion(expr, LocatedText(current_user_location(), msg), stack)

    ShapeEnv._get_stack_summary = summary
    symbolic_shapes.RuntimeAssert = assertion
    try:
        yield
    finally:
        ShapeEnv._get_stack_summary = original
        symbolic_shapes.RuntimeAssert = original_assertion


def location_of(sloc: Any) -> Location | None:
    """The location that `recording_lines` put beside a guard."""
    return _location_of_text(getattr(sloc, "maybe_user_loc", None))


def location_of_assertion(assertion: RuntimeAssert) -> Location | None:
    """The location that `recording_lines` put beside an assertion of a number that only data says."""
    return _location_of_text(assertion.msg)


def _location_of_text(text: object) -> Location | None:
    return text.location if isinstance(text, LocatedText) else None
