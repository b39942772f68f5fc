"""Whether the packages that exporting needs are installed. Imports none of them."""

from __future__ import annotations

import importlib.util

from ..artifacts.errors import Diagnostic, UsageError

_PACKAGES = {
    "torch": "torch",
    "tvm": "apache-tvm",
    "sympy": "sympy",
    "z3": "z3-solver",
}


def require_extra() -> None:
    """Raises UsageError TC011 with the line to type where a package for exporting is missing."""
    missing = [
        package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise UsageError(
            Diagnostic(
                "TC011",
                f"exporting needs {', '.join(missing)}, which is not installed here",
                notes=("loading and running bundles works without",),
                tries=("pip install 'tcexport[export]'",),
            )
        )
