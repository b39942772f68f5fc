"""tcexport: ship a PyTorch model as one file that runs without PyTorch.

``export`` and ``check`` need the extra ``tcexport[export]``; ``load`` needs neither torch nor TVM,
and importing this package imports none of them.
"""

from typing import TYPE_CHECKING, Any

from .artifacts.errors import (
    BundleError,
    ExportError,
    GuardError,
    InternalError,
    TcexportError,
    UsageError,
)
from .artifacts.logs import set_logs

if TYPE_CHECKING:
    from .exporter.check import check
    from .exporter.export import export
    from .runtime import Model, Session, load

    __version__: str

__all__ = [
    "BundleError",
    "ExportError",
    "GuardError",
    "InternalError",
    "Model",
    "Session",
    "TcexportError",
    "UsageError",
    "__version__",
    "check",
    "export",
    "load",
    "set_logs",
]


def __getattr__(name: str) -> Any:
    if name in ("export", "check"):
        from .exporter.extra import missing_extra

        error = missing_extra()
        if error is not None:  # said where it is called: looking at the package is no mistake

            def refused(*args: Any, **kwargs: Any) -> Any:
                raise error

            return refused
        from importlib import import_module

        found: Any = getattr(import_module(f".exporter.{name}", __package__), name)
    elif name in ("load", "Model", "Session"):
        from . import runtime

        found = getattr(runtime, name)
    elif name == "__version__":
        from importlib.metadata import version

        found = version("tcexport")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
