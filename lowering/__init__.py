"""Traced program → binaries, one per target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lower import Lowered, lower

__all__ = ["Lowered", "lower"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import lower as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
