"""What a tool calls of a loaded bundle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runtime.model import Model


def served(model: Model, seed: int = 0) -> Callable[..., Any]:
    """The model; where it keeps state, a new session, so that equal calls have equal answers. Where it
    draws random numbers the session has this ``seed``."""
    if not model.states:
        return model
    session = model.session()
    if model.manifest.generator:
        session.seed(seed)
    return session
