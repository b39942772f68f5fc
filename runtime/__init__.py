"""Load a bundle and run it: no torch, no compiler.

`load` and `Model` are imported when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Metrics, Model, load
    from .session import Session

__all__ = ["Metrics", "Model", "Session", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import model

    return getattr(model, name)
